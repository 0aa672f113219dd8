#include "measure/kernel_cases.h"

#include <algorithm>

#include "core/error.h"
#include "measure/kernel_memory.h"

namespace longspan::measure {
namespace {

using ops::Tables;

constexpr Index kMaxCopies = 1 << 14;

std::string rows_text(Index rows, Index width) { return fmt::format("rows {}, width {}", rows, width); }

std::vector<uint8_t> bytes_in(Memory& memory, const TensorView& view) {
  std::vector<uint8_t> bytes(view.size_bytes());
  memory.download(bytes.data(), view.data, bytes.size());
  return bytes;
}

// One weight of bf16 rows, packed so often that no cache holds them all.
struct Product {
  std::vector<std::unique_ptr<ops::Weight>> weights;
  Buffer x;    // bf16 [rows, K]
  Buffer out;  // bf16 [rows, N]
};

}  // namespace

KernelShapes shapes_of(const io::ModelConfig& config, const std::string& source) {
  return {.source = source,
          .hidden = config.hidden_size,
          .mlp = config.intermediate_size,
          .vocab = config.vocab_size,
          .num_q_heads = config.num_q_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .rotary_dim = config.rotary_dim,
          .gated = config.attn_output_gate,
          .num_k_heads = config.linear_num_key_heads,
          .num_v_heads = config.linear_num_value_heads,
          .k_dim = config.linear_key_head_dim,
          .v_dim = config.linear_value_head_dim,
          .conv_kernel = config.linear_conv_kernel};
}

std::vector<ProductShape> product_shapes(const KernelShapes& s) {
  const Index q_width = s.num_q_heads * s.head_dim;
  std::vector<ProductShape> list = {{(s.gated ? 2 : 1) * q_width + 2 * s.num_kv_heads * s.head_dim, s.hidden},
                                    {s.hidden, q_width},
                                    {2 * s.mlp, s.hidden},
                                    {s.hidden, s.mlp},
                                    {s.vocab, s.hidden}};
  if (s.num_k_heads > 0) {
    const Index values = s.num_v_heads * s.v_dim;
    list.push_back({2 * s.num_k_heads * s.k_dim + 2 * values + 2 * s.num_v_heads, s.hidden});
    list.push_back({s.hidden, values});
  }
  const auto key = [](const ProductShape& p) { return std::tuple(p.n * p.k, p.n); };
  std::ranges::sort(list, {}, key);
  list.erase(
      std::unique(list.begin(), list.end(), [&](const auto& a, const auto& b) { return key(a) == key(b); }),
      list.end());
  return list;
}

Index KernelCases::copies_of(size_t bytes) const {
  return std::clamp<Index>(static_cast<Index>(cold_bytes_ / std::max<size_t>(1, bytes)) + 1, 1, kMaxCopies);
}

std::vector<std::unique_ptr<ops::Weight>> KernelCases::random_weights(ProductShape shape) const {
  const Index copies = copies_of(static_cast<size_t>(shape.n * shape.k) * dtype_size(DType::kBF16));
  std::vector<std::unique_ptr<ops::Weight>> weights;
  const auto draw = [&] {
    const ops::RandomRows rows{static_cast<uint64_t>(weights.size()), shape.n};
    return ops_.pack_random({&rows, 1}, shape.k, DType::kBF16, DType::kBF16, 0.02f);
  };
  for (std::unique_ptr<ops::Weight> drawn = draw(); drawn != nullptr; drawn = draw()) {
    weights.push_back(std::move(drawn));
    if (std::ssize(weights) == copies) return weights;
  }
  const Buffer dense = random_matrix(DType::kBF16, {shape.n, shape.k});  // this backend does not draw
  const TensorView parts[] = {dense.view()};
  for (Index i = 0; i < copies; ++i) weights.push_back(ops_.pack(parts, DType::kBF16));
  return weights;
}

KernelCase KernelCases::matmul(ProductShape shape, Index rows) const {
  auto product = std::make_shared<Product>();
  product->weights = random_weights(shape);
  const auto copies = std::ssize(product->weights);
  product->x = here(random_matrix(DType::kBF16, {rows, shape.k}));
  product->out = ops_.memory().allocate(DType::kBF16, {rows, shape.n});
  const auto args = [product](Index i) {
    return ops::Matmul{.x = product->x.view(),
                       .weight = product->weights[static_cast<size_t>(i) % product->weights.size()].get(),
                       .out = product->out.view()};
  };
  return {.op = "matmul",
          .variant = "bf16",
          .shape = fmt::format("rows {}, {}x{}", rows, shape.n, shape.k),
          .work = work_of(args(0), Tables::kHost),
          .num_copies = copies,
          .cold = copies < kMaxCopies,
          .run = [this, args](Index i) { ops_.matmul(args(i)); },
          .output = [this, product] { return bytes_in(ops_.memory(), product->out.view()); }};
}

KernelPair KernelCases::quantised(ProductShape shape, Index rows, ops::CodeKind kind) const {
  constexpr Index kGroup = 128;
  const Index groups = (shape.k + kGroup - 1) / kGroup;
  const bool int4 = kind == ops::CodeKind::kInt4;
  const Buffer codes = int4 ? random_bytes(DType::kU8, {shape.n, (shape.k + 1) / 2}, 0xff)
                            : random_bytes(DType::kF8E4M3, {shape.n, shape.k}, 0xbf);
  const Buffer scales = constant_matrix(DType::kBF16, {shape.n, groups}, 0.01f);
  const ops::WeightPart parts[] = {ops::QuantizedPart{.kind = kind,
                                                      .out_features = shape.n,
                                                      .in_features = shape.k,
                                                      .group_size = kGroup,
                                                      .codes = codes.view(),
                                                      .scales = scales.view()}};
  KernelPair pair{.a = matmul(shape, rows)};
  auto product = std::make_shared<Product>();
  const Index copies = copies_of(codes.size_bytes());
  for (Index i = 0; i < copies; ++i) product->weights.push_back(ops_.pack_quantized(parts, DType::kBF16));
  product->x = here(random_matrix(DType::kBF16, {rows, shape.k}));
  product->out = ops_.memory().allocate(DType::kBF16, {rows, shape.n});
  const auto args = [product](Index i) {
    return ops::Matmul{.x = product->x.view(),
                       .weight = product->weights[static_cast<size_t>(i) % product->weights.size()].get(),
                       .out = product->out.view()};
  };
  pair.b = {.op = "matmul",
            .variant = int4 ? "int4" : "fp8",
            .shape = pair.a.shape,
            .work = work_of(args(0), Tables::kHost),
            .num_copies = copies,
            .cold = copies < kMaxCopies,
            .run = [this, args](Index i) { ops_.matmul(args(i)); }};
  return pair;
}

KernelPair KernelCases::gate_up(Index rows) const {
  const Index n = shapes_.mlp, k = shapes_.hidden;
  auto product = std::make_shared<Product>();
  const Buffer gate = random_matrix(DType::kBF16, {n, k}), up = random_matrix(DType::kBF16, {n, k}, 7);
  const Index copies = copies_of(2 * gate.size_bytes());
  for (Index i = 0; i < copies; ++i)
    product->weights.push_back(ops_.pack_gate_up(gate.view(), up.view(), DType::kBF16));
  product->x = here(random_matrix(DType::kBF16, {rows, k}));
  product->out = ops_.memory().allocate(DType::kBF16, {rows, n});
  auto room = std::make_shared<Buffer>(ops_.memory().allocate(DType::kBF16, {rows, 2 * n}));
  const auto args = [product, room](Index i) {
    return ops::MatmulSwiGlu{
        .x = product->x.view(),
        .weight = product->weights[static_cast<size_t>(i) % product->weights.size()].get(),
        .gate_up = room->view(),
        .out = product->out.view()};
  };
  // A backend that packs both halves into an order of its own has only the fused form of that weight: two
  // operations get the plain one.
  auto plain = std::make_shared<Product>();
  const TensorView parts[] = {gate.view(), up.view()};
  for (Index i = 0; i < copies; ++i) plain->weights.push_back(ops_.pack(parts, DType::kBF16));
  plain->out = ops_.memory().allocate(DType::kBF16, {rows, n});
  const auto two = [this, product, plain, room](Index i) {
    ops_.matmul({.x = product->x.view(),
                 .weight = plain->weights[static_cast<size_t>(i) % plain->weights.size()].get(),
                 .out = room->view()});
    ops_.swiglu({.gate_up = room->view(), .out = plain->out.view()});
  };
  KernelPair pair{.bits_equal = true};
  pair.b = {.op = "matmul_swiglu",
            .variant = "fused",
            .shape = fmt::format("rows {}, {}x{}", rows, 2 * n, k),
            .work = work_of(args(0), Tables::kHost),
            .num_copies = copies,
            .cold = copies < kMaxCopies,
            .run = [this, args](Index i) { ops_.matmul_swiglu(args(i)); },
            .output = [this, product] { return bytes_in(ops_.memory(), product->out.view()); }};
  pair.a = pair.b;
  pair.a.variant = "two operations";
  pair.a.run = two;
  pair.a.output = [this, plain] { return bytes_in(ops_.memory(), plain->out.view()); };
  return pair;
}

// ---- rows: each copy has inputs and outputs of its own ----

KernelCase KernelCases::rms_norm(Index rows) const {
  auto ring =
      std::make_shared<Ring>(ops_.memory(), copies_of(3 * static_cast<size_t>(rows * shapes_.hidden) * 2),
                             DType::kBF16, Shape{3 * rows, shapes_.hidden});
  auto weight = std::make_shared<Buffer>(here(constant_matrix(DType::kF32, {shapes_.hidden}, 0.5f)));
  const auto args = [ring, weight, rows](Index i) {
    const TensorView all = ring->at(i);
    return ops::RmsNorm{.x = all.rows(0, rows),
                        .delta = all.rows(rows, rows),
                        .weight = weight->view(),
                        .out = all.rows(2 * rows, rows)};
  };
  return {.op = "rms_norm",
          .shape = rows_text(rows, shapes_.hidden),
          .work = work_of(args(0), Tables::kHost),
          .num_copies = ring->num_copies(),
          .cold = ring->num_copies() < kMaxCopies,
          .run = [this, args](Index i) { ops_.rms_norm(args(i)); }};
}

KernelCase KernelCases::swiglu(Index rows) const {
  auto ring =
      std::make_shared<Ring>(ops_.memory(), copies_of(3 * static_cast<size_t>(rows * shapes_.mlp) * 2),
                             DType::kBF16, Shape{3 * rows, shapes_.mlp});
  const auto args = [ring, rows, width = shapes_.mlp](Index i) {
    const TensorView all = ring->at(i);
    return ops::SwiGlu{.gate_up = TensorView(all.data, all.dtype, {rows, 2 * width}),
                       .out = all.rows(2 * rows, rows)};
  };
  return {.op = "swiglu",
          .shape = rows_text(rows, shapes_.mlp),
          .work = work_of(args(0), Tables::kHost),
          .num_copies = ring->num_copies(),
          .cold = ring->num_copies() < kMaxCopies,
          .run = [this, args](Index i) { ops_.swiglu(args(i)); }};
}

KernelCase KernelCases::embed(Index rows) const {
  const Index vocab = std::min<Index>(shapes_.vocab, 1 << 16);
  const Buffer dense = random_matrix(DType::kBF16, {vocab, shapes_.hidden});
  const TensorView parts[] = {dense.view()};
  auto product = std::make_shared<Product>();
  const Index copies = copies_of(dense.size_bytes());
  for (Index i = 0; i < copies; ++i) product->weights.push_back(ops_.pack(parts, DType::kBF16));
  product->out = ops_.memory().allocate(DType::kBF16, {rows, shapes_.hidden});
  auto ids = std::make_shared<Buffer>(here(scattered_indices(std::max(vocab, rows), vocab)));
  const auto args = [product, ids, rows](Index i) {
    const Index last = ids->view().dim(0) - rows;  // other rows of the table each time
    return ops::Embed{.ids = ids->view().rows(i * rows % (last + 1), rows),
                      .table = product->weights[static_cast<size_t>(i) % product->weights.size()].get(),
                      .out = product->out.view()};
  };
  return {.op = "embed",
          .shape = rows_text(rows, shapes_.hidden),
          .work = work_of(args(0), Tables::kHost),
          .num_copies = copies,
          .cold = copies < kMaxCopies,
          .run = [this, args](Index i) { ops_.embed(args(i)); }};
}

KernelCase KernelCases::gather_rows(Index rows) const {
  auto ring =
      std::make_shared<Ring>(ops_.memory(), copies_of(2 * static_cast<size_t>(rows * shapes_.hidden) * 2),
                             DType::kBF16, Shape{2 * rows, shapes_.hidden});
  auto indices = std::make_shared<Buffer>(here(scattered_indices(rows, rows)));
  const auto args = [ring, indices, rows](Index i) {
    const TensorView all = ring->at(i);
    return ops::GatherRows{.x = all.rows(0, rows), .rows = indices->view(), .out = all.rows(rows, rows)};
  };
  return {.op = "gather_rows",
          .shape = rows_text(rows, shapes_.hidden),
          .work = work_of(args(0), Tables::kHost),
          .num_copies = ring->num_copies(),
          .cold = ring->num_copies() < kMaxCopies,
          .run = [this, args](Index i) { ops_.gather_rows(args(i)); }};
}

KernelCase KernelCases::rope_angles(Index rows) const {
  auto ring =
      std::make_shared<Ring>(ops_.memory(), copies_of(static_cast<size_t>(rows * shapes_.rotary_dim) * 4),
                             DType::kF32, Shape{rows, shapes_.rotary_dim});
  auto positions = std::make_shared<Buffer>(here(scattered_indices(rows, 1 << 17)));
  auto inv_freq =
      std::make_shared<Buffer>(here(constant_matrix(DType::kF32, {shapes_.rotary_dim / 2}, 0.1f)));
  const auto args = [ring, positions, inv_freq](Index i) {
    return ops::RopeAngles{
        .positions = positions->view(), .inv_freq = inv_freq->view(), .cos_sin = ring->at(i)};
  };
  return {.op = "rope_angles",
          .shape = rows_text(rows, shapes_.rotary_dim),
          .work = work_of(args(0), Tables::kHost),
          .num_copies = ring->num_copies(),
          .cold = ring->num_copies() < kMaxCopies,
          .run = [this, args](Index i) { ops_.rope_angles(args(i)); }};
}

KernelCase KernelCases::best_column(Index rows) const {
  auto ring = std::make_shared<Ring>(ops_.memory(), copies_of(static_cast<size_t>(rows * shapes_.vocab) * 2),
                                     DType::kBF16, Shape{rows, shapes_.vocab});
  auto out = std::make_shared<Buffer>(ops_.memory().allocate(DType::kI32, {rows}));
  const auto args = [ring, out](Index i) { return ops::BestColumn{.x = ring->at(i), .out = out->view()}; };
  return {.op = "best_column",
          .shape = rows_text(rows, shapes_.vocab),
          .work = work_of(args(0), Tables::kHost),
          .num_copies = ring->num_copies(),
          .cold = ring->num_copies() < kMaxCopies,
          .run = [this, args](Index i) { ops_.best_column(args(i)); }};
}

}  // namespace longspan::measure
