// InputMirror: a step's arrays in the memory of the operations. One copy a step; on the host none.
#pragma once

#include "cache/page_plan.h"
#include "core/memory.h"
#include "model/step.h"

namespace longspan::engine {

// Not thread-safe. `memory` outlives it.
class InputMirror final {
 public:
  InputMirror(Memory& memory, const cache::PagePlan& plan, int64_t max_tokens, int64_t max_seqs,
              int64_t max_model_len);

  // The same inputs with every view in the mirror; `host` itself where that is the host's. Valid until the
  // next call.
  const model::StepInputs& upload(const model::StepInputs& host);

 private:
  void add(TensorView& view);

  Memory& memory_;
  Buffer staging_;
  Buffer device_;
  size_t used_bytes_ = 0;
  model::StepInputs inputs_;
};

}  // namespace longspan::engine
