// K and V of one sequence's FP8 cache as T, once a layer and prompt chunk: every query tile reads them again.
#include "ops/device/backend.h"
#include "ops/device/kernels.h"
#include "ops/device/kv_reader.h"
#include "ops/device/launch.h"

namespace longspan::ops::device {
namespace {

constexpr Index kFewRows = 64;  // of q: fewer read the codes themselves
constexpr int kCodes = 16;      // of a word

// Block (part of a page, page): pages of the sequence in their order, as codes are laid out. Bound by memory.
template <class T>
struct UnpackKvKernel {
  static constexpr int kThreads = 256;
  static constexpr int kParts = 8;  // of a page
  PagedKv<e4m3_t> kv;
  Matrix<int32_t> block_table;  // [num_seqs, max_pages]
  SeqTable seqs;
  int seq_idx;
  Global<T> out;          // [max_pages, 2, page_tokens, num_kv_heads, head_dim]
  Global<int32_t> table;  // [max_pages], their numbers in out

  DEVICE_FN void operator()() const {
    const int page = block_idx().y;
    const int left = seqs.seq_lens.get(seq_idx) - page * kv.page_tokens;
    if (left <= 0) return;
    if (block_idx().x == 0 && thread_idx() == 0) table.put(page, page);
    const int num_tokens = left < kv.page_tokens ? left : kv.page_tokens;
    const int64_t from_page = block_table.row(seq_idx).get(page) * kv.page_stride;
    const int row = kv.num_kv_heads * kv.head_dim;
    for (int plane = 0; plane < 2; ++plane) {
      const int64_t plane_at = static_cast<int64_t>(plane) * kv.page_tokens * row;
      const Global<e4m3_t> codes = kv.data + (from_page + plane_at);
      const Global<T> to = out + (2 * static_cast<int64_t>(page) * kv.page_tokens * row + plane_at);
      for (int i = (block_idx().x * kThreads + thread_idx()) * kCodes; i < num_tokens * row;
           i += kParts * kThreads * kCodes)
        unpack(codes.load<kCodes>(i), kv.scale(plane, i % row / kv.head_dim), to + i);
    }
  }

  static DEVICE_FN void unpack(const Vec<e4m3_t, kCodes>& codes, float scale, Global<T> to) {
    const KvReader<T, e4m3_t, false> read{scale};
#pragma unroll
    for (int i = 0; i < kCodes; i += kVec<T>) {
      Vec<T, kVec<T>> word;
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) word.v[e] = from_float<T>(read(codes.v[i + e]));
      to.template store<kVec<T>>(i, word);
    }
  }
};

}  // namespace

void unpack_kv(const Context& context, Attention& args) {
  const KvCache& kv = args.kv;
  if (kv.dtype != DType::kF8E4M3 || args.num_seqs != 1 || kv.head_dim % kCodes != 0) return;
  if (!paged_kv<e4m3_t>(kv).words || args.q.dim(0) - args.first_seq < kFewRows) return;
  const DType dtype = args.q.dtype;
  const Index max_pages = args.block_table.dim(1);
  const Index page_bytes =
      2 * kv.page_tokens * kv.num_kv_heads * kv.head_dim * static_cast<Index>(dtype_size(dtype));
  const TensorView& room = context.unpacked_kv;
  if (room.empty() || static_cast<Index>(room.size_bytes()) < unpacked_kv_bytes(max_pages, page_bytes))
    return;
  char* const pages = static_cast<char*>(room.data);
  TensorView table(pages + max_pages * page_bytes, DType::kI32, {args.first_seq + 1, max_pages});
  table.strides[0] = 0;  // one row, of whichever sequence
  dispatch_element(dtype, [&]<class T>() {
    using Kernel = UnpackKvKernel<T>;
    launch(context.device, {.name = "unpack_kv", .grid = {Kernel::kParts, static_cast<int>(max_pages)}},
           Kernel{.kv = paged_kv<e4m3_t>(kv),
                  .block_table = matrix<int32_t>(args.block_table),
                  .seqs = seq_table(args.seqs),
                  .seq_idx = static_cast<int>(args.first_seq),
                  .out = {static_cast<T*>(room.data)},
                  .table = global<int32_t>(table)});
  });
  args.kv = {.data = pages,
             .dtype = dtype,
             .num_pages = max_pages,
             .page_stride_bytes = page_bytes,
             .page_tokens = kv.page_tokens,
             .num_kv_heads = kv.num_kv_heads,
             .head_dim = kv.head_dim};
  args.block_table = table;
}

}  // namespace longspan::ops::device
