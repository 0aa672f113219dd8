// Attention of decode rows: one query token, K and V read once at memory speed. A sequence's keys are cut
// into segments whose borders depend on its own length alone; a task is one segment under one kv head with
// its query heads; a second loop merges the segments in order.
//
// The page-contiguous path looks a page up once and walks it; the unified path looks up every 16 rows. Both
// hand runs of rows to the same loops, and a run's length changes no order of summation: same bits.
// fp32 multiply-adds from cache take 55 ns a key at head_dim 256 and 4 heads, 90 ns at 6 (AVX-512, one
// thread); reading its 1 KB takes 80 ns at 12.5 GB/s.
#include <hwy/cache_control.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_decode.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "ops/cpu/attention_decode.h"
#include "ops/cpu/softmax.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::ops::cpu::HWY_NAMESPACE {

// Keys whose scores meet in one softmax step: a block's K and V stay in the first-level cache, of which every
// second KB is theirs when two heads share a row.
constexpr Index kBlockKeys = HWY_TARGET == HWY_AVX3 ? 64 : 16;
constexpr Index kLineBytes = 64;
// Vectors of each query head's sums held in registers, beside as many of values and one weight.
template <int kHeads>
inline constexpr int kSumVectors = HWY_TARGET == HWY_AVX3 ? (kHeads <= 4 ? 4 : 2)
                                   : kHeads <= 2          ? 4
                                   : kHeads <= 6          ? 2
                                                          : 1;

template <class E>
HWY_INLINE void prefetch_row(const E* row, Index head_dim) {
  for (Index d = 0; d < head_dim; d += kLineBytes / static_cast<Index>(sizeof(E))) hwy::Prefetch(row + d);
}

// Elements of the cache as T has them; codes times `scale`, which 1 leaves exact.
template <class T, class E, class Extent>
HWY_INLINE Vec load_cached(const E* from, Extent extent, float scale) {
  const Vec value = load(from, extent);
  if constexpr (!std::is_same_v<T, E>)
    if (scale != 1.0f) return rounded(hn::Mul(value, set(scale)), T());
  return value;
}

// Under bf16 the vectors of a row come in pairs, the even elements of two vectors' worth and the odd ones:
// one load and one instruction each, where widening takes three. Queries and sums lie in that order
// meanwhile, up to paired_dim(); codes follow it, as both caches give the same bits.
template <class T>
inline constexpr bool kPaired = std::is_same_v<T, bf16>;
HWY_INLINE Index paired_dim(Index head_dim) { return head_dim / (2 * lanes()) * (2 * lanes()); }

// Vector kVector (0 or 1) of two.
template <class T, int kVector, class E>
HWY_INLINE Vec load_of_pair(const E* from, float scale) {
  if constexpr (!kPaired<T>) {
    return load_cached<T>(from + kVector * lanes(), Whole(), scale);
  } else if constexpr (std::is_same_v<E, bf16>) {
    const hn::Rebind<uint32_t, F32> du32;
    const auto words = hn::LoadU(du32, reinterpret_cast<const uint32_t*>(from));
    if constexpr (kVector == 0) return hn::BitCast(F32(), hn::ShiftLeft<16>(words));
    return hn::BitCast(F32(), hn::And(words, hn::Set(du32, 0xffff0000u)));
  } else {
    const Vec first = load_cached<T>(from, Whole(), scale);
    const Vec second = load_cached<T>(from + lanes(), Whole(), scale);
    return kVector == 0 ? hn::ConcatEven(F32(), second, first) : hn::ConcatOdd(F32(), second, first);
  }
}
// The order of pairs, and back.
HWY_INLINE void pair_row(float* row, Index head_dim) {
  for (Index d = 0; d < paired_dim(head_dim); d += 2 * lanes()) {
    const Vec first = load(row + d), second = load(row + d + lanes());
    store(hn::ConcatEven(F32(), second, first), row + d);
    store(hn::ConcatOdd(F32(), second, first), row + d + lanes());
  }
}
HWY_INLINE void unpair_row(float* row, Index head_dim) {
  float pairs[2 * HWY_MAX_BYTES / sizeof(float)];
  for (Index d = 0; d < paired_dim(head_dim); d += 2 * lanes()) {
    std::copy_n(row + d, 2 * lanes(), pairs);
    for (Index i = 0; i < lanes(); ++i) {
      row[d + 2 * i] = pairs[i];
      row[d + 2 * i + 1] = pairs[lanes() + i];
    }
  }
}

