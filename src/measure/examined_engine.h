// ExaminedEngine: an engine with somebody looking on, and what its answers leave to compare.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "measure/op_trace.h"
#include "measure/reference_check.h"

namespace longspan::measure {

// Greedy, past every end of text.
struct ExaminedAnswer {
  std::vector<int32_t> tokens;
  std::vector<std::vector<engine::Logprob>> top;  // the 20 best of each token, best first
  int64_t num_cached = 0;                         // prompt tokens taken from the prefix cache
  std::string error;                              // the engine gave up: NaN
  // With kLayers, of the prompt: rows [num_prompt, H] after the embedding and after each layer, the last one
  // after the final norm; and the logits of the last position.
  std::vector<std::vector<float>> layers;
  std::vector<float> logits;
};

// Tokens and the bits of their log probabilities.
bool same_bits(const ExaminedAnswer& one, const ExaminedAnswer& other);
// "token 3 is 17 (-0.1), other -0.2": the first difference of the two, for people.
std::string difference_text(const ExaminedAnswer& one, const ExaminedAnswer& other);

enum class Watch : uint8_t { kNothing, kTrace, kReference };
enum class Keep : uint8_t { kTokens, kLayers };

class ExaminedEngine final {
 public:
  // Throws as engine::Engine does.
  ExaminedEngine(engine::EngineOptions options, Watch watch, Index max_rows = 1 << 20);

  ExaminedAnswer answer(const std::vector<int32_t>& prompt, int64_t num_tokens, Keep keep = Keep::kTokens);

  const engine::EngineInfo& info() const { return engine_->info(); }
  engine::EngineStatus status() const { return engine_->status(); }
  const OpReport& report() const { return *report_; }
  // Of the answers since the last call.
  std::shared_ptr<const OpTrace> take_trace();

 private:
  std::shared_ptr<OpReport> report_ = std::make_shared<OpReport>();
  std::shared_ptr<OpTrace> trace_ = std::make_shared<OpTrace>();
  std::unique_ptr<engine::Engine> engine_;
};

}  // namespace longspan::measure
