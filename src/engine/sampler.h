// Sampling: one row of logits -> one token. Host code; a row's choice depends on its own request alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "io/generation_config.h"
#include "ops/draw.h"

namespace longspan::engine {

inline constexpr int kMaxLogprobs = 20;  // alternatives reported for a token
// Colder than this a draw is the best token anyway, and 1 / temperature might overflow.
inline constexpr double kMinTemperature = 1e-5;

struct SamplingParams {
  double temperature = 0;         // below kMinTemperature: greedy
  int32_t top_k = 0;              // 0: off
  double top_p = 1;               // (0, 1]
  double min_p = 0;               // [0, 1]: keeps p >= min_p * max p
  double repetition_penalty = 1;  // > 0; over prompt and answer (Keskar et al. 2019)
  double presence_penalty = 0;    // -2 .. 2, over the answer
  double frequency_penalty = 0;   // -2 .. 2, over the answer
  std::optional<uint64_t> seed;   // none: drawn at submission
  // -100 .. 100 each
  std::vector<std::pair<int32_t, float>> logit_bias;
  int32_t num_logprobs = -1;  // -1: none; 0: of the chosen token; n: also of the n best
  int64_t min_tokens = 0;     // stop tokens are ruled out before that many

  bool greedy() const { return temperature < kMinTemperature; }
};

// Throws kInvalid naming the parameter, got and need.
void validate(const SamplingParams& params);
// What generation_config.json suggests: greedy where do_sample is false or nothing is said.
SamplingParams default_sampling(const io::GenerationConfig& config);

struct Logprob {
  int32_t token = 0;
  float logprob = 0;  // of the raw logits, before penalties and temperature; at least kMinLogprob
};
inline constexpr float kMinLogprob = -9999.0f;  // JSON has no infinity

struct SampledToken {
  int32_t token = 0;
  bool finite = true;  // false: the row held NaN or only infinities; the token means nothing
  float logprob = 0;
  std::vector<Logprob> top;  // best first
};

// Per-request memory of a sampler: what penalties and seeds need.
class SamplerState {
 public:
  SamplerState() = default;
  SamplerState(const SamplingParams& params, const std::vector<int32_t>& prompt, int64_t vocab_size);

  void accept(int32_t token);  // the answer grew by this token
  uint64_t seed() const { return seed_; }
  int64_t num_accepted() const { return num_accepted_; }
  int32_t last_accepted() const { return last_accepted_; }  // -1: none yet
  bool in_prompt(int64_t token) const {
    return !in_prompt_.empty() && in_prompt_[static_cast<size_t>(token)] != 0;
  }
  int32_t count(int64_t token) const { return counts_.empty() ? 0 : counts_[static_cast<size_t>(token)]; }
  bool penalised() const { return !counts_.empty(); }

 private:
  uint64_t seed_ = 0;
  int64_t num_accepted_ = 0;
  int32_t last_accepted_ = -1;
  std::vector<uint8_t> in_prompt_;  // [vocab] or empty
  std::vector<int32_t> counts_;     // [vocab] of the answer, or empty
};

// What the next token of such a request is drawn with: all of its parameters but bias, penalties and tokens
// that are ruled out, which change the logits first.
ops::DrawRow draw_row(const SamplingParams& params, const SamplerState& state);
inline bool is_greedy(const ops::DrawRow& row) { return row.top_k == 1; }

// Order of work: bias, penalties, tokens that may not be chosen, temperature, top-k, top-p, min-p, draw.
class Sampler {
 public:
  explicit Sampler(int64_t vocab_size);

  // Tokens that may be chosen: all but `ruled_out`, and of `allowed`, bits [ceil(vocab / 64)], where it is
  // not empty. At least one must be left.
  struct Choice {
    const std::vector<int32_t>& ruled_out;
    std::span<const uint64_t> allowed = {};
  };
  // logits T [vocab]. Ties go to the lowest id. Allocates only for `top`.
  SampledToken sample(const TensorView& logits, const SamplingParams& params, const SamplerState& state,
                      const Choice& choice);

 private:
  void adjust(const SamplingParams& params, const SamplerState& state, const Choice& choice);
  void report(const SamplingParams& params, SampledToken& sampled) const;

  std::vector<float> raw_;       // [vocab]
  std::vector<float> adjusted_;  // [vocab]
  std::vector<uint64_t> keys_;   // room for draws
};

}  // namespace longspan::engine