// One vector of each of kKeys rows of K times that of each query.
template <int kHeads, int kKeys>
HWY_INLINE void add_scores(const float* q, Index stride, const Vec (&keys)[kKeys],
                           Vec (&sums)[kHeads][kKeys]) {
  for (int h = 0; h < kHeads; ++h) {
    const Vec query = load(q + h * stride);
    for (int i = 0; i < kKeys; ++i) sums[h][i] = hn::MulAdd(query, keys[i], sums[h][i]);
  }
}
template <int kVector, int kHeads, int kKeys, class T, class E>
HWY_INLINE void score_of_pair(const Segment<T, E>& segment, Index d, const E* k, Vec (&sums)[kHeads][kKeys]) {
  Vec keys[kKeys];
  for (int i = 0; i < kKeys; ++i)
    keys[i] = load_of_pair<T, kVector>(k + i * segment.kv.row_stride() + d, segment.kv.k_scale());
  add_scores(segment.q + d + kVector * lanes(), segment.stride, keys, sums);
}

// scores[h][i] = q_h . k_i for kKeys rows of K; V's rows are fetched meanwhile.
template <int kHeads, int kKeys, class T, class E>
HWY_INLINE void score_keys(const Segment<T, E>& segment, const KvRun<E>& run, Index first, float* scores) {
  const Index row_stride = segment.kv.row_stride();
  const E* k = run.k + first * row_stride;
  for (int i = 0; i < kKeys; ++i) prefetch_row(run.v + (first + i) * row_stride, segment.head_dim);
  Vec sums[kHeads][kKeys];
  for (int h = 0; h < kHeads; ++h)
    for (int i = 0; i < kKeys; ++i) sums[h][i] = hn::Zero(F32());
  const Index paired = paired_dim(segment.head_dim);
  for (Index d = 0; d < paired; d += 2 * lanes()) {
    score_of_pair<0>(segment, d, k, sums);
    score_of_pair<1>(segment, d, k, sums);
  }
  for_each_vector(segment.head_dim - paired, [&](Index j, auto extent) HWY_ATTR {
    Vec keys[kKeys];
    for (int i = 0; i < kKeys; ++i)
      keys[i] = load_cached<T>(k + i * row_stride + paired + j, extent, segment.kv.k_scale());
    add_scores(segment.q + paired + j, segment.stride, keys, sums);
  });
  for (int h = 0; h < kHeads; ++h)
    for (int i = 0; i < kKeys; ++i) scores[h * kBlockKeys + first + i] = sum_of_lanes(sums[h][i]);
}

// o_h[d ..] += sum_i p[h][i] v_i[d ..] over kVectors vectors, in the order of i; load_values(v_i, values)
// reads them. The same part of `next`, rows of K to be read soon, is fetched meanwhile.
template <int kHeads, int kVectors, class T, class E, class LoadValues>
HWY_INLINE void add_values(const Segment<T, E>& segment, const KvRun<E>& run, const KvRun<E>& next, Index d,
                           const float* p, const LoadValues& load_values) {
  const Index row_stride = segment.kv.row_stride();
  float* o = segment.o + d;
  Vec sums[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h)
    for (int c = 0; c < kVectors; ++c) sums[h][c] = load(o + h * segment.stride + c * lanes());
  for (Index i = 0; i < run.count; ++i) {
    if (i < next.count) prefetch_row(next.k + i * row_stride + d, kVectors * lanes());
    Vec values[kVectors];
    load_values(run.v + i * row_stride, values);
    for (int h = 0; h < kHeads; ++h) {
      const Vec weight = set(p[h * kBlockKeys + i]);
      for (int c = 0; c < kVectors; ++c) sums[h][c] = hn::MulAdd(weight, values[c], sums[h][c]);
    }
  }
  for (int h = 0; h < kHeads; ++h)
    for (int c = 0; c < kVectors; ++c) store(sums[h][c], o + h * segment.stride + c * lanes());
}

