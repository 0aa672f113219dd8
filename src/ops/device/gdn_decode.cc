// One token of the gated delta rule: S <- alpha S; d = beta (v - k^T S); S <- S + k d^T; o = q^T S.
#include "ops/device/gdn.h"

namespace longspan::ops::device {
namespace {

// Where a head's S of this token also goes, or nothing.
template <class T>
DEVICE_FN Global<float> saved_state(const StatePages<T>& state, Global<StateCheckpoint> checkpoints,
                                    int count, int seq_idx, int num_tokens, int head) {
  const int page = checkpoint_page(checkpoints, count, seq_idx, num_tokens);
  return page < 0 ? Global<float>{} : state.s(page, head);
}

// Block (value head, sequence), heads of kDim x kDim. S passes through registers, read once and written once:
// a thread owns four columns of kRows rows. They are on their way before the inputs are there.
template <int kWave, class T>
struct GdnDecodeFastKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 512;
  static constexpr int kDim = 128;
  static constexpr int kParts = kThreads * 4 / kDim;  // of a column
  static constexpr int kRows = kDim / kParts;
  static constexpr size_t kSharedBytes = shared_bytes<float>(kParts * kDim) + 3 * shared_bytes<float>(kDim) +
                                         shared_bytes<float>(kThreads / kWave);
  using Quad = Vec<float, 4>;

  GdnInputs<T> in;
  GatedNorm<T> norm;
  Global<StateCheckpoint> checkpoints;
  int num_checkpoints;

  DEVICE_FN void operator()() const {
    release_next();
    SharedPool pool;
    const Shared<float> parts = pool.take<float>(kParts * kDim);
    const Shared<float> qs = pool.take<float>(kDim);
    const Shared<float> ks = pool.take<float>(kDim);
    const Shared<float> ds = pool.take<float>(kDim);
    const Shared<float> scratch = pool.take<float>(kThreads / kWave);
    const int head = block_idx().x;
    const int seq_idx = block_idx().y;
    const int thread = thread_idx();
    const int row = in.seqs.query_start_loc.get(seq_idx);
    const int context_len = in.seqs.seq_lens.get(seq_idx) - 1;
    const bool fresh = context_len == 0;
    const int64_t first = (thread / (kDim / 4)) * kRows * kDim + thread % (kDim / 4) * 4;
    const Global<float> s = in.state.s(in.pages.get(seq_idx), head) + first;
    Quad held[kRows];  // no kernel of this step writes S before this one
#pragma unroll
    for (int i = 0; i < kRows; ++i) held[i] = s.load<4>(i * kDim);
    const bool owns_column = thread < kDim;
    const float weight = owns_column ? norm.norm.get(thread) : 0.0f;
    await_previous();

    const float v = owns_column ? in.v.row(row, head).at(thread) : 0.0f;
    const float z = owns_column ? norm.z.row(row, head).at(thread) : 0.0f;
    const int key_head = head / in.heads_per_key;
    if (Wave<kWave>::index() == 0) load_unit(in.q.row(row, key_head), qs, 1.0f / sqrtf(float{kDim}));
    if (Wave<kWave>::index() == 1) load_unit(in.k.row(row, key_head), ks, 1.0f);
    const float alpha = fresh ? 0.0f : expf(in.log_decay(row, head));
    const float beta = in.beta(row, head);
    block_sync();

    const int first_row = thread / (kDim / 4) * kRows;
    Quad sum{};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float k = ks.get(first_row + i);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        held[i].v[e] = fresh ? 0.0f : alpha * held[i].v[e];
        sum.v[e] += k * held[i].v[e];
      }
    }
    const float memory = sum_parts(sum, parts);
    if (owns_column) ds.put(thread, beta * (v - memory));
    block_sync();

