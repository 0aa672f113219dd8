#include "ops/ops.h"

#include <algorithm>
#include <cmath>

#include "core/thread_pool.h"
#include "ops/dequantize.h"
#include "ops/draw.h"

namespace longspan::ops {
namespace {

// Axis sizes a view must have; -1 accepts any.
void expect(const char* op, const char* what, const TensorView& view, DType dtype, Shape shape) {
  CHECK_MSG(!view.empty(), "[{}] {}: got nothing, need {} {}", op, what, dtype_name(dtype), to_string(shape));
  CHECK_MSG(view.dtype == dtype, "[{}] {}: got {}, need {}", op, what, to_string(view), dtype_name(dtype));
  bool same = view.shape.rank == shape.rank;
  for (int axis = 0; same && axis < shape.rank; ++axis)
    same = shape[axis] == -1 || shape[axis] == view.dim(axis);
  CHECK_MSG(same, "[{}] {}: got {}, need {}", op, what, to_string(view.shape), to_string(shape));
  CHECK_MSG(shape.rank == 0 || view.stride(shape.rank - 1) == 1, "[{}] {}: innermost stride {}, need 1", op,
            what, view.stride(shape.rank - 1));
}

void expect_optional(const char* op, const char* what, const TensorView& view, DType dtype, Shape shape) {
  if (!view.empty()) expect(op, what, view, dtype, shape);
}

void expect_model_dtype(const char* op, DType dtype) {
  CHECK_MSG(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16,
            "[{}] dtype: got {}, need float32, bfloat16 or float16", op, dtype_name(dtype));
}

void expect_seqs(const char* op, const Sequences& seqs) {
  expect(op, "query_start_loc", seqs.query_start_loc, DType::kI32, {seqs.num_seqs + 1});
  expect(op, "seq_lens", seqs.seq_lens, DType::kI32, {seqs.num_seqs});
  CHECK_MSG(seqs.num_decode_seqs >= 0 && seqs.num_decode_seqs <= seqs.num_seqs,
            "[{}] num_decode_seqs: got {}, need 0 .. {}", op, seqs.num_decode_seqs, seqs.num_seqs);
}

void expect_kv(const char* op, const KvCache& kv, DType dtype, Index num_kv_heads, Index head_dim) {
  CHECK_MSG(kv.data != nullptr && (kv.dtype == dtype || kv.dtype == DType::kF8E4M3),
            "[{}] kv: got {}, need {} or fp8_e4m3", op, dtype_name(kv.dtype), dtype_name(dtype));
  expect_optional(op, "kv scales", kv.scales, DType::kF32, {2, num_kv_heads});
  expect_optional(op, "kv saturated", kv.saturated, DType::kI64, {1});
  CHECK_MSG(kv.num_kv_heads == num_kv_heads && kv.head_dim == head_dim,
            "[{}] kv heads: got {} x {}, need {} x {}", op, kv.num_kv_heads, kv.head_dim, num_kv_heads,
            head_dim);
  CHECK_MSG(kv.page_tokens > 0 && kv.page_tokens % 16 == 0, "[{}] page_tokens: got {}, need a multiple of 16",
            op, kv.page_tokens);
}

void expect_state(const char* op, const StateCache& state, const TensorView& pages, const Sequences& seqs) {
  CHECK_MSG(state.data != nullptr, "[{}] state: got nothing", op);
  expect(op, "state_pages", pages, DType::kI32, {seqs.num_seqs});
}

void expect_part(const char* op, const WeightPart& part, Index in_features) {
  if (const auto* rows = std::get_if<TensorView>(&part)) {
    expect_model_dtype(op, rows->dtype);
    expect(op, "part", *rows, rows->dtype, {-1, in_features});
    return;
  }
  const auto& packed = std::get<QuantizedPart>(part);
  const Index n = packed.out_features;
  const Index groups = (in_features + packed.group_size - 1) / std::max<Index>(1, packed.group_size);
  CHECK_MSG(packed.in_features == in_features && n > 0 && packed.group_size > 0 && packed.scale_rows > 0,
            "[{}] part: got N {}, K {}, group {}, scale rows {}, need K {} and positive sizes", op, n,
            packed.in_features, packed.group_size, packed.scale_rows, in_features);
  if (packed.kind == CodeKind::kInt4)
    expect(op, "codes", packed.codes, DType::kU8, {n, (in_features + 1) / 2});
  else
    expect(op, "codes", packed.codes, DType::kF8E4M3, {n, in_features});
  CHECK_MSG(packed.kind == CodeKind::kInt4 || packed.zeros.empty(), "[{}] zeros: got FP8 codes, need 4 bits",
            op);
  expect_model_dtype(op, packed.scales.dtype);
  expect(op, "scales", packed.scales, packed.scales.dtype,
         {(n + packed.scale_rows - 1) / packed.scale_rows, groups});
  expect_optional(op, "zeros", packed.zeros, DType::kU8, {n, groups});
  expect_optional(op, "group_of", packed.group_of, DType::kI32, {in_features});
}

}  // namespace

ThreadPool& Backend::threads() {
  static ThreadPool one(1);  // without a state: any number of callers
  return one;
}

std::unique_ptr<Weight> Backend::pack_quantized(std::span<const WeightPart>, DType) {
  fail(ErrorKind::kUnsupported, "quantised weights: no kernels for them on {}, need a cpu device", name());
}

Ops::Ops(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) { CHECK(backend_ != nullptr); }

std::unique_ptr<Weight> Ops::pack(std::span<const TensorView> parts, DType dtype) {
  CHECK(!parts.empty());
  expect_model_dtype("pack", dtype);
  for (const TensorView& part : parts) {
    expect_model_dtype("pack", part.dtype);
    expect("pack", "part", part, part.dtype, {-1, parts[0].dim(1)});
  }
  return backend_->pack(parts, dtype);
}

std::unique_ptr<Weight> Ops::pack_gate_up(const TensorView& gate, const TensorView& up, DType dtype) {
  expect_model_dtype("pack_gate_up", dtype);
  expect_model_dtype("pack_gate_up", gate.dtype);
  expect("pack_gate_up", "gate", gate, gate.dtype, {-1, -1});
  expect_model_dtype("pack_gate_up", up.dtype);
  expect("pack_gate_up", "up", up, up.dtype, {gate.dim(0), gate.dim(1)});
  return backend_->pack_gate_up(gate, up, dtype);
}

std::unique_ptr<Weight> Ops::pack_quantized(std::span<const WeightPart> parts, DType dtype) {
  CHECK(!parts.empty());
  expect_model_dtype("pack_quantized", dtype);
  for (const WeightPart& part : parts) expect_part("pack_quantized", part, in_features_of(parts[0]));
  return backend_->pack_quantized(parts, dtype);
}

std::unique_ptr<Weight> Ops::pack_quantized_gate_up(const WeightPart& gate, const WeightPart& up,
                                                    DType dtype) {
  expect_model_dtype("pack_quantized_gate_up", dtype);
  for (const WeightPart* part : {&gate, &up})
    expect_part("pack_quantized_gate_up", *part, in_features_of(gate));
  return backend_->pack_quantized_gate_up(gate, up, dtype);
}

void Ops::embed(const Embed& args) {
  CHECK(args.table != nullptr);
  expect_model_dtype("embed", args.out.dtype);
  expect("embed", "out", args.out, args.out.dtype, {-1, args.table->in_features});
  expect("embed", "ids", args.ids, DType::kI32, {args.out.dim(0)});
  backend_->embed(args);
}

void Ops::gather_rows(const GatherRows& args) {
  expect_model_dtype("gather_rows", args.x.dtype);
  expect("gather_rows", "x", args.x, args.x.dtype, {-1, -1});
  expect("gather_rows", "rows", args.rows, DType::kI32, {-1});
  expect("gather_rows", "out", args.out, args.x.dtype, {args.rows.dim(0), args.x.dim(1)});
  backend_->gather_rows(args);
}

void Ops::rms_norm(const RmsNorm& args) {
  const DType dtype = args.out.dtype;
  expect_model_dtype("rms_norm", dtype);
  const bool wide = dtype == DType::kF16 && args.x.dtype == DType::kF32;
  expect("rms_norm", "x", args.x, wide ? DType::kF32 : dtype, {-1, -1});
  expect_optional("rms_norm", "delta", args.delta, dtype, args.x.shape);
  expect("rms_norm", "weight", args.weight, DType::kF32, {args.x.dim(1)});
  expect("rms_norm", "out", args.out, dtype, args.x.shape);
  backend_->rms_norm(args);
}

void Ops::matmul(const Matmul& args) {
  CHECK(args.weight != nullptr);
  expect_model_dtype("matmul", args.x.dtype);
  expect("matmul", "x", args.x, args.x.dtype, {-1, args.weight->in_features});
  expect_optional("matmul", "bias", args.bias, DType::kF32, {args.weight->out_features});
  expect("matmul", "out", args.out, args.x.dtype, {args.x.dim(0), args.weight->out_features});
  backend_->matmul(args);
}

void Ops::swiglu(const SwiGlu& args) {
  expect_model_dtype("swiglu", args.out.dtype);
  expect("swiglu", "out", args.out, args.out.dtype, {-1, -1});
  expect("swiglu", "gate_up", args.gate_up, args.out.dtype, {args.out.dim(0), 2 * args.out.dim(1)});
  backend_->swiglu(args);
}

void Ops::matmul_swiglu(const MatmulSwiGlu& args) {
  CHECK_MSG(args.weight != nullptr, "[matmul_swiglu] weight: got nothing");
  const DType dtype = args.out.dtype;
  expect_model_dtype("matmul_swiglu", dtype);
  expect("matmul_swiglu", "x", args.x, dtype, {-1, args.weight->in_features});
  expect("matmul_swiglu", "gate_up", args.gate_up, dtype, {args.x.dim(0), args.weight->out_features});
  expect("matmul_swiglu", "out", args.out, dtype, {args.x.dim(0), args.weight->out_features / 2});
  backend_->matmul_swiglu(args);
}

void Ops::rope_angles(const RopeAngles& args) {
  expect("rope_angles", "positions", args.positions, DType::kI32, {-1});
  expect("rope_angles", "inv_freq", args.inv_freq, DType::kF32, {-1});
  expect("rope_angles", "cos_sin", args.cos_sin, DType::kF32,
         {args.positions.dim(0), 2 * args.inv_freq.dim(0)});
  backend_->rope_angles(args);
}

void Ops::qk_rope_write(const QkRopeWrite& args) {
  const char* op = "qk_rope_write";
  const DType dtype = args.q.dtype;
  expect_model_dtype(op, dtype);
  expect(op, "q", args.q, dtype, {-1, -1, -1});
  const Index num_tokens = args.q.dim(0);
  const Index head_dim = args.q.dim(2);
  expect(op, "k", args.k, dtype, {num_tokens, -1, head_dim});
  expect(op, "v", args.v, dtype, {num_tokens, args.k.dim(1), head_dim});
  expect_optional(op, "q_norm", args.q_norm, DType::kF32, {head_dim});
  expect_optional(op, "k_norm", args.k_norm, DType::kF32, {head_dim});
  expect(op, "cos_sin", args.cos_sin, DType::kF32, {num_tokens, -1});
  CHECK_MSG(args.cos_sin.dim(1) % 2 == 0 && args.cos_sin.dim(1) <= head_dim,
            "[{}] rotary_dim: got {}, need an even number up to {}", op, args.cos_sin.dim(1), head_dim);
  expect(op, "slots", args.slots, DType::kI32, {num_tokens});
  expect(op, "q_out", args.q_out, dtype, args.q.shape);
  expect_kv(op, args.kv, dtype, args.k.dim(1), head_dim);
  backend_->qk_rope_write(args);
}

void Ops::attention(const Attention& args) {
  const char* op = "attention";
  const DType dtype = args.q.dtype;
  expect_model_dtype(op, dtype);
  expect(op, "q", args.q, dtype, {-1, -1, -1});
  expect_optional(op, "gate", args.gate, dtype, args.q.shape);
  expect(op, "out", args.out, dtype, args.q.shape);
  expect_seqs(op, args.seqs);
  expect(op, "block_table", args.block_table, DType::kI32, {args.seqs.num_seqs, -1});
  expect_kv(op, args.kv, dtype, args.kv.num_kv_heads, args.q.dim(2));
  CHECK_MSG(args.q.dim(1) % args.kv.num_kv_heads == 0, "[{}] query heads: got {}, need a multiple of {}", op,
            args.q.dim(1), args.kv.num_kv_heads);
  CHECK_MSG(args.first_seq >= 0 && args.num_seqs >= 0 && args.first_seq + args.num_seqs <= args.seqs.num_seqs,
            "[{}] sequences: got {}+{}, need at most {}", op, args.first_seq, args.num_seqs,
            args.seqs.num_seqs);
  backend_->attention(args);
}

void Ops::causal_conv(const CausalConv& args) {
  const char* op = "causal_conv";
  expect_model_dtype(op, args.x.dtype);
  expect(op, "x", args.x, args.x.dtype, {-1, args.state.conv_channels});
  expect(op, "weight", args.weight, DType::kF32, {args.state.conv_channels, args.state.conv_kernel});
  expect(op, "out", args.out, args.x.dtype, args.x.shape);
  expect_seqs(op, args.seqs);
  expect_state(op, args.state, args.state_pages, args.seqs);
  backend_->causal_conv(args);
}

void Ops::gated_delta(const GatedDelta& args) {
  const char* op = "gated_delta";
  const DType dtype = args.q.dtype;
  const StateCache& state = args.state;
  expect_model_dtype(op, dtype);
  expect(op, "q", args.q, dtype, {-1, -1, state.k_dim});
  const Index num_tokens = args.q.dim(0);
  expect(op, "k", args.k, dtype, args.q.shape);
  const Shape value_shape{num_tokens, state.num_v_heads, state.v_dim};
  expect(op, "v", args.v, dtype, value_shape);
  expect(op, "z", args.z, dtype, value_shape);
  expect(op, "out", args.out, dtype, value_shape);
  expect(op, "a", args.a, dtype, {num_tokens, state.num_v_heads});
  expect(op, "b", args.b, dtype, {num_tokens, state.num_v_heads});
  expect(op, "a_log", args.a_log, DType::kF32, {state.num_v_heads});
  expect(op, "dt_bias", args.dt_bias, DType::kF32, {state.num_v_heads});
  expect(op, "norm", args.norm, DType::kF32, {state.v_dim});
  CHECK_MSG(state.num_v_heads % args.q.dim(1) == 0, "[{}] value heads: got {}, need a multiple of {}", op,
            state.num_v_heads, args.q.dim(1));
  expect_seqs(op, args.seqs);
  expect_state(op, args.state, args.state_pages, args.seqs);
  backend_->gated_delta(args);
}

void Backend::best_column(const BestColumn& args) {
  dispatch_dtype(args.x.dtype, [&]<class T>() {
    for (Index i = 0; i < args.x.dim(0); ++i) {
      const T* row = args.x.as<T>() + i * args.x.stride(0);
      int32_t best = 0;
      bool finite = true;
      for (Index j = 0; j < args.x.dim(1); ++j) {
        const auto value = static_cast<float>(row[j]);
        finite = finite && !std::isnan(value);
        if (value > static_cast<float>(row[best])) best = static_cast<int32_t>(j);
      }
      finite = finite && std::isfinite(static_cast<float>(row[best]));
      args.out.as<int32_t>()[i] = finite ? best : -1;
    }
  });
}

void Ops::best_column(const BestColumn& args) {
  expect_model_dtype("best_column", args.x.dtype);
  expect("best_column", "x", args.x, args.x.dtype, {-1, -1});
  expect("best_column", "out", args.out, DType::kI32, {args.x.dim(0)});
  CHECK_MSG(args.x.dim(1) > 0, "[best_column] x: got {}, need a column", to_string(args.x.shape));
  backend_->best_column(args);
}

void Backend::draw(const Draw& args) {
  const auto n = static_cast<size_t>(args.x.dim(1));
  std::vector<float> logits(n);
  std::vector<uint64_t> keys;
  keys.reserve(n);
  dispatch_dtype(args.x.dtype, [&]<class T>() {
    for (Index i = 0; i < args.x.dim(0); ++i) {
      const T* from = args.x.as<T>() + i * args.x.stride(0);
      std::transform(from, from + n, logits.begin(), [](T x) { return static_cast<float>(x); });
      const bool finite = std::isfinite(*std::max_element(logits.begin(), logits.end())) &&
                          std::none_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); });
      auto& row = reinterpret_cast<DrawRow*>(args.rows.data)[i];
      args.out.as<int32_t>()[i] = finite ? draw_token(logits, row, keys) : -1;
      row.state += kStateStep;
    }
  });
}

