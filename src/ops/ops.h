// THE list of operations. One struct an operation: formula, shapes, dtypes. A backend implements each once.
// T is the model dtype (bf16 or float); sums, norms, softmax, gates and the recurrent state are fp32
// everywhere. Views may be strided in all but the innermost axis. Outputs never alias inputs unless the
// contract says so. A row's result never depends on which other rows share the call.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/memory.h"

namespace longspan {
class ThreadPool;
}

namespace longspan::ops {

// A linear layer's weight in the layout its backend likes, made once at load. Read-only afterwards.
class Weight {
 public:
  virtual ~Weight() = default;
  virtual size_t size_bytes() const = 0;

  Index out_features = 0;  // N
  Index in_features = 0;   // K
};

enum class CodeKind : uint8_t {
  kInt4,  // 0 .. 15
  kE4M3   // an FP8 number; NaN does not occur
};

// Rows [N, K] of a linear layer in few bits, the one form every checkpoint's is turned into:
// W[n, k] = rnd((code[n, k] - zero[n, g]) * scale[n / scale_rows, g]) in fp32 with g = group_of[k] or k /
// group_size.
struct QuantizedPart {
  CodeKind kind = CodeKind::kInt4;
  Index out_features = 0;  // N
  Index in_features = 0;   // K
  Index group_size = 0;    // G = ceil(K / group_size)
  Index scale_rows = 1;
  TensorView codes;     // kInt4: u8 [N, ceil(K / 2)], the even k in the low half; kE4M3: e4m3 [N, K]
  TensorView scales;    // f32, f16 or bf16 [ceil(N / scale_rows), G]
  TensorView zeros;     // u8 [N, G], 0 .. 16, of kInt4; empty: 8 for kInt4, 0 for kE4M3
  TensorView group_of;  // i32 [K], each in 0 .. G - 1, or empty
};

// One part of a weight: float rows [N, K], or quantised ones.
using WeightPart = std::variant<TensorView, QuantizedPart>;

inline Index out_features_of(const WeightPart& part) {
  const auto* rows = std::get_if<TensorView>(&part);
  return rows != nullptr ? rows->dim(0) : std::get<QuantizedPart>(part).out_features;
}
inline Index in_features_of(const WeightPart& part) {
  const auto* rows = std::get_if<TensorView>(&part);
  return rows != nullptr ? rows->dim(1) : std::get<QuantizedPart>(part).in_features;
}

// How the rows of parts become one weight.
enum class Packing : uint8_t {
  kStacked,  // pack(), pack_quantized(): one behind the other
  kGateUp    // pack_gate_up(), pack_quantized_gate_up(): two of the same shape, for matmul_swiglu
};

// What a weight will take, by the shapes of its parts: of their values only group_of is read.
struct PackedBytes {
  size_t weight = 0;     // its size_bytes()
  size_t workspace = 0;  // that its products share with those of all others: the largest counts
};

// Norm weights come in two forms (MODEL 2.1 and the Qwen3 relatives).
enum class NormKind : uint8_t {
  kZeroCentered,   // y = rnd(x_hat * (1 + w)): hybrid models
  kRoundThenScale  // y = rnd(rnd(x_hat) * w): Qwen2, Qwen3
};

// The sequences of one step, decode rows first: sequences 0 .. num_decode_seqs - 1 have one token each and
// use the recurrent forms; the others are prompt chunks and use the chunked forms.
struct Sequences {
  TensorView query_start_loc;  // i32 [num_seqs + 1]: first token row of each sequence
  TensorView seq_lens;         // i32 [num_seqs]: tokens in the cache once this step is done
  Index num_seqs = 0;
  Index num_decode_seqs = 0;
};

// K and V of one attention layer inside a paged pool, each page [2, page_tokens, num_kv_heads, head_dim].
// Elements of kF8E4M3 are codes: x is written as e4m3(rnd(x) / scale), +-448 where that is larger (a NaN only
// for a NaN), and read as rnd(code * scale). Attention gives the bits of a T cache that holds those values.
struct KvCache {
  void* data = nullptr;
  DType dtype = DType::kBF16;  // T or kF8E4M3
  Index num_pages = 0;
  Index page_stride_bytes = 0;
  Index page_tokens = 0;  // a multiple of 16
  Index num_kv_heads = 0;
  Index head_dim = 0;
  TensorView scales;     // f32 [2, num_kv_heads], of K, then of V; empty: all 1
  TensorView saturated;  // i64 [1], counts up the elements that were larger than +-448; or empty
};

// Recurrent states of one Gated DeltaNet layer; one page (or slot) holds one sequence's
// f32 S [num_v_heads, k_dim, v_dim] at +0 and T conv history [conv_kernel - 1, conv_channels], oldest first,
// at +conv_offset_bytes.
struct StateCache {
  void* data = nullptr;
  DType conv_dtype = DType::kBF16;  // T
  Index num_pages = 0;
  Index page_stride_bytes = 0;
  Index conv_offset_bytes = 0;
  Index num_v_heads = 0;
  Index k_dim = 0;
  Index v_dim = 0;
  Index conv_kernel = 0;
  Index conv_channels = 0;
};

// Write the state after `num_tokens` tokens of sequence `seq_idx` also to `page`. num_tokens lies in this
// step's chunk of that sequence and on the absolute 64-token grid. Host data.
struct StateCheckpoint {
  int32_t seq_idx = 0;
  int32_t num_tokens = 0;
  int32_t page = 0;
};

inline constexpr Index kGdnChunk = 64;  // tokens; the grid is absolute: chunk borders are multiples of it

// out[i] = table[ids[i]]
struct Embed {
  TensorView ids;                 // i32 [num_tokens], each in 0 .. out_features - 1
  const Weight* table = nullptr;  // [vocab, hidden]
  TensorView out;                 // R [num_tokens, hidden]: the table's T, or float32 of float16
};

// out[i] = x[rows[i]]
struct GatherRows {
  TensorView x;     // T [num_rows, n]
  TensorView rows;  // i32 [m]
  TensorView out;   // T [m, n]
};

// With delta: x = rnd(x + delta) first, in place. Then out = rnd(x * rsqrt(mean(x^2) + eps), weight) by kind.
struct RmsNorm {
  TensorView x;       // R [num_rows, n], updated when delta is given; R: T, or float32 where T is float16
  TensorView delta;   // T [num_rows, n] or empty
  TensorView weight;  // f32 [n], as stored (never + 1)
  NormKind kind = NormKind::kZeroCentered;
  float eps = 1e-6f;
  TensorView out;  // T [num_rows, n]; may be x's own memory only when delta is empty and R is T
};

// out = rnd(x W^T + bias), fp32 sums. The order of each sum depends on (N, K) alone, never on the number of
// rows; a device has two orders, one for decode rows and one for prompt rows.
struct Matmul {
  TensorView x;  // T [num_rows, K]
  // The first rows, one token of a decoding sequence each. -1: not said; up to 16 rows pass for decode.
  Index num_decode_rows = -1;
  const Weight* weight = nullptr;
  TensorView bias;  // f32 [N] or empty
  TensorView out;   // T [num_rows, N]
};

// out = rnd(silu(gate) * up)
struct SwiGlu {
  TensorView gate_up;  // T [num_rows, 2 * n]: gate, then up
  TensorView out;      // T [num_rows, n]
};

// Both at once: gate_up = rnd(x W^T), out = rnd(silu(gate) * up), the same bits. A backend that fuses them
// leaves gate_up untouched.
struct MatmulSwiGlu {
  TensorView x;                    // T [num_rows, K]
  Index num_decode_rows = -1;      // as Matmul's
  const Weight* weight = nullptr;  // of pack_gate_up: [2 * n, K]
  TensorView gate_up;              // T [num_rows, 2 * n], room to work in: undefined afterwards
  TensorView out;                  // T [num_rows, n]
};

// Rotary angles of a step: cos_sin[t] = [cos(p f_0) .. cos(p f_{r/2-1}) | sin ...], angle = fp32(position *
// inv_freq).
struct RopeAngles {
  TensorView positions;  // i32 [num_tokens]
  TensorView inv_freq;   // f32 [rotary_dim / 2]
  TensorView cos_sin;    // f32 [num_tokens, rotary_dim]
};

// Head norm and rotary embedding of q and k (half-split pairs (j, j + rotary_dim / 2); the rest passes
// through), and the write of k and v into the cache. One rounding at the end of each.
struct QkRopeWrite {
  TensorView q;       // T [num_tokens, num_q_heads, head_dim]
  TensorView k;       // T [num_tokens, num_kv_heads, head_dim]
  TensorView v;       // T [num_tokens, num_kv_heads, head_dim]
  TensorView q_norm;  // f32 [head_dim] or empty (no norm)
  TensorView k_norm;  // f32 [head_dim] or empty
  NormKind norm_kind = NormKind::kZeroCentered;
  float eps = 1e-6f;
  TensorView cos_sin;  // f32 [num_tokens, rotary_dim]
  TensorView slots;    // i32 [num_tokens]: page * page_tokens + offset; -1 writes nothing
  KvCache kv;
  TensorView q_out;  // T [num_tokens, num_q_heads, head_dim]; may be q's own memory
};

enum class AttentionPath : uint8_t {
  kUnified,              // any shape, always there
  kVendorPrefill,        // the fast prefill kernel, behind a gate; the bits of kUnified, or a library's own
  kPageContiguousDecode  // q = 1, walks whole pages; bit-identical to kUnified on q = 1
};

// Causal grouped-query attention over the paged cache: query head n reads kv head n / (num_q_heads /
// num_kv_heads); softmax and sums in fp32. Token i of a chunk that ends at seq_len sees positions 0 ..
// seq_len - q_len + i. With gate: out = rnd(rnd(o) * rnd(sigmoid(gate))). Splits of the sum depend on a
// sequence's own length only.
struct Attention {
  TensorView q;            // T [num_tokens, num_q_heads, head_dim]
  TensorView gate;         // T [num_tokens, num_q_heads, head_dim] or empty
  TensorView block_table;  // i32 [num_seqs, max_pages], -1 where unset
  KvCache kv;
  Sequences seqs;
  Index first_seq = 0;  // only these sequences' rows are computed
  Index num_seqs = 0;
  float scale = 0;
  AttentionPath path = AttentionPath::kUnified;
  TensorView out;  // T [num_tokens, num_q_heads, head_dim]
};

// Depthwise causal convolution and SiLU: y_t[c] = silu(sum_j w[c, j] u_{t-K+1+j}[c]), history from the state
// (zero at position 0), one rounding. Leaves the last K - 1 inputs (before activation) in the state page.
struct CausalConv {
  TensorView x;       // T [num_tokens, channels]
  TensorView weight;  // f32 [channels, conv_kernel]; the last tap multiplies the current token
  StateCache state;
  TensorView state_pages;  // i32 [num_seqs]
  Sequences seqs;
  std::span<const StateCheckpoint> checkpoints;
  TensorView out;  // T [num_tokens, channels]
};

// The gated delta rule with its gates, norms and output gate (MODEL 2.4 to 2.9), per value head h, key head h
// / (num_v_heads / num_k_heads):
//   beta = sigmoid(b), g = -exp(a_log) softplus(a + dt_bias), q, k l2-normalised over k_dim (eps 1e-6), q
//   scaled by k_dim^-0.5 S <- exp(g) S;  d = beta (v - k^T S);  S <- S + k d^T;  o = q^T S;  y = rnd(o *
//   rsqrt(mean(o^2) + eps) * norm * silu(z))
// Decode rows run this recurrence; prompt chunks the 64-token chunked form on the absolute grid (MODEL 2.8).
// A sequence whose chunk starts at position 0 starts from S = 0 whatever its page holds.
struct GatedDelta {
  TensorView q;        // T [num_tokens, num_k_heads, k_dim], after CausalConv
  TensorView k;        // T [num_tokens, num_k_heads, k_dim]
  TensorView v;        // T [num_tokens, num_v_heads, v_dim]
  TensorView z;        // T [num_tokens, num_v_heads, v_dim]
  TensorView a;        // T [num_tokens, num_v_heads]
  TensorView b;        // T [num_tokens, num_v_heads]
  TensorView a_log;    // f32 [num_v_heads]
  TensorView dt_bias;  // f32 [num_v_heads]
  TensorView norm;     // f32 [v_dim], plain weight
  float eps = 1e-6f;
  StateCache state;
  TensorView state_pages;  // i32 [num_seqs]
  Sequences seqs;
  std::span<const StateCheckpoint> checkpoints;
  TensorView out;  // T [num_tokens, num_v_heads, v_dim]
};

// out[i] = the lowest index of the largest element of row i; -1 where a row holds a NaN or its largest
// element is infinite.
struct BestColumn {
  TensorView x;    // T [num_rows, n]
  TensorView out;  // i32 [num_rows]
};

// Rows drawn from a seed: element i is rnd(normal(splitmix64(key + i)) * deviation) as
// model/weight_source.cc has it.
struct RandomRows {
  uint64_t key = 0;
  Index num_rows = 0;
};

// out[i] = what draw_token() (draw.h) draws from row i with rows[i], whose state moves on by kStateStep; -1
// where a row holds a NaN or its largest element is infinite.
struct Draw {
  TensorView x;     // T [num_rows, n]
  TensorView rows;  // u8 [num_rows, sizeof(DrawRow)], aligned to 16 bytes, updated
  TensorView out;   // i32 [num_rows]
};

// The arrays of the next step of decoding sequences, in the place of the last step's, each sequence one token
// further: with p = seq_lens[i] as it was, token_ids[i] = max(tokens[i], 0), positions[.., i] = p,
// seq_lens[i] = p + 1, query_start_loc[i] = logit_rows[i] = i, and slots[i] = page * page_tokens + p %
// page_tokens where page = block_table[i, p / page_tokens]; -1 where that is unset or behind the table.
struct AdvanceInputs {
  TensorView tokens;       // i32 [num_seqs]: what the last step chose
  TensorView block_table;  // i32 [num_seqs, max_pages], -1 where unset
  Index page_tokens = 0;
  TensorView token_ids;        // i32 [num_seqs]
  TensorView positions;        // i32 [num_axes, num_seqs]: 3 for M-RoPE; on text all are the same, and 1 does
  TensorView query_start_loc;  // i32 [num_seqs + 1]
  TensorView seq_lens;         // i32 [num_seqs], updated
  TensorView logit_rows;       // i32 [num_seqs]: no row is discarded
  TensorView slots;            // i32 [num_seqs]
};

// Operations put together once and run again with the same arguments; what their tensors hold may differ.
class Recording {
 public:
  virtual ~Recording() = default;
  // False, and nothing done: memory that the operations worked in has moved since.
  virtual bool replay() = 0;
};

// One implementation of the list. Calls come from one thread (the engine's); a backend may use a pool of its
// own inside. Kernels trust their arguments: Ops checks them. All tensors of a call lie in the backend's
// memory. A device's operations may still run when their call returns; download() and synchronize() wait.
class Backend : public Memory {
 public:
  virtual std::string name() const = 0;  // "cpu (2 threads, avx512 amx)"
  // For work on host memory between operations: the threads it computes or packs with, else one.
  virtual ThreadPool& threads();