// kVectors (2 or 4) from d on, in pairs; or vector kVector of the pair that starts at d.
template <int kHeads, int kVectors, class T, class E>
HWY_INLINE void add_pairs(const Segment<T, E>& segment, const KvRun<E>& run, const KvRun<E>& next, Index d,
                          const float* p) {
  const float scale = segment.kv.v_scale();
  add_values<kHeads, kVectors>(segment, run, next, d, p, [&](const E* v, Vec(&values)[kVectors]) HWY_ATTR {
    for (int c = 0; c < kVectors; c += 2) {
      values[c] = load_of_pair<T, 0>(v + d + c * lanes(), scale);
      values[c + 1] = load_of_pair<T, 1>(v + d + c * lanes(), scale);
    }
  });
}
template <int kHeads, int kVector, class T, class E>
HWY_INLINE void add_of_pair(const Segment<T, E>& segment, const KvRun<E>& run, const KvRun<E>& next, Index d,
                            const float* p) {
  const float scale = segment.kv.v_scale();
  add_values<kHeads, 1>(segment, run, next, d + kVector * lanes(), p,
                        [&](const E* v, Vec(&values)[1])
                            HWY_ATTR { values[0] = load_of_pair<T, kVector>(v + d, scale); });
}

template <int kHeads, class T, class E>
HWY_INLINE void value_run(const Segment<T, E>& segment, const KvRun<E>& run, const KvRun<E>& next,
                          const float* p) {
  constexpr int kVectors = kSumVectors<kHeads>;
  const Index paired = paired_dim(segment.head_dim);
  Index d = 0;
  if constexpr (kVectors == 4)
    for (; d + 4 * lanes() <= paired; d += 4 * lanes()) add_pairs<kHeads, 4>(segment, run, next, d, p);
  for (; d < paired; d += 2 * lanes())
    if constexpr (kVectors > 1) {
      add_pairs<kHeads, 2>(segment, run, next, d, p);
    } else {
      add_of_pair<kHeads, 0>(segment, run, next, d, p);
      add_of_pair<kHeads, 1>(segment, run, next, d, p);
    }
  for_each_vector(segment.head_dim - paired, [&](Index j, auto extent) HWY_ATTR {
    add_values<kHeads, 1>(segment, run, next, paired + j, p, [&](const E* v, Vec(&values)[1]) HWY_ATTR {
      values[0] = load_cached<T>(v + paired + j, extent, segment.kv.v_scale());
    });
  });
}

// Scores, softmax step and weighted sum of one block of keys.
template <int kHeads, class T, class E>
HWY_INLINE void attend_block(const Segment<T, E>& segment, Index begin, Index end) {
  HWY_ALIGN float scores[kHeads * kBlockKeys];
  HWY_ALIGN float p[kHeads * kBlockKeys];
  KvRun<E> run;
  for (Index position = begin; position < end; position += run.count) {
    run = segment.kv.run(position, std::min(end, position + segment.max_run));
    Index i = 0;
    for (; i + 2 <= run.count; i += 2) score_keys<kHeads, 2>(segment, run, i, scores + (position - begin));
    if (i < run.count) score_keys<kHeads, 1>(segment, run, i, scores + (position - begin));
  }
  for (int h = 0; h < kHeads; ++h) {
    const float correction = softmax_step(scores + h * kBlockKeys, end - begin, kBlockKeys,
                                          segment.scale_log2, p + h * kBlockKeys, segment.states[h]);
    if (correction != 1.0f) scale_row(segment.o + h * segment.stride, segment.stride, correction);
  }
  for (Index position = begin; position < end; position += run.count) {
    run = segment.kv.run(position, std::min(end, position + segment.max_run));
    const Index ahead = position + kBlockKeys;
    KvRun<E> next;
    if (ahead < segment.end) next = segment.kv.run(ahead, std::min(segment.end, ahead + run.count));
    value_run<kHeads>(segment, run, next, p + (position - begin));
  }
}

