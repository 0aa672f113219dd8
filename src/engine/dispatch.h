// Dispatch: which attention path a run of sequences takes. A gate is a list of named conditions over numbers
// the host knows; the first that fails is the reason of the miss. Never looks at data, never waits for the
// device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "ops/ops.h"

namespace longspan::engine {

// The limits of the gates; defaults are those of the field reports (one 27B stream on gfx936).
struct DispatchConfig {
  bool enable_vendor_prefill = true;
  int64_t vendor_prefill_min_q = 2;     // query tokens
  int64_t vendor_prefill_max_q = 4096;  // query tokens
  bool vendor_prefill_require_single_seq = true;
  int64_t vendor_prefill_page_multiple = 64;  // tokens; the page must be a multiple of it
  int64_t vendor_prefill_head_dim = 256;
  int64_t vendor_prefill_gqa_ratio = 6;  // query heads a KV head
  DType vendor_prefill_dtype = DType::kBF16;
  bool page_contiguous_decode = true;  // false: decode takes the unified path
  bool steady_decode_inputs = true;    // false: every step's inputs are prepared in the general way
};

// What is fixed once the model and its page plan are known.
struct AttentionTraits {
  DType dtype = DType::kBF16;
  int64_t head_dim = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t page_tokens = 0;
  bool causal = true;
  bool sliding_window = false;
  bool alibi = false;
  bool sinks = false;
  bool softcap = false;
  bool multimodal_prefix = false;
  bool own_vendor_kernel = false;  // false: the device runs vendor_prefill through the kernel of unified
  // vendor_prefill is a library's, which rounds in its own way: so it takes every prompt row, whatever shape
  // the row comes in, or an answer would depend on it.
  bool prefill_library = false;
};

// One run of sequences as the host sees it.
struct AttentionShape {
  int64_t num_seqs = 0;
  int64_t q_len = 0;      // of each sequence when they are equal, else of the first
  int64_t max_q_len = 0;  // the longest
  int64_t kv_len = 0;     // the longest, this step's tokens included
};

struct GateCondition {
  std::string name;      // "page_multiple"
  std::string required;  // "page % 64 = 0"
  bool holds = false;
  std::string got;  // "784 % 64 = 16"
};

// The conditions of the vendor_prefill gate, in order, judged for this model and shape.
std::vector<GateCondition> vendor_prefill_gate(const DispatchConfig& config, const AttentionTraits& traits,
                                               const AttentionShape& shape);

// The part of the gate that no step can change: the first failing condition of model, dtype and page, if any.
std::optional<GateCondition> vendor_prefill_obstacle(const DispatchConfig& config,
                                                     const AttentionTraits& traits);

std::string_view to_string(ops::AttentionPath path);  // "unified", "vendor_prefill", "page_contiguous_decode"

inline constexpr size_t kNumPaths = 3;
inline constexpr size_t kMaxConditions = 16;

struct DispatchCounters {
  std::array<int64_t, kNumPaths> hits{};         // by ops::AttentionPath
  std::array<int64_t, kMaxConditions> misses{};  // of vendor_prefill, by the first condition that failed
};
// The name of misses[i]; empty past the last condition.
std::string_view vendor_prefill_condition(size_t i);

// Owned by the engine thread. Counts every choice, logs each kind once, allocates only for that first line.
class Dispatcher final {
 public:
  Dispatcher(const DispatchConfig& config, const AttentionTraits& traits)
      : config_(config), traits_(traits) {}

  // Counts and logs from now on; before (warm-up) it only chooses.
  void start_counting() { counting_ = true; }

  ops::AttentionPath decode_path(const AttentionShape& shape);
  ops::AttentionPath prefill_path(const AttentionShape& shape);

  const DispatchConfig& config() const { return config_; }
  const AttentionTraits& traits() const { return traits_; }
  const DispatchCounters& counters() const { return counters_; }

 private:
  ops::AttentionPath hit(ops::AttentionPath path, const AttentionShape& shape);

  DispatchConfig config_;
  AttentionTraits traits_;
  bool counting_ = false;
  DispatchCounters counters_;
};

}  // namespace longspan::engine
