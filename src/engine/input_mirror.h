// InputMirror: a step's arrays in the memory of the operations; on the host none. They get there in one copy
// a step, or, while one sequence decodes and its tokens are chosen on the device, without one: the arrays of
// the last step are moved on where they are, and only a table that has grown is copied.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "cache/page_plan.h"
#include "core/memory.h"
#include "model/step.h"

namespace longspan::engine {

// Why a step's arrays were copied; the first that holds.
enum class UploadReason : uint8_t {
  kNotSteady,    // they were prepared in the general way (InputCounters says why)
  kTokenOnHost,  // the last token was not chosen on the device, or replaced
};
inline constexpr size_t kNumUploadReasons = 2;
std::string_view upload_reason(size_t i);  // "not_steady", ...; the name of uploads[i]

struct MirrorCounters {
  int64_t num_advanced = 0;       // steps without a copy of the arrays
  int64_t num_table_uploads = 0;  // of those steps: tables that had changed
  std::array<int64_t, kNumUploadReasons> uploads{};
};

// Not thread-safe. `memory` outlives it.
class InputMirror final {
 public:
  InputMirror(Memory& memory, const cache::PagePlan& plan, int64_t max_tokens, int64_t max_seqs,
              int64_t max_model_len);

  // The gate: both must hold.
  struct Gate {
    bool steady = false;        // the inputs are the last step's, one token further (InputBatch::is_steady)
    int32_t chosen_token = -1;  // what the device chose in the last step; -1: nothing
  };
  // The same inputs with every view in the mirror; `host` itself where that is the host's. Valid until the
  // next call.
  const model::StepInputs& update(const model::StepInputs& host, const Gate& gate);
  // Whether the mirror still holds the last step's arrays: then advance() comes before the operations of this
  // one. tokens: i32 [1], chosen by the last.
  bool is_behind() const { return is_behind_; }
  void advance(ops::Ops& ops, const TensorView& tokens) const;

  // Counts and logs from now on (not during the warm-up).
  void start_counting() { counting_ = true; }
  const MirrorCounters& counters() const { return counters_; }

 private:
  void upload(const model::StepInputs& host);
  void add(TensorView& view);
  void follow(const model::StepInputs& host);
  void refresh(const TensorView& host, const TensorView& mirrored);

  Memory& memory_;
  Index page_tokens_;
  Buffer staging_;  // what lies in device_, but for what a kernel wrote there
  Buffer device_;
  size_t used_bytes_ = 0;
  model::StepInputs inputs_;
  bool is_behind_ = false;
  bool counting_ = false;
  MirrorCounters counters_;
};

// A copy of a step's arrays in host memory, for tests and benches.
struct InputCopy {
  std::vector<Buffer> memory;
  model::StepInputs inputs;
};
InputCopy copy_to_host(Memory& memory, const model::StepInputs& inputs);

}  // namespace longspan::engine
