// Random weights, drawn where they are wanted: 27 billion numbers take the host minutes.
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/weight.h"

namespace longspan::ops::device {
namespace {

// splitmix64 of a counter; a value is the sum of its four 16-bit parts. The same bits as the host's.
DEVICE_FN float random_normal(uint64_t x, float deviation) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  x ^= x >> 31;
  const auto sum = static_cast<float>((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
  return (sum / 65535.0f - 2.0f) * 1.7320508f * deviation;
}

// Block: one row.
template <class Stored, class T>
struct RandomRowsKernel {
  static constexpr int kThreads = 256;
  Matrix<T> out;  // [num_rows, n], padded with zeros to the stride
  uint64_t key;
  int64_t n;
  float deviation;

  DEVICE_FN void operator()() const {
    const int64_t row = block_idx().x;
    for (int64_t j = thread_idx(); j < out.stride; j += kThreads) {
      const float value =
          j < n ? rounded<Stored>(random_normal(key + static_cast<uint64_t>(row * n + j), deviation)) : 0.0f;
      out.row(row).set(j, value);
    }
  }
};

}  // namespace

std::unique_ptr<Weight> pack_random(const Context& context, std::span<const RandomRows> parts,
                                    Index in_features, DType stored, DType dtype, float deviation) {
  Index n = 0;
  for (const RandomRows& part : parts) n += part.num_rows;
  const Index stride = padded_columns(in_features, dtype);
  auto weight =
      std::make_unique<DeviceWeight>(context.device.allocate(dtype, {n, stride}), n, in_features, stride);
  Index row = 0;
  for (const RandomRows& part : parts) {
    const TensorView rows = weight->view().rows(row, part.num_rows);
    row += part.num_rows;
    dispatch_element(stored, [&]<class Stored>() {
      dispatch_element(dtype, [&]<class T>() {
        launch(context.device, {.name = "random_rows", .grid = {static_cast<int>(part.num_rows)}},
               RandomRowsKernel<Stored, T>{matrix<T>(rows), part.key, in_features, deviation});
      });
    });
  }
  return weight;
}

}  // namespace longspan::ops::device