  // Packs rows of [n_i, K] parts (f32, f16 or bf16), stacked along N, for products in `dtype`. May throw
  // kExhausted.
  virtual std::unique_ptr<Weight> pack(std::span<const TensorView> parts, DType dtype) = 0;
  // The weight of matmul_swiglu, in whatever order of rows the backend likes: gate and up are both [n, K].
  virtual std::unique_ptr<Weight> pack_gate_up(const TensorView& gate, const TensorView& up, DType dtype) {
    const TensorView parts[] = {gate, up};
    return pack(parts, dtype);
  }

  // The same with quantised parts among them: their rows stay packed in memory.
  virtual std::unique_ptr<Weight> pack_quantized(std::span<const WeightPart> parts, DType dtype);
  virtual std::unique_ptr<Weight> pack_quantized_gate_up(const WeightPart& gate, const WeightPart& up,
                                                         DType dtype) {
    const WeightPart parts[] = {gate, up};
    return pack_quantized(parts, dtype);
  }

  // A weight of random rows, stacked along N, each value rounded to `stored` first. Null: this backend does
  // not draw, its caller does; a card would wait minutes for the host's numbers.
  virtual std::unique_ptr<Weight> pack_random(std::span<const RandomRows> /*parts*/, Index /*in_features*/,
                                              DType /*stored*/, DType /*dtype*/, float /*deviation*/) {
    return nullptr;
  }