template <int kHeads, class T, class E>
HWY_NOINLINE void attend_segment(const Segment<T, E>& segment) {
  std::fill_n(segment.o, kHeads * segment.stride, 0.0f);
  std::fill_n(segment.states, kHeads, SoftmaxState{-std::numeric_limits<float>::infinity(), 0.0f});
  if constexpr (kPaired<T>)
    for (int h = 0; h < kHeads; ++h) pair_row(segment.q + h * segment.stride, segment.head_dim);
  for (Index begin = segment.begin; begin < segment.end; begin += kBlockKeys)
    attend_block<kHeads>(segment, begin, std::min(begin + kBlockKeys, segment.end));
  if constexpr (kPaired<T>)
    for (int h = 0; h < kHeads; ++h) unpair_row(segment.o + h * segment.stride, segment.head_dim);
}

// num_heads is 1 .. kHeads.
template <int kHeads, class T, class E>
void attend_heads(const Segment<T, E>& segment) {
  if constexpr (kHeads > 1)
    if (segment.num_heads < kHeads) return attend_heads<kHeads - 1>(segment);
  attend_segment<kHeads>(segment);
}

template <class T>
void merge(const MergeRow<T>& row) {
  SoftmaxState total = row.states[0];
  for (Index s = 1; s < row.num_segments; ++s)
    total.max = std::max(total.max, row.states[s * row.num_q_heads].max);
  total.sum = 0;
  std::fill_n(row.sum, row.stride, 0.0f);
  for (Index s = 0; s < row.num_segments; ++s) {
    const SoftmaxState& state = row.states[s * row.num_q_heads];
    const float factor = std::exp2(state.max - total.max);
    total.sum += factor * state.sum;
    const float* o = row.o + s * row.num_q_heads * row.stride;
    for (Index d = 0; d < row.stride; d += lanes())
      store(hn::MulAdd(set(factor), load(o + d), load(row.sum + d)), row.sum + d);
  }
  finish_row(row.sum, total.sum, row.gate, row.head_dim, row.out);
}

