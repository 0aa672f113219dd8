// Cases of KernelCases that work on sequences: the cache, attention, convolution and the gated delta rule.
#include <algorithm>

#include "core/error.h"
#include "measure/kernel_cases.h"
#include "measure/kernel_memory.h"

namespace longspan::measure {
namespace {

using ops::Tables;

// The tables of equal sequences, host side and (on a device) there: what work_of() reads, what kernels read.
struct Batch {
  Batch(Memory& memory, Index num_seqs, Index q_len, Index kv_len, Index num_decode_seqs)
      : host_starts(DType::kI32, {num_seqs + 1}), host_lens(DType::kI32, {num_seqs}) {
    for (Index i = 0; i <= num_seqs; ++i)
      host_starts.view().as<int32_t>()[i] = static_cast<int32_t>(i * q_len);
    std::fill_n(host_lens.view().as<int32_t>(), num_seqs, static_cast<int32_t>(kv_len));
    starts = moved_to(memory, Buffer(DType::kI32, {num_seqs + 1}));
    lens = moved_to(memory, Buffer(DType::kI32, {num_seqs}));
    memory.upload(starts.data(), host_starts.data(), host_starts.size_bytes());
    memory.upload(lens.data(), host_lens.data(), host_lens.size_bytes());
    seqs = {starts.view(), lens.view(), num_seqs, num_decode_seqs};
    host_seqs = {host_starts.view(), host_lens.view(), num_seqs, num_decode_seqs};
  }

  Buffer host_starts, host_lens;  // i32 [num_seqs + 1], [num_seqs]
  Buffer starts, lens;
  ops::Sequences seqs;       // for the backend
  ops::Sequences host_seqs;  // the same numbers
};

struct AttentionProblem {
  AttentionProblem(Memory& memory, const KernelShapes& s, Index q_len, Index kv_len, Index copies)
      : batch(memory, copies, q_len, kv_len, q_len == 1 ? copies : 0) {
    const Index pages = (kv_len + s.page_tokens - 1) / s.page_tokens;
    const Index page_elements = 2 * s.page_tokens * s.num_kv_heads * s.head_dim;
    cache = moved_to(memory, random_matrix(DType::kBF16, {copies * pages * page_elements}));
    const Index width = s.num_q_heads * s.head_dim;
    rows = moved_to(memory, random_matrix(DType::kBF16, {q_len * copies, 2 * width}, 3));
    out = memory.allocate(DType::kBF16, {q_len * copies, s.num_q_heads, s.head_dim});
    // The pages of a sequence lie anywhere, as in a server that has run for a while.
    Buffer table(DType::kI32, {copies, pages});
    for (Index i = 0; i < copies * pages; ++i)
      table.view().as<int32_t>()[i] = static_cast<int32_t>(copies * pages - 1 - i);
    block_table = moved_to(memory, std::move(table));
    const TensorView all = rows.view().split_last(s.num_q_heads, 2 * s.head_dim);
    args = {.q = all.cols(0, s.head_dim),
            .gate = s.gated ? all.cols(s.head_dim, s.head_dim) : TensorView(),
            .block_table = block_table.view(),
            .kv = {.data = cache.data(),
                   .dtype = DType::kBF16,
                   .num_pages = copies * pages,
                   .page_stride_bytes = page_elements * 2,
                   .page_tokens = s.page_tokens,
                   .num_kv_heads = s.num_kv_heads,
                   .head_dim = s.head_dim},
            .seqs = batch.seqs,
            .num_seqs = 1,
            .scale = 1.0f / 16,
            .out = out.view()};
  }

  Batch batch;
  Buffer cache, rows, out, block_table;
  ops::Attention args;
};

struct StateProblem {
  StateProblem(Memory& memory, const KernelShapes& s, Index tokens, Index seqs, bool decode, Index copies)
      : batch(memory, seqs, tokens / seqs, tokens / seqs + 4096, decode ? seqs : 0) {
    const Index channels = 2 * s.num_k_heads * s.k_dim + s.num_v_heads * s.v_dim;
    const Index state_bytes = s.num_v_heads * s.k_dim * s.v_dim * 4;
    const Index stride = state_bytes + (s.conv_kernel - 1) * channels * 2;
    memory_of_states = moved_to(memory, random_matrix(DType::kF32, {copies * seqs * (stride / 4 + 1)}));
    state = {.data = memory_of_states.data(),
             .conv_dtype = DType::kBF16,
             .num_pages = copies * seqs,
             .page_stride_bytes = (stride + 3) / 4 * 4,
             .conv_offset_bytes = state_bytes,
             .num_v_heads = s.num_v_heads,
             .k_dim = s.k_dim,
             .v_dim = s.v_dim,
             .conv_kernel = s.conv_kernel,
             .conv_channels = channels};
    Buffer table(DType::kI32, {copies, seqs});
    for (Index i = 0; i < copies * seqs; ++i) table.view().as<int32_t>()[i] = static_cast<int32_t>(i);
    pages = moved_to(memory, std::move(table));
  }
  TensorView pages_of(Index copy) const {  // i32 [num_seqs]
    const Index seqs = batch.seqs.num_seqs;
    return TensorView(static_cast<int32_t*>(pages.data()) + copy % pages.view().dim(0) * seqs, DType::kI32,
                      {seqs});
  }

