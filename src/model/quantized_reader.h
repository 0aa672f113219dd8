// One quantised linear layer of a checkpoint in the neutral form of the operations. Knows the published bit
// layouts (MODEL 4.1 to 4.4); models do not.
#pragma once

#include <vector>

#include "core/buffer.h"
#include "core/thread_pool.h"
#include "io/quantized_linear.h"
#include "io/tensor_store.h"
#include "ops/ops.h"

namespace longspan::model {

// Views point into `owned` or into the store.
struct QuantizedLinear {
  ops::QuantizedPart part;
  std::vector<Buffer> owned;
};

// `layout` is find_linear()'s of a quantised layer. Throws kInvalid naming the tensor for scales that are not
// finite, FP8 codes that are NaN, and group indices out of range or against desc_act = false; each time the
// first element that is, whatever the number of threads. Pages of codes that were turned around are let go.
QuantizedLinear read_quantized(const io::TensorStore& store, const io::QuantConfig& config,
                               const io::LinearLayout& layout, ThreadPool& pool);

// Its part before it is read: views with dtype and shape but no values, except group_of.
ops::QuantizedPart shape_of_quantized(const io::TensorStore& store, const io::QuantConfig& config,
                                      const io::LinearLayout& layout);
// A view that says how large, and points nowhere.
TensorView shape_only(DType dtype, Shape shape);

}  // namespace longspan::model