  // Keeps the operations of `calls` without running them; they may neither upload nor download. All of them
  // have run before with these shapes, so that their workspace is there. Null: this backend does not record.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& /*calls*/) { return nullptr; }

  // The next operations belong to that layer of the model; -1: to none. For those who look on.
  virtual void begin_layer(Index /*layer*/) {}

  virtual void embed(const Embed& args) = 0;
  virtual void gather_rows(const GatherRows& args) = 0;
  virtual void rms_norm(const RmsNorm& args) = 0;
  virtual void matmul(const Matmul& args) = 0;
  virtual void swiglu(const SwiGlu& args) = 0;
  virtual void matmul_swiglu(const MatmulSwiGlu& args) {
    matmul(
        {.x = args.x, .num_decode_rows = args.num_decode_rows, .weight = args.weight, .out = args.gate_up});
    swiglu({.gate_up = args.gate_up, .out = args.out});
  }
  virtual void rope_angles(const RopeAngles& args) = 0;
  virtual void qk_rope_write(const QkRopeWrite& args) = 0;
  virtual void attention(const Attention& args) = 0;
  virtual void causal_conv(const CausalConv& args) = 0;
  virtual void gated_delta(const GatedDelta& args) = 0;
  // As they are, for tensors in host memory.
  virtual void best_column(const BestColumn& args);
  virtual void draw(const Draw& args);
  virtual void advance_inputs(const AdvanceInputs& args);
};

// The door: checks shapes and dtypes once (a violation is a programmer's error and aborts, naming op, rule
// and both values), then calls the backend.
class Ops {
 public:
  explicit Ops(std::unique_ptr<Backend> backend);

