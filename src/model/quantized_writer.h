// Round-to-nearest INT4 of one linear layer, in a published bit layout (MODEL 4.1, 4.3). The other direction
// of quantized_reader.h.
#pragma once

#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/thread_pool.h"

namespace longspan::model {

enum class PackedLayout : uint8_t { kAwq, kCompressedTensors };

struct QuantizeOptions {
  PackedLayout layout = PackedLayout::kAwq;
  Index group_size = 128;  // input elements that share a scale; a divisor of K
  bool symmetric = false;  // zero is code 8; else each group has its own
};

// The tensors of a layer: names are ".qweight", ... to stand behind the module's.
struct PackedLinear {
  struct Tensor {
    std::string suffix;
    Buffer buffer;
  };
  std::vector<Tensor> tensors;
  double squared_error = 0;  // sum of (W - Q)^2, and of W^2
  double squared_norm = 0;
  float largest_error = 0;

  double relative_error() const;  // sqrt of their ratio; 0 for a layer of zeros
};

// Whether a layer [N, K] fits: K in whole groups, for AWQ N in whole words of eight.
bool can_quantize(Index out_features, Index in_features, const QuantizeOptions& options);

// weight float [N, K], finite. Scales are float16 in AWQ, bfloat16 in compressed-tensors; codes are those of
// the stored, rounded scale. Neither a code nor a sum of errors depends on the number of threads.
PackedLinear quantize(const TensorView& weight, const QuantizeOptions& options, ThreadPool& pool);

}  // namespace longspan::model
