// DeviceSampler: chooses the tokens of decode steps where the logits are, so that four bytes a row leave the
// device. What it cannot do is left to Sampler, which draws the same tokens from the same logits.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/sampler.h"
#include "model/model.h"

namespace longspan::engine {

// Why the tokens of a step are chosen on the host; the first that holds of any row.
enum class HostSampling : uint8_t {
  kNoDevice,
  kPrefill,     // a prompt chunk is among the sequences
  kNotSampled,  // a row has no logits
  kTooMany,     // more rows than one product of logits has
  kLogprobs,
  kLogitBias,
  kPenalties,
  kGrammar,
  kMinTokens  // a stop token is ruled out
};
inline constexpr size_t kNumHostSampling = 9;
std::string_view host_sampling(size_t i);  // "no_device", ...; the name of on_host[i]

// Of one row; none: the device can choose its token. constrained: only some tokens are allowed.
std::optional<HostSampling> host_sampling_of(const SamplingParams& params, const SamplerState& state,
                                             bool constrained);

struct SamplingCounters {
  int64_t num_on_device = 0;    // steps
  int64_t num_row_uploads = 0;  // of them: what the rows are drawn with was new to the device
  std::array<int64_t, kNumHostSampling> on_host{};  // steps
};

// Not thread-safe. `model` and `memory`, that of its operations, outlive it.
class DeviceSampler final {
 public:
  DeviceSampler(model::Model& model, Memory& memory, Index max_rows);

  // One token for each row of logits T [rows.size(), vocab], -1 where it is not finite; valid until the next
  // call. The device keeps the rows and moves their states on, as the next call is expected to.
  std::span<const int32_t> choose(const TensorView& logits, std::span<const ops::DrawRow> rows);
  void left_to_host(HostSampling why) { counters_.on_host[static_cast<size_t>(why)] += counting_; }

  // Counts from now on (not during the warm-up).
  void start_counting() { counting_ = true; }
  const SamplingCounters& counters() const { return counters_; }

 private:
  model::Model& model_;
  Memory& memory_;
  Buffer device_rows_;               // u8 [max_rows, sizeof(DrawRow)]
  std::vector<ops::DrawRow> known_;  // what lies there
  bool counting_ = false;
  SamplingCounters counters_;
};

}  // namespace longspan::engine
