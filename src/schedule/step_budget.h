// StepBudget: how many tokens a step may still compute, and where a prompt is cut to fit in. Pure arithmetic.
#pragma once

#include <cstdint>

#include "cache/page_plan.h"
#include "schedule/prefill_limit.h"

namespace longspan::schedule {

using cache::kGrid;  // prefill chunks end on multiples of it, a prompt's last chunk excepted

inline int64_t floor_grid(int64_t num_tokens) { return num_tokens / kGrid * kGrid; }

class StepBudget {
 public:
  StepBudget() = default;
  // num_tokens in all, of which the prompt's may take as long as the limit says, but a grid chunk at least.
  explicit StepBudget(int64_t num_tokens, const PrefillLimit& limit = {})
      : left_(num_tokens), limit_(limit), ms_left_(limit.ms) {}

  int64_t left() const { return left_; }
  void take_decode() { --left_; }

  // Tokens of the next chunk of a prompt: to its end, or to the last grid point within the room. 0: none.
  int64_t chunk(int64_t num_computed, int64_t num_prompt) const;
  void take_chunk(int64_t num_computed, int64_t num_prompt, int64_t q_len);

  // While a long prompt runs for minutes, a quarter of each step is kept for prompts that are done within it.
  bool is_short(int64_t num_computed, int64_t num_prompt) const;  // a quarter of what is left suffices
  void keep_room_for_short() { kept_ = short_tokens_; }
  void give_kept_room() { kept_ = 0; }
  bool keeps_room() const { return kept_ > 0; }
  void close_decodes();  // from here on only prefill counts: fixes what is short

 private:
  // For prompt tokens behind `context` others, where `kept` tokens of short prompts come besides.
  int64_t room(int64_t context, int64_t kept) const;

  int64_t left_ = 0;
  PrefillLimit limit_;
  double ms_left_ = 0;
  bool has_chunk_ = false;
  int64_t short_tokens_ = 0;
  int64_t kept_ = 0;
};

}  // namespace longspan::schedule
