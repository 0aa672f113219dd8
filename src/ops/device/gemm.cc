// out = x W^T for many rows, without matrix units: what is left where the vendor brings no library.
#include "ops/device/gemm.h"

#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/weight.h"

namespace longspan::ops::device {
namespace {

// Block: a tile of kTile x kTile outputs, a thread 4 x 4 of them. Both operands go through shared memory in
// steps of kStep of K, as floats, transposed. Each sum runs over K in order: it depends on K alone.
template <class T>
struct GemmKernel {
  static constexpr int kThreads = 256;
  static constexpr int kTile = 64;
  static constexpr int kStep = 16;
  static constexpr int kPitch = kTile + 4;
  static constexpr size_t kSharedBytes = 2 * shared_bytes<float>(kStep * kPitch);

  Matrix<T> x;         // [m, k] in whole words
  Matrix<T> weight;    // [n, k] in whole words, zero-padded
  Global<float> bias;  // [n] or empty
  Matrix<T> out;       // [m, n]
  int m;
  int n;
  int k;  // whole words

  DEVICE_FN void operator()() const {
    SharedPool pool;
    const Shared<float> xs = pool.take<float>(kStep * kPitch);
    const Shared<float> ws = pool.take<float>(kStep * kPitch);
    const int row0 = block_idx().x * kTile;
    const int col0 = block_idx().y * kTile;
    const int ty = thread_idx() / 16;  // rows 4 ty .. 4 ty + 3 of the tile
    const int tx = thread_idx() % 16;
    float sums[4][4] = {};
    for (int k0 = 0; k0 < k; k0 += kStep) {
      load_tile(x, row0, m, k0, xs);
      load_tile(weight, col0, n, k0, ws);
      block_sync();
#pragma unroll
      for (int kk = 0; kk < kStep; ++kk) {
        const Vec<float, 4> a = xs.load<4>(kk * kPitch + 4 * ty);
        const Vec<float, 4> b = ws.load<4>(kk * kPitch + 4 * tx);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) sums[i][j] += a.v[i] * b.v[j];
      }
      block_sync();
    }
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) {
        const int row = row0 + 4 * ty + i;
        const int col = col0 + 4 * tx + j;
        if (row >= m || col >= n) continue;
        out.row(row).set(col, bias.empty() ? sums[i][j] : sums[i][j] + bias.get(col));
      }
  }

  // Rows row0 .. of a [rows, k] matrix, columns k0 .. k0 + kStep, to tile[kk][row]; zero outside.
  DEVICE_FN void load_tile(const Matrix<T>& from, int row0, int num_rows, int k0, Shared<float> tile) const {
    constexpr int kWords = kStep / kVec<T>;  // of a row
    for (int i = thread_idx(); i < kTile * kWords; i += kThreads) {
      const int row = i / kWords;
      const int kk = i % kWords * kVec<T>;
      const bool inside = row0 + row < num_rows && k0 + kk < k;
      Vec<T, kVec<T>> word{};
      if (inside) word = from.row(row0 + row).template load<kVec<T>>(k0 + kk);
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) tile.put((kk + e) * kPitch + row, to_float(word.v[e]));
    }
  }
};

}  // namespace

void gemm(const Context& context, const Matmul& args) { gemm(context.device, args); }

void gemm(Device& device, const Matmul& args) {
  const DeviceWeight& weight = device_weight(args.weight);
  dispatch_element(args.x.dtype, [&]<class T>() {
    using Kernel = GemmKernel<T>;
    const Index m = args.x.dim(0);
    const Index n = weight.out_features;
    launch(device,
           {.name = "gemm",
            .grid = {ceil_div(m, Kernel::kTile), ceil_div(n, Kernel::kTile)},
            .shared_bytes = Kernel::kSharedBytes,
            .bytes = static_cast<double>(weight.size_bytes() + args.x.size_bytes() + args.out.size_bytes()),
            .flops = 2.0 * static_cast<double>(m * n * weight.in_features)},
           Kernel{.x = matrix<T>(args.x),
                  .weight = matrix<T>(weight.view()),
                  .bias = global<float>(args.bias),
                  .out = matrix<T>(args.out),
                  .m = static_cast<int>(m),
                  .n = static_cast<int>(n),
                  .k = static_cast<int>(weight.stride())});
  });
}

}  // namespace longspan::ops::device
