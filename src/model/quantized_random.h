// A random linear layer in few bits: a quantised model's shape and speed without its file.
#pragma once

#include "model/quantized_reader.h"

namespace longspan::model {

// Rows [out_features, in_features] with about the given deviation, the same for the same key: 4-bit codes
// with f16 scales in the config's groups, and zeros where it is not symmetric; or FP8 codes in its blocks.
// Throws kUnsupported for a config of another kind, with what it says. The bits do not depend on the threads.
QuantizedLinear random_quantized(uint64_t key, const io::QuantConfig& config, Index out_features,
                                 Index in_features, float deviation, ThreadPool& pool);

// Whether it is that kind.
bool can_draw(const io::QuantConfig& config);
// Its part before it is drawn, as shape_of_quantized(); the same errors.
ops::QuantizedPart shape_of_random(const io::QuantConfig& config, Index out_features, Index in_features);

}  // namespace longspan::model