void Ops::draw(const Draw& args) {
  const Index num_rows = args.x.dim(0);
  expect_model_dtype("draw", args.x.dtype);
  expect("draw", "x", args.x, args.x.dtype, {num_rows, -1});
  expect("draw", "rows", args.rows, DType::kU8, {num_rows, static_cast<Index>(sizeof(DrawRow))});
  expect("draw", "out", args.out, DType::kI32, {num_rows});
  CHECK_MSG(args.rows.is_dense() && reinterpret_cast<uintptr_t>(args.rows.data) % 16 == 0,
            "[draw] rows: got other than dense rows aligned to 16 bytes");
  CHECK_MSG(args.x.dim(1) > 0, "[draw] x: got {}, need a column", to_string(args.x.shape));
  backend_->draw(args);
}

void Backend::advance_inputs(const AdvanceInputs& args) {
  const auto ints = [](const TensorView& view) { return view.as<int32_t>(); };
  const Index num_seqs = args.tokens.dim(0), max_pages = args.block_table.dim(1);
  for (Index i = 0; i < num_seqs; ++i) {
    const int32_t position = ints(args.seq_lens)[i];
    const Index logical = position / args.page_tokens;
    const int32_t page =
        logical < max_pages ? ints(args.block_table)[i * args.block_table.stride(0) + logical] : -1;
    ints(args.token_ids)[i] = std::max(ints(args.tokens)[i], 0);
    for (Index axis = 0; axis < args.positions.dim(0); ++axis)
      ints(args.positions)[axis * args.positions.stride(0) + i] = position;
    ints(args.seq_lens)[i] = position + 1;
    ints(args.query_start_loc)[i] = ints(args.logit_rows)[i] = static_cast<int32_t>(i);
    ints(args.slots)[i] =
        page < 0 ? -1 : static_cast<int32_t>(page * args.page_tokens + position % args.page_tokens);
  }
  ints(args.query_start_loc)[num_seqs] = static_cast<int32_t>(num_seqs);
}

void Ops::advance_inputs(const AdvanceInputs& args) {
  const Index num_seqs = args.tokens.dim(0);
  expect("advance_inputs", "tokens", args.tokens, DType::kI32, {num_seqs});
  expect("advance_inputs", "block_table", args.block_table, DType::kI32, {num_seqs, -1});
  expect("advance_inputs", "token_ids", args.token_ids, DType::kI32, {num_seqs});
  expect("advance_inputs", "positions", args.positions, DType::kI32, {-1, num_seqs});
  expect("advance_inputs", "query_start_loc", args.query_start_loc, DType::kI32, {num_seqs + 1});
  expect("advance_inputs", "seq_lens", args.seq_lens, DType::kI32, {num_seqs});
  expect("advance_inputs", "logit_rows", args.logit_rows, DType::kI32, {num_seqs});
  expect("advance_inputs", "slots", args.slots, DType::kI32, {num_seqs});
  CHECK_MSG(args.page_tokens > 0, "[advance_inputs] page_tokens: got {}, need a token", args.page_tokens);
  backend_->advance_inputs(args);
}

}  // namespace longspan::ops