void attend_heads_f32(const Segment<float>& segment) { attend_heads<kMaxPassHeads<float>>(segment); }
void attend_heads_bf16(const Segment<bf16>& segment) { attend_heads<kMaxPassHeads<bf16>>(segment); }
void attend_heads_f32_e4m3(const Segment<float, f8e4m3>& segment) {
  attend_heads<kMaxPassHeads<float>>(segment);
}
void attend_heads_bf16_e4m3(const Segment<bf16, f8e4m3>& segment) {
  attend_heads<kMaxPassHeads<bf16>>(segment);
}
void merge_f32(const MergeRow<float>& row) { merge(row); }
void merge_bf16(const MergeRow<bf16>& row) { merge(row); }

}  // namespace longspan::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::ops::cpu {
namespace {

HWY_EXPORT(attend_heads_f32);
HWY_EXPORT(attend_heads_bf16);
HWY_EXPORT(attend_heads_f32_e4m3);
HWY_EXPORT(attend_heads_bf16_e4m3);
HWY_EXPORT(merge_f32);
HWY_EXPORT(merge_bf16);

void attend_heads(const Segment<float>& segment) { HWY_DYNAMIC_DISPATCH(attend_heads_f32)(segment); }
void attend_heads(const Segment<bf16>& segment) { HWY_DYNAMIC_DISPATCH(attend_heads_bf16)(segment); }
void attend_heads(const Segment<float, f8e4m3>& segment) {
  HWY_DYNAMIC_DISPATCH(attend_heads_f32_e4m3)(segment);
}
void attend_heads(const Segment<bf16, f8e4m3>& segment) {
  HWY_DYNAMIC_DISPATCH(attend_heads_bf16_e4m3)(segment);
}
void merge(const MergeRow<float>& row) { HWY_DYNAMIC_DISPATCH(merge_f32)(row); }
void merge(const MergeRow<bf16>& row) { HWY_DYNAMIC_DISPATCH(merge_bf16)(row); }

constexpr Index kMinSegment = 512;  // keys
constexpr Index kMaxSegments = 32;  // a sequence: bounds the partial sums, whatever the context length
constexpr Index kMaxBatch = 8;      // sequences in flight: more of them go in turns
constexpr Index kSmallestRun = 16;  // page_tokens is a multiple of it
constexpr float kLog2E = 1.44269504f;

constexpr Index round_up(Index n, Index step) { return (n + step - 1) / step * step; }

Index segment_keys(Index seq_len) {
  Index keys = kMinSegment;
  while (keys * kMaxSegments < seq_len) keys *= 2;
  return keys;
}

// Shapes of the call, and the sequences in flight. E: the element of the cache.
template <class T, class E>
class DecodeBatch {
 public:
  DecodeBatch(const Context& context, const Attention& args)
      : context_(context),
        args_(args),
        num_q_heads_(args.q.dim(1)),
        group_(num_q_heads_ / args.kv.num_kv_heads),
        passes_((group_ + kMaxPassHeads<T> - 1) / kMaxPassHeads<T>),
        pass_heads_((group_ + passes_ - 1) / passes_),
        stride_(round_up(args.kv.head_dim, 16)) {
    // A thread's own rows first; partial sums and states behind those of thread 0.
    const Index rows = kMaxBatch * kMaxSegments * num_q_heads_;
    const Index own_bytes = kMaxPassHeads<T> * stride_ * static_cast<Index>(sizeof(float));
    const Index partial_bytes = rows * stride_ * static_cast<Index>(sizeof(float));
    const Index state_bytes = rows * static_cast<Index>(sizeof(SoftmaxState));
    context.scratch.reserve(static_cast<size_t>(own_bytes + partial_bytes + state_bytes));
    char* base = static_cast<char*>(context.scratch.of_thread(0));
    partials_ = reinterpret_cast<float*>(base + own_bytes);
    states_ = reinterpret_cast<SoftmaxState*>(base + own_bytes + partial_bytes);
  }

  void run(Index first_seq, Index num_seqs) {
    first_seq_ = first_seq;
    num_segments_total_ = 0;
    for (Index i = 0; i < num_seqs; ++i) {
      first_segment_[i] = num_segments_total_;
      num_segments_total_ += num_segments(first_seq + i);
    }
    first_segment_[num_seqs] = num_segments_total_;
    context_.pool.parallel_for(num_segments_total_ * args_.kv.num_kv_heads * passes_,
                               [this](int64_t task, int thread) { attend(task, thread); });
    context_.pool.parallel_for(num_seqs * num_q_heads_,
                               [this](int64_t task, int thread) { merge_head(task, thread); });
  }

 private:
  Index seq_len(Index seq_idx) const { return args_.seqs.seq_lens.as<int32_t>()[seq_idx]; }
  Index num_segments(Index seq_idx) const {
    const Index keys = segment_keys(seq_len(seq_idx));
    return (seq_len(seq_idx) + keys - 1) / keys;
  }
  float* own_rows(int thread) const { return static_cast<float*>(context_.scratch.of_thread(thread)); }
  T* at(const TensorView& view, Index seq_idx, Index head) const {
    const Index row = args_.seqs.query_start_loc.as<int32_t>()[seq_idx];
    return view.as<T>() + row * view.stride(0) + head * view.stride(1);
  }