    const Global<float> saved =
        saved_state(in.state, checkpoints, num_checkpoints, seq_idx, context_len + 1, head);
    const Quad d = ds.load<4>(thread % (kDim / 4) * 4);
    sum = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float k = ks.get(first_row + i);
      const float q = qs.get(first_row + i);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        held[i].v[e] += k * d.v[e];
        sum.v[e] += q * held[i].v[e];
      }
      s.store<4>(i * kDim, held[i]);
      if (!saved.empty()) (saved + first).store<4>(i * kDim, held[i]);
    }
    const float o = sum_parts(sum, parts);
    const float squares = block_sum<kWave, kThreads>(owns_column ? o * o : 0.0f, scratch);
    if (owns_column) norm.write(row, head, thread, o * norm.scale(squares) * weight, z);
  }

  // to = x / |x| * scale, by one wave. Needs a block_sync() before it is read.
  static DEVICE_FN void load_unit(Global<T> x, Shared<float> to, float scale) {
    constexpr int kCount = kDim / kWave;
    float values[kCount], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = x.at(Wave<kWave>::lane() + i * kWave);
      squares += values[i] * values[i];
    }
    const float size = sqrtf(Wave<kWave>::sum(squares) + 1e-6f);
#pragma unroll
    for (int i = 0; i < kCount; ++i) to.put(Wave<kWave>::lane() + i * kWave, values[i] / size * scale);
  }

  // Of column `thread` over its parts, in order; the threads from kDim on get nothing.
  static DEVICE_FN float sum_parts(Quad sum, Shared<float> parts) {
    parts.store<4>(thread_idx() * 4, sum);
    block_sync();
    float total = 0.0f;
    if (thread_idx() < kDim)
#pragma unroll
      for (int i = 0; i < kParts; ++i) total += parts.get(i * kDim + thread_idx());
    return total;
  }
};

// Heads of any size. Block (value head, sequence). A thread owns one column of S and a quarter of its rows; S
// is read twice, the second time from the first-level cache, and written once. Bound by memory: 2 x 64 KiB a
// head of 128 x 128.
template <int kWave, class T>
struct GdnDecodeKernel {
  static constexpr int kThreads = 512;
  static constexpr int kColumns = 128;
  static constexpr int kParts = kThreads / kColumns;  // of a column

  GdnInputs<T> in;
  GatedNorm<T> norm;
  Global<StateCheckpoint> checkpoints;
  int num_checkpoints;

  static size_t shared_size(int64_t k_dim, int64_t v_dim) {
    return 2 * shared_bytes<float>(k_dim) + shared_bytes<float>(v_dim) + shared_bytes<float>(kThreads) +
           3 * shared_bytes<float>(kThreads / kWave);
  }

  DEVICE_FN void operator()() const {
    const int head = block_idx().x;
    const int seq_idx = block_idx().y;
    const StatePages<T>& state = in.state;
    SharedPool pool;
    const Shared<float> qs = pool.take<float>(state.k_dim);
    const Shared<float> ks = pool.take<float>(state.k_dim);
    const Shared<float> os = pool.take<float>(state.v_dim);
    const Shared<float> parts = pool.take<float>(kThreads);
    const Shared<float> scratch = pool.take<float>(3 * (kThreads / kWave));

    const int row = in.seqs.query_start_loc.get(seq_idx);
    const int context_len = in.seqs.seq_lens.get(seq_idx) - 1;
    load_unit(in.q.row(row, head / in.heads_per_key), qs, scratch, rsqrt_of(state.k_dim));
    load_unit(in.k.row(row, head / in.heads_per_key), ks, scratch + kThreads / kWave, 1.0f);
    block_sync();

    const float alpha = context_len == 0 ? 0.0f : expf(in.log_decay(row, head));
    const float beta = in.beta(row, head);
    const Global<float> s = state.s(in.pages.get(seq_idx), head);
    const Global<float> saved =
        saved_state(state, checkpoints, num_checkpoints, seq_idx, context_len + 1, head);
    float squares = 0.0f;
    for (int c0 = 0; c0 < state.v_dim; c0 += kColumns) {
      const int c = c0 + thread_idx() % kColumns;
      const float o =
          update_column(s, saved, c, alpha, beta, context_len == 0, in.v.row(row, head), qs, ks, parts);
      if (thread_idx() < kColumns && c < state.v_dim) {
        os.put(c, o);
        squares += o * o;
      }
    }
    const float scale = norm.scale(block_sum<kWave, kThreads>(squares, scratch + 2 * (kThreads / kWave)));
    for (int c = thread_idx(); c < state.v_dim; c += kThreads)
      norm.write(row, head, c, os.get(c) * scale * norm.norm.get(c), norm.z.row(row, head).at(c));
  }