  Batch batch;
  Buffer memory_of_states, pages;
  ops::StateCache state;
  std::vector<Buffer> tensors;
};

Index state_page_bytes(const KernelShapes& s) { return s.num_v_heads * s.k_dim * s.v_dim * 4; }

}  // namespace

KernelPair KernelCases::attention(Index rows, Index kv_len) const {
  CHECK_MSG(rows >= 1 && rows <= kv_len, "attention: got {} rows of {} tokens", rows, kv_len);
  const KernelShapes& s = shapes_;
  const bool decode = rows == 1;
  const Index bytes = kv_len * s.num_kv_heads * s.head_dim * 4;
  // A prompt chunk reads its context once a tile of queries: it needs no cold copies, only room.
  const Index copies = decode ? copies_of(static_cast<size_t>(bytes)) : 1;
  auto problem = std::make_shared<AttentionProblem>(ops_.memory(), s, rows, kv_len, copies);
  const auto make = [&](ops::AttentionPath path) {
    ops::Attention host = problem->args;
    host.path = path;
    host.seqs = problem->batch.host_seqs;
    return KernelCase{.op = "attention",
                      .variant = std::string(ops::name_of(path)),
                      .shape = fmt::format("q {}, kv {}, heads {}/{} of {}", rows, kv_len, s.num_q_heads,
                                           s.num_kv_heads, s.head_dim),
                      .work = work_of(host, Tables::kHost),
                      .num_copies = copies,
                      .cold = static_cast<size_t>(copies * bytes) > cold_bytes_,
                      .run =
                          [this, problem, path, copies](Index i) {
                            ops::Attention args = problem->args;
                            args.path = path;
                            args.first_seq = i % copies;
                            ops_.attention(args);
                          },
                      .output =
                          [this, problem] {
                            std::vector<uint8_t> result(problem->out.size_bytes());
                            ops_.memory().download(result.data(), problem->out.data(), result.size());
                            return result;
                          }};
  };
  return {.a = make(ops::AttentionPath::kUnified),
          .b = make(decode ? ops::AttentionPath::kPageContiguousDecode : ops::AttentionPath::kVendorPrefill),
          .bits_equal = decode};
}

KernelCase KernelCases::qk_rope_write(Index rows) const {
  const KernelShapes& s = shapes_;
  const Index heads = s.num_q_heads + 2 * s.num_kv_heads;
  const size_t bytes = static_cast<size_t>(rows * heads * s.head_dim) * 2;
  const Index pages = (rows + s.page_tokens - 1) / s.page_tokens;
  const Index page_elements = 2 * s.page_tokens * s.num_kv_heads * s.head_dim;
  const Index copies = copies_of(bytes + static_cast<size_t>(pages * page_elements) * 2);
  auto ring = std::make_shared<Ring>(ops_.memory(), copies, DType::kBF16, Shape{rows, heads, s.head_dim});
  auto cache =
      std::make_shared<Buffer>(ops_.memory().allocate(DType::kBF16, {copies * pages * page_elements}));
  auto cos_sin = std::make_shared<Buffer>(here(random_matrix(DType::kF32, {rows, s.rotary_dim})));
  auto norm = std::make_shared<Buffer>(here(constant_matrix(DType::kF32, {s.head_dim}, 0.5f)));
  Buffer slot_table(DType::kI32, {copies, rows});
  for (Index copy = 0; copy < copies; ++copy)
    for (Index i = 0; i < rows; ++i)
      slot_table.view().as<int32_t>()[copy * rows + i] =
          static_cast<int32_t>(copy * pages * s.page_tokens + i);
  auto slots = std::make_shared<Buffer>(here(std::move(slot_table)));
  const auto args = [=](Index i) {
    const TensorView all = ring->at(i);
    const auto heads_of = [&](Index first, Index count) {
      TensorView view = all;
      view.data = static_cast<bf16*>(all.data) + first * s.head_dim;
      view.shape.dims[1] = count;
      return view;
    };
    return ops::QkRopeWrite{
        .q = heads_of(0, s.num_q_heads),
        .k = heads_of(s.num_q_heads, s.num_kv_heads),
        .v = heads_of(s.num_q_heads + s.num_kv_heads, s.num_kv_heads),
        .q_norm = norm->view(),
        .k_norm = norm->view(),
        .cos_sin = cos_sin->view(),
        .slots = TensorView(static_cast<int32_t*>(slots->data()) + i % copies * rows, DType::kI32, {rows}),
        .kv = {.data = cache->data(),
               .dtype = DType::kBF16,
               .num_pages = copies * pages,
               .page_stride_bytes = page_elements * 2,
               .page_tokens = s.page_tokens,
               .num_kv_heads = s.num_kv_heads,
               .head_dim = s.head_dim},
        .q_out = heads_of(0, s.num_q_heads)};
  };
  return {.op = "qk_rope_write",
          .shape = fmt::format("rows {}, heads {}/{} of {}", rows, s.num_q_heads, s.num_kv_heads, s.head_dim),
          .work = work_of(args(0), Tables::kHost),
          .num_copies = copies,
          .cold = true,
          .run = [this, args](Index i) { ops_.qk_rope_write(args(i)); }};
}

KernelCase KernelCases::causal_conv(Index rows, Rows kind) const {
  const KernelShapes& s = shapes_;
  const bool decode = kind == Rows::kDecode;
  const Index channels = 2 * s.num_k_heads * s.k_dim + s.num_v_heads * s.v_dim;
  const Index copies = copies_of(static_cast<size_t>(rows * channels) * 4);
  auto problem = std::make_shared<StateProblem>(ops_.memory(), s, rows, decode ? rows : 1, decode,
                                                std::min<Index>(copies, 64));
  auto ring = std::make_shared<Ring>(ops_.memory(), copies, DType::kBF16, Shape{2 * rows, channels});
  problem->tensors.push_back(here(constant_matrix(DType::kF32, {channels, s.conv_kernel}, 0.25f)));
  const auto args = [=](Index i) {
    const TensorView all = ring->at(i);
    return ops::CausalConv{.x = all.rows(0, rows),
                           .weight = problem->tensors[0].view(),
                           .state = problem->state,
                           .state_pages = problem->pages_of(i),
                           .seqs = problem->batch.seqs,
                           .out = all.rows(rows, rows)};
  };
  return {.op = "causal_conv",
          .variant = decode ? "decode" : "prefill",
          .shape = fmt::format("rows {}, channels {}", rows, channels),
          .work = work_of(args(0), Tables::kHost),
          .num_copies = copies,
          .cold = true,
          .run = [this, args](Index i) { ops_.causal_conv(args(i)); }};
}

KernelCase KernelCases::gated_delta(Index rows, Rows kind) const {
  const KernelShapes& s = shapes_;
  const bool decode = kind == Rows::kDecode;
  const Index seqs = decode ? rows : 1;
  const Index copies = copies_of(static_cast<size_t>(seqs * state_page_bytes(s)));
  auto problem = std::make_shared<StateProblem>(ops_.memory(), s, rows, seqs, decode, copies);
  const Index keys = s.num_k_heads, values = s.num_v_heads;
  const auto add = [&](DType dtype, Shape shape, uint32_t seed) {
    problem->tensors.push_back(here(random_matrix(dtype, shape, seed)));
  };
  add(DType::kBF16, {rows, keys, s.k_dim}, 1);     // q
  add(DType::kBF16, {rows, keys, s.k_dim}, 2);     // k
  add(DType::kBF16, {rows, values, s.v_dim}, 3);   // v
  add(DType::kBF16, {rows, values, s.v_dim}, 4);   // z
  add(DType::kBF16, {rows, values}, 5);            // a
  add(DType::kBF16, {rows, values}, 6);            // b
  add(DType::kF32, {values}, 7);                   // a_log
  add(DType::kF32, {values}, 8);                   // dt_bias
  add(DType::kF32, {s.v_dim}, 9);                  // norm
  add(DType::kBF16, {rows, values, s.v_dim}, 10);  // out
  const auto args = [problem](Index i) {
    const std::vector<Buffer>& t = problem->tensors;
    return ops::GatedDelta{.q = t[0].view(),
                           .k = t[1].view(),
                           .v = t[2].view(),
                           .z = t[3].view(),
                           .a = t[4].view(),
                           .b = t[5].view(),
                           .a_log = t[6].view(),
                           .dt_bias = t[7].view(),
                           .norm = t[8].view(),
                           .state = problem->state,
                           .state_pages = problem->pages_of(i),
                           .seqs = problem->batch.seqs,
                           .out = t[9].view()};
  };
  return {.op = "gated_delta",
          .variant = decode ? "decode" : "prefill",
          .shape = fmt::format("rows {}, heads {}/{} of {}x{}", rows, keys, values, s.k_dim, s.v_dim),
          .work = work_of(args(0), Tables::kHost),
          .num_copies = copies,
          .cold = true,
          .run = [this, args](Index i) { ops_.gated_delta(args(i)); }};
}

}  // namespace longspan::measure
