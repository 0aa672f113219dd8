// ConstrainedAnswer: one answer that must fit a grammar; says before each token which ones may come.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "text/grammar/token_masks.h"

namespace longspan::text {

// Not thread-safe: one per answer, used by the thread that samples it.
//
// Where the prompt left a <think> open, everything but special tokens and tool calls may come up to </think>;
// the grammar begins behind it, after at most two line ends. The end of the answer is allowed where the
// grammar allows it, and where no token goes on (a vocabulary that lacks a byte).
class ConstrainedAnswer final {
 public:
  // `vocab_size`: of the model, which may have more rows than the vocabulary has tokens. `end_tokens` end an
  // answer; they are below vocab_size.
  ConstrainedAnswer(std::shared_ptr<TokenMasks> masks, std::vector<int32_t> end_tokens, int64_t vocab_size,
                    bool in_reasoning);

  // The tokens that may come, as bits [ceil(vocab_size / 64)]; at least one. Valid up to the next push().
  std::span<const uint64_t> allowed();
  // One of them has come. (Another one is let pass, and the mask stays what it was.)
  void push(int32_t token);

 private:
  void push_reasoning(std::string_view bytes);
  bool push_bytes(std::string_view bytes);
  void allow_reasoning();

  std::shared_ptr<TokenMasks> masks_;
  std::vector<int32_t> end_tokens_;
  TokenMask mask_;
  bool mask_is_current_ = false;
  GrammarRunner runner_;
  size_t num_frames_kept_ = 0;  // when the runner was last made compact
  ThreadSet threads_;
  ThreadSet next_;
  bool in_reasoning_;
  std::string tail_;  // of the reasoning: its last bytes, as many as may begin </think>
};

}  // namespace longspan::text
