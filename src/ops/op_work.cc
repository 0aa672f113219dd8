#include "ops/op_work.h"

#include <algorithm>
#include <array>

namespace longspan::ops {
namespace {

double bytes_of(const TensorView& view) {
  if (view.empty()) return 0;
  return static_cast<double>(view.num_elements()) * static_cast<double>(dtype_size(view.dtype));
}

int32_t dim32(Index size) { return static_cast<int32_t>(size); }

OpClass product_class(Index num_rows, OpClass skinny) {
  return num_rows > kSkinnyRows ? OpClass::kMatrixProduct : skinny;
}

double product_flops(Index rows, Index n, Index k) {
  return 2 * static_cast<double>(rows) * static_cast<double>(n) * static_cast<double>(k);
}

// What the state of each sequence of a step costs: read and written once.
double state_bytes(const StateCache& state, const Sequences& seqs) {
  return 2.0 * static_cast<double>(seqs.num_seqs * state.num_v_heads * state.k_dim * state.v_dim) *
         sizeof(float);
}

struct Visible {
  double pairs = 0;  // (query, key)
  double keys = 0;   // read at least once
  Index longest = 0;
};

Visible visible_of(const Attention& args) {
  Visible visible;
  const auto* starts = args.seqs.query_start_loc.as<int32_t>();
  const auto* lens = args.seqs.seq_lens.as<int32_t>();
  for (Index i = args.first_seq; i < args.first_seq + args.num_seqs; ++i) {
    const double q = starts[i + 1] - starts[i];
    const double kv = lens[i];
    visible.pairs += q * (kv - (q - 1) / 2);
    visible.keys += kv;
    visible.longest = std::max<Index>(visible.longest, lens[i]);
  }
  return visible;
}

}  // namespace

std::string_view to_string(OpKind kind) {
  constexpr std::array<std::string_view, kNumOpKinds> kNames = {
      "embed",         "gather_rows", "rms_norm",      "matmul",        "swiglu",
      "matmul_swiglu", "rope_angles", "qk_rope_write", "attention",     "causal_conv",
      "gated_delta",   "best_column", "draw",          "advance_inputs"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view to_string(OpClass op_class) {
  constexpr std::array<std::string_view, kNumOpClasses> kNames = {"matrix products",
                                                                  "skinny products",
                                                                  "gate/up GEMV",
                                                                  "prefill attention",
                                                                  "decode attention",
                                                                  "GDN",
                                                                  "convolution",
                                                                  "norms",
                                                                  "rope and cache writes",
                                                                  "rows",
                                                                  "sampling"};
  return kNames[static_cast<size_t>(op_class)];
}

std::string_view name_of(AttentionPath path) {
  constexpr std::string_view kNames[] = {"unified", "vendor_prefill", "page_contiguous_decode"};
  return kNames[static_cast<size_t>(path)];
}

std::string name_of(const OpWork& work) {
  const std::string_view kind = to_string(work.kind);
  switch (work.kind) {
    case OpKind::kMatmul:
    case OpKind::kMatmulSwiGlu:
      return fmt::format("{} {}x{}{}", kind, work.n, work.k,
                         work.op_class == OpClass::kMatrixProduct ? "" : " skinny");
    case OpKind::kAttention:
      return fmt::format("{} {}{}", kind, name_of(work.path),
                         work.decode && work.path == AttentionPath::kUnified ? " decode" : "");
    case OpKind::kCausalConv:
    case OpKind::kGatedDelta:
      return fmt::format("{} {}", kind, work.decode ? "decode" : "prefill");
    default:
      return std::string(kind);
  }
}

OpWork work_of(const Embed& args, Tables) {
  return {.kind = OpKind::kEmbed,
          .op_class = OpClass::kRows,
          .rows = dim32(args.out.dim(0)),
          .n = dim32(args.out.dim(1)),
          .bytes = 2 * bytes_of(args.out)};
}

OpWork work_of(const GatherRows& args, Tables) {
  return {.kind = OpKind::kGatherRows,
          .op_class = OpClass::kRows,
          .rows = dim32(args.out.dim(0)),
          .n = dim32(args.out.dim(1)),
          .bytes = 2 * bytes_of(args.out)};
}

OpWork work_of(const RmsNorm& args, Tables) {
  return {
      .kind = OpKind::kRmsNorm,
      .op_class = OpClass::kNorm,
      .rows = dim32(args.x.dim(0)),
      .n = dim32(args.x.dim(1)),
      .bytes = (args.delta.empty() ? 1 : 2) * bytes_of(args.x) + bytes_of(args.delta) + bytes_of(args.out)};
}

OpWork work_of(const Matmul& args, Tables) {
  const Index rows = args.x.dim(0);
  return {.kind = OpKind::kMatmul,
          .op_class = product_class(rows, OpClass::kSkinnyProduct),
          .rows = dim32(rows),
          .n = dim32(args.weight->out_features),
          .k = dim32(args.weight->in_features),
          .bytes = static_cast<double>(args.weight->size_bytes()) + bytes_of(args.x) + bytes_of(args.out),
          .flops = product_flops(rows, args.weight->out_features, args.weight->in_features)};
}

OpWork work_of(const SwiGlu& args, Tables) {
  return {.kind = OpKind::kSwiGlu,
          .op_class = OpClass::kRows,
          .rows = dim32(args.out.dim(0)),
          .n = dim32(args.out.dim(1)),
          .bytes = 3 * bytes_of(args.out)};
}

OpWork work_of(const MatmulSwiGlu& args, Tables) {
  const Index rows = args.x.dim(0);
  return {.kind = OpKind::kMatmulSwiGlu,
          .op_class = product_class(rows, OpClass::kSkinnyGateUp),
          .rows = dim32(rows),
          .n = dim32(args.weight->out_features),
          .k = dim32(args.weight->in_features),
          .bytes = static_cast<double>(args.weight->size_bytes()) + bytes_of(args.x) + bytes_of(args.out),
          .flops = product_flops(rows, args.weight->out_features, args.weight->in_features)};
}

OpWork work_of(const RopeAngles& args, Tables) {
  return {.kind = OpKind::kRopeAngles,
          .op_class = OpClass::kRopeAndCache,
          .rows = dim32(args.cos_sin.dim(0)),
          .n = dim32(args.cos_sin.dim(1)),
          .bytes = bytes_of(args.positions) + bytes_of(args.cos_sin)};
}

OpWork work_of(const QkRopeWrite& args, Tables) {
  return {.kind = OpKind::kQkRopeWrite,
          .op_class = OpClass::kRopeAndCache,
          .rows = dim32(args.q.dim(0)),
          .n = dim32((args.q.dim(1) + 2 * args.k.dim(1)) * args.q.dim(2)),
          .bytes = 2 * (bytes_of(args.q) + bytes_of(args.k) + bytes_of(args.v)) + bytes_of(args.cos_sin)};
}

OpWork work_of(const Attention& args, Tables tables) {
  const bool decode = args.first_seq + args.num_seqs <= args.seqs.num_decode_seqs;
  OpWork work{.kind = OpKind::kAttention,
              .op_class = decode ? OpClass::kDecodeAttention : OpClass::kPrefillAttention,
              .path = args.path,
              .decode = decode,
              .rows = decode ? dim32(args.num_seqs) : dim32(args.q.dim(0)),
              .n = dim32(args.q.dim(1) * args.q.dim(2))};
  if (tables == Tables::kDevice) return work;
  const auto* starts = args.seqs.query_start_loc.as<int32_t>();
  work.rows = starts[args.first_seq + args.num_seqs] - starts[args.first_seq];
  const Visible visible = visible_of(args);
  const double element = static_cast<double>(dtype_size(args.q.dtype));
  const double head_dim = static_cast<double>(args.q.dim(2));
  work.k = dim32(visible.longest);
  work.flops = 4 * head_dim * static_cast<double>(args.q.dim(1)) * visible.pairs;
  work.bytes = (args.gate.empty() ? 2 : 3) * element * work.rows * work.n +
               2 * visible.keys * static_cast<double>(args.kv.num_kv_heads) * head_dim *
                   static_cast<double>(dtype_size(args.kv.dtype));
  return work;
}

OpWork work_of(const CausalConv& args, Tables) {
  const StateCache& state = args.state;
  const double history =
      static_cast<double>(args.seqs.num_seqs * (state.conv_kernel - 1) * state.conv_channels * 2) *
      static_cast<double>(dtype_size(state.conv_dtype));
  return {.kind = OpKind::kCausalConv,
          .op_class = OpClass::kConv,
          .decode = args.seqs.num_decode_seqs == args.seqs.num_seqs,
          .rows = dim32(args.x.dim(0)),
          .n = dim32(args.x.dim(1)),
          .bytes = bytes_of(args.x) + bytes_of(args.out) + bytes_of(args.weight) + history,
          .flops = 2 * static_cast<double>(args.x.num_elements() * state.conv_kernel)};
}

OpWork work_of(const GatedDelta& args, Tables) {
  const StateCache& state = args.state;
  const Index tokens = args.q.dim(0);
  return {.kind = OpKind::kGatedDelta,
          .op_class = OpClass::kGatedDelta,
          .decode = args.seqs.num_decode_seqs == args.seqs.num_seqs,
          .rows = dim32(tokens),
          .n = dim32(state.num_v_heads * state.v_dim),
          .bytes = bytes_of(args.q) + bytes_of(args.k) + bytes_of(args.v) + bytes_of(args.z) +
                   bytes_of(args.a) + bytes_of(args.b) + bytes_of(args.out) + state_bytes(state, args.seqs),
          .flops = 7 * static_cast<double>(tokens * state.num_v_heads * state.k_dim * state.v_dim)};
}

OpWork work_of(const BestColumn& args, Tables) {
  return {.kind = OpKind::kBestColumn,
          .op_class = OpClass::kSampling,
          .rows = dim32(args.x.dim(0)),
          .n = dim32(args.x.dim(1)),
          .bytes = bytes_of(args.x)};
}

OpWork work_of(const Draw& args, Tables) {
  return {.kind = OpKind::kDraw,
          .op_class = OpClass::kSampling,
          .rows = dim32(args.x.dim(0)),
          .n = dim32(args.x.dim(1)),
          .bytes = bytes_of(args.x)};
}

OpWork work_of(const AdvanceInputs& args, Tables) {
  return {
      .kind = OpKind::kAdvanceInputs, .op_class = OpClass::kRows, .rows = dim32(args.tokens.dim(0)), .n = 1};
}

}  // namespace longspan::ops