  // Tasks of one segment lie together: their kv heads share the lines' pages.
  void attend(Index task, int thread) const {
    const Index pass = task % passes_;
    const Index kv_head = task / passes_ % args_.kv.num_kv_heads;
    const Index segment_idx = task / passes_ / args_.kv.num_kv_heads;
    Index i = 0;
    while (first_segment_[i + 1] <= segment_idx) ++i;
    const Index seq_idx = first_seq_ + i;
    const Index head = kv_head * group_ + pass * pass_heads_;
    const Index num_heads = std::min(pass_heads_, group_ - pass * pass_heads_);
    float* q = own_rows(thread);
    std::fill_n(q, num_heads * stride_, 0.0f);
    for (Index h = 0; h < num_heads; ++h)
      for (Index d = 0; d < args_.kv.head_dim; ++d)
        q[h * stride_ + d] = static_cast<float>(at(args_.q, seq_idx, head + h)[d]);

    const Index keys = segment_keys(seq_len(seq_idx));
    const Index begin = (segment_idx - first_segment_[i]) * keys;
    const bool by_pages = args_.path == AttentionPath::kPageContiguousDecode;
    const PagedKv<E> kv(args_, seq_idx, kv_head);
    const Index row = segment_idx * num_q_heads_ + head;
    attend_heads(Segment<T, E>{.kv = kv,
                               .begin = begin,
                               .end = std::min(begin + keys, seq_len(seq_idx)),
                               .max_run = by_pages ? kv.page_tokens() : kSmallestRun,
                               .q = q,
                               .num_heads = num_heads,
                               .head_dim = args_.kv.head_dim,
                               .stride = stride_,
                               .scale_log2 = args_.scale * kLog2E,
                               .o = partials_ + row * stride_,
                               .states = states_ + row});
  }

  void merge_head(Index task, int thread) const {
    const Index i = task / num_q_heads_;
    const Index head = task % num_q_heads_;
    const Index row = first_segment_[i] * num_q_heads_ + head;
    merge(MergeRow<T>{.o = partials_ + row * stride_,
                      .states = states_ + row,
                      .num_segments = first_segment_[i + 1] - first_segment_[i],
                      .num_q_heads = num_q_heads_,
                      .head_dim = args_.kv.head_dim,
                      .stride = stride_,
                      .sum = own_rows(thread),
                      .gate = args_.gate.empty() ? nullptr : at(args_.gate, first_seq_ + i, head),
                      .out = at(args_.out, first_seq_ + i, head)});
  }

  const Context& context_;
  const Attention& args_;
  const Index num_q_heads_;
  const Index group_;       // query heads a kv head
  const Index passes_;      // over K and V
  const Index pass_heads_;  // of one pass
  const Index stride_;      // floats a row of partial sums
  float* partials_;         // [segments in flight, num_q_heads, stride]
  SoftmaxState* states_;    // [segments in flight, num_q_heads]
  Index first_seq_ = 0;
  Index num_segments_total_ = 0;
  Index first_segment_[kMaxBatch + 1] = {};
};

}  // namespace

template <class T>
void decode_attention(const Context& context, const Attention& args, Index first_seq, Index num_seqs) {
  if (num_seqs == 0) return;
  const auto run = [&](auto batch) {
    for (Index done = 0; done < num_seqs; done += kMaxBatch)
      batch.run(first_seq + done, std::min(kMaxBatch, num_seqs - done));
  };
  if (args.kv.dtype == DType::kF8E4M3)
    run(DecodeBatch<T, f8e4m3>(context, args));
  else
    run(DecodeBatch<T, T>(context, args));
}

template void decode_attention<float>(const Context&, const Attention&, Index, Index);
template void decode_attention<bf16>(const Context&, const Attention&, Index, Index);

}  // namespace longspan::ops::cpu
#endif  // HWY_ONCE