  static DEVICE_FN float rsqrt_of(int n) { return 1.0f / sqrtf(static_cast<float>(n)); }

  // to = x / |x| * scale. Needs a block_sync() before it is read.
  DEVICE_FN void load_unit(Global<T> x, Shared<float> to, Shared<float> scratch, float scale) const {
    float squares = 0.0f;
    for (int i = thread_idx(); i < in.state.k_dim; i += kThreads) squares += x.at(i) * x.at(i);
    squares = block_sum<kWave, kThreads>(squares, scratch);
    const float size = sqrtf(squares + 1e-6f);
    for (int i = thread_idx(); i < in.state.k_dim; i += kThreads) to.put(i, x.at(i) / size * scale);
  }

  // o[c] for the first kColumns threads; anything for the others. Columns beyond v_dim take part in barriers.
  DEVICE_FN float update_column(Global<float> s, Global<float> saved, int c, float alpha, float beta,
                                bool fresh, Global<T> v, Shared<float> qs, Shared<float> ks,
                                Shared<float> parts) const {
    const int k_dim = in.state.k_dim;
    const int v_dim = in.state.v_dim;
    const int part = thread_idx() / kColumns;
    const int begin = k_dim * part / kParts;
    const int end = c < v_dim ? k_dim * (part + 1) / kParts : begin;
    float memory = 0.0f;
    if (!fresh)
      for (int i = begin; i < end; ++i)
        memory += ks.get(i) * (alpha * s.get(static_cast<int64_t>(i) * v_dim + c));
    memory = sum_parts(memory, parts);
    const float d = c < v_dim ? beta * (v.at(c) - memory) : 0.0f;
    float o = 0.0f;
    for (int i = begin; i < end; ++i) {
      const int64_t at = static_cast<int64_t>(i) * v_dim + c;
      const float value = (fresh ? 0.0f : alpha * s.get(at)) + ks.get(i) * d;
      s.put(at, value);
      if (!saved.empty()) saved.put(at, value);
      o += qs.get(i) * value;
    }
    return sum_parts(o, parts);
  }

  // Sum over the parts of a column, in order.
  DEVICE_FN float sum_parts(float value, Shared<float> parts) const {
    block_sync();  // the last sum is read
    parts.put(thread_idx(), value);
    block_sync();
    float sum = 0.0f;
    for (int i = 0; i < kParts; ++i) sum += parts.get(i * kColumns + thread_idx() % kColumns);
    return sum;
  }
};

}  // namespace

void gdn_decode(const Context& context, const GatedDelta& args) {
  const StateCache& state = args.state;
  const double state_bytes = static_cast<double>(args.seqs.num_decode_seqs * state.num_v_heads * state.k_dim *
                                                 state.v_dim * static_cast<Index>(sizeof(float)));
  dispatch_element(args.q.dtype, [&]<class T>() {
    dispatch_wave(context.device, [&]<int kWave>() {
      const auto run = [&]<class Kernel>(size_t shared) {
        launch(context.device,
               {.name = "gdn_decode",
                .grid = {static_cast<int>(state.num_v_heads), static_cast<int>(args.seqs.num_decode_seqs)},
                .shared_bytes = shared,
                .bytes = 2 * state_bytes},
               Kernel{.in = gdn_inputs<T>(args),
                      .norm = gated_norm<T>(args),
                      .checkpoints = upload_checkpoints(context, args.checkpoints),
                      .num_checkpoints = static_cast<int>(args.checkpoints.size())});
      };
      using Fast = GdnDecodeFastKernel<kWave, T>;
      using Plain = GdnDecodeKernel<kWave, T>;
      // S is whole words: its pages are.
      const bool words =
          reinterpret_cast<uintptr_t>(state.data) % 16 == 0 && state.page_stride_bytes % 16 == 0;
      if (words && state.k_dim == Fast::kDim && state.v_dim == Fast::kDim)
        run.template operator()<Fast>(Fast::kSharedBytes);
      else
        run.template operator()<Plain>(Plain::shared_size(state.k_dim, state.v_dim));
    });
  });
}

}  // namespace longspan::ops::device