  std::string name() const { return backend_->name(); }
  Memory& memory() { return *backend_; }  // of every tensor below
  ThreadPool& threads() { return backend_->threads(); }
  std::unique_ptr<Weight> pack(std::span<const TensorView> parts, DType dtype);
  std::unique_ptr<Weight> pack_gate_up(const TensorView& gate, const TensorView& up, DType dtype);
  std::unique_ptr<Weight> pack_quantized(std::span<const WeightPart> parts, DType dtype);
  std::unique_ptr<Weight> pack_quantized_gate_up(const WeightPart& gate, const WeightPart& up, DType dtype);
  std::unique_ptr<Weight> pack_random(std::span<const RandomRows> parts, Index in_features, DType stored,
                                      DType dtype, float deviation) {
    return backend_->pack_random(parts, in_features, stored, dtype, deviation);
  }

  std::unique_ptr<Recording> record(const std::function<void()>& calls) { return backend_->record(calls); }

  void begin_layer(Index layer) { backend_->begin_layer(layer); }

  void embed(const Embed& args);
  void gather_rows(const GatherRows& args);
  void rms_norm(const RmsNorm& args);
  void matmul(const Matmul& args);
  void swiglu(const SwiGlu& args);
  void matmul_swiglu(const MatmulSwiGlu& args);
  void rope_angles(const RopeAngles& args);
  void qk_rope_write(const QkRopeWrite& args);
  void attention(const Attention& args);
  void causal_conv(const CausalConv& args);
  void gated_delta(const GatedDelta& args);
  void best_column(const BestColumn& args);
  void draw(const Draw& args);
  void advance_inputs(const AdvanceInputs& args);

 private:
  std::unique_ptr<Backend> backend_;
};

}  // namespace longspan::ops
