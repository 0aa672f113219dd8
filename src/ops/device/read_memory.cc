// A plain reader: what a card can read at most, for others to be measured against.
#include "ops/device/kernels.h"
#include "ops/device/launch.h"

namespace longspan::ops::device {
namespace {

// Every thread takes words of 16 bytes, a grid's width apart. bytes moved: all of the tensor, once.
struct ReadMemoryKernel {
  static constexpr int kThreads = 512;
  static constexpr int kWords = 8;  // in flight

  Global<uint32_t> data;  // [4 * num_words]
  int64_t num_words;
  Global<uint32_t> sink;  // [1], never written: what is read must seem to matter

  DEVICE_FN void operator()() const {
    const int64_t step = int64_t{grid_size().x} * kThreads;
    uint32_t bits = 0;
    for (int64_t first = int64_t{block_idx().x} * kThreads + thread_idx(); first < num_words;
         first += kWords * step) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const int64_t word = first + i * step;
        if (word >= num_words) break;
        const Vec<uint32_t, 4> read = data.stream<4>(4 * word);
        bits |= (read.v[0] ^ read.v[1]) & (read.v[2] ^ read.v[3]) & 1u;
      }
    }
    if (bits > 1u) sink.put(0, bits);
  }
};

}  // namespace

void read_memory(const Context& context, const TensorView& view) {
  const auto size_bytes = static_cast<int64_t>(view.size_bytes());
  CHECK_MSG(size_bytes % 16 == 0, "[read_memory] size: got {} bytes, need a multiple of 16", size_bytes);
  constexpr int kBlocksPerUnit = 16;
  const Grid grid{std::min(context.device.info().num_units * kBlocksPerUnit,
                           ceil_div(size_bytes / 16, ReadMemoryKernel::kThreads))};
  launch(context.device, {.name = "read_memory", .grid = grid, .bytes = static_cast<double>(size_bytes)},
         ReadMemoryKernel{global<uint32_t>(view),
                          size_bytes / 16,
                          {static_cast<uint32_t*>(context.scratch.reserve(sizeof(uint32_t)))}});
}

}  // namespace longspan::ops::device
