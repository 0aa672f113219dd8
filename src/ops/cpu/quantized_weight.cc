// Weights that stay in few bits: packed once into panels of codes, unpacked a slice at a time for the dense
// products, multiplied as they are by decode rows.
#include "ops/cpu/quantized_weight.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/quantized_kernels.h"
#include "ops/dequantize.h"

namespace longspan::ops::cpu {
namespace {

// How the panels of one part lie: [codes | scales | zeros], each a multiple of 64 bytes.
struct Form {
  const QuantizedPart* part = nullptr;  // while packing
  CodeKind kind = CodeKind::kInt4;
  Index group_size = 0;
  Index num_groups = 0;
  DType scale_dtype = DType::kF32;
  bool has_zeros = false;
  std::vector<int32_t> group_of;  // [K] or empty
  bool fused = false;             // decode rows multiply the codes
  Index row_sums_offset = 0;      // then: its group size's place among those of the weight
  size_t scales_offset = 0;
  size_t zeros_offset = 0;
  size_t panel_bytes = 0;

  bool needs_row_sums() const { return fused && kind == CodeKind::kInt4; }
};

bool has_matrix_unit() { return chosen_kernels().matrix_unit.multiply_codes != nullptr; }

Form form_of(const QuantizedPart& part) {
  constexpr size_t kLine = 64;
  Form form{.part = &part,
            .kind = part.kind,
            .group_size = part.group_size,
            .num_groups = num_blocks(part.in_features, part.group_size),
            .scale_dtype = part.scales.dtype,
            .has_zeros = !part.zeros.empty()};
  if (!part.group_of.empty()) {
    const int32_t* groups = part.group_of.as<int32_t>();
    form.group_of.assign(groups, groups + part.in_features);
  }
  const Index per_word = part.kind == CodeKind::kInt4 ? 8 : 4;
  const auto group_values = static_cast<size_t>(form.num_groups * kPanelCols);
  form.scales_offset =
      static_cast<size_t>(num_blocks(part.in_features, per_word) * kPanelCols) * sizeof(uint32_t);
  form.zeros_offset =
      form.scales_offset + (group_values * dtype_size(form.scale_dtype) + kLine - 1) / kLine * kLine;
  const bool int4 = part.kind == CodeKind::kInt4;
  // A matrix unit has no way with FP8 codes, and unpacking for it costs less than many rows of multiply-adds.
  form.fused =
      form.group_of.empty() && (int4 ? part.group_size % 8 == 0 : part.zeros.empty() && !has_matrix_unit());
  form.panel_bytes = form.zeros_offset + (form.has_zeros ? (group_values + kLine - 1) / kLine * kLine : 0);
  return form;
}

// Panels of codes where a panel lies inside one quantised part; panels of T elsewhere (dense parts, borders).
class QuantizedWeight final : public PackedWeight {
 public:
  QuantizedWeight(std::span<const WeightPart> parts, DType dtype, PanelOrder order, Index num_out)
      : PackedWeight(dtype, order, num_out, in_features_of(parts[0])) {
    for (const WeightPart& part : parts)
      forms_.push_back(std::holds_alternative<QuantizedPart>(part) ? form_of(std::get<QuantizedPart>(part))
                                                                   : Form{});
    place_row_sums();
    for (Index panel = 0; panel < num_panels(); ++panel) {
      const Form* form = form_of_panel(parts, panel);
      panels_.push_back({form, panel_bytes_});
      panel_bytes_ +=
          form != nullptr ? form->panel_bytes : static_cast<size_t>(panel_elems()) * dtype_size(dtype);
    }
  }

  void allocate() { memory_ = Buffer(panel_bytes_); }
  // Known before there is memory.
  size_t size_bytes() const override {
    size_t bytes = panel_bytes_;
    for (const Form& of : forms_) bytes += of.group_of.size() * sizeof(int32_t);
    return bytes;
  }
  bool unpacks() const override { return true; }

  const void* panels(Index col, Index cols, void* room) const override {
    for (Index i = 0; i < num_blocks(cols, kPanelCols); ++i) {
      const Index panel = col / kPanelCols + i;
      auto* to = static_cast<std::byte*>(room) + i * kPanelCols * column_bytes();
      if (form(panel) == nullptr)
        std::memcpy(to, at(panel), static_cast<size_t>(panel_elems()) * dtype_size(dtype()));
      else if (dtype() == DType::kF32)
        unpack_panel(codes(panel), reinterpret_cast<float*>(to));
      else
        unpack_panel(codes(panel), reinterpret_cast<bf16*>(to));
    }
    return room;
  }

  const Form* form(Index panel) const { return panels_[static_cast<size_t>(panel)].form; }  // nullptr: dense
  std::byte* at(Index panel) const {
    return static_cast<std::byte*>(memory_.data()) + panels_[static_cast<size_t>(panel)].offset;
  }
  CodePanel codes(Index panel) const {
    const Form& of = *form(panel);
    const std::byte* data = at(panel);
    return {.kind = of.kind,
            .k = in_features,
            .codes = reinterpret_cast<const uint32_t*>(data),
            .scales = data + of.scales_offset,
            .scale_dtype = of.scale_dtype,
            .zeros = of.has_zeros ? reinterpret_cast<const uint8_t*>(data + of.zeros_offset) : nullptr,
            .group_size = of.group_size,
            .group_of = of.group_of.empty() ? nullptr : of.group_of.data()};
  }

  // A panel as bf16, unpacked into room unless it lies there.
  const bf16* bf16_panel(Index panel, bf16* room) const {
    if (form(panel) == nullptr) return reinterpret_cast<const bf16*>(at(panel));
    unpack_panel(codes(panel), room);
    return room;
  }

  // Panels from `panel` on that are multiplied like it, at most max_panels.
  Index fused_panels(Index panel, Index max_panels, CodePanel* panels) const {
    Index count = 0;
    for (; count < max_panels; ++count) {
      const Form* of = form(panel + count);
      if (of == nullptr || !of->fused || of->group_size != form(panel)->group_size ||
          of->kind != form(panel)->kind)
        break;
      panels[count] = codes(panel + count);
    }
    return count;
  }

  // Decode rows need their sums over each group of 4-bit codes, once a group size: fn(group_size, offset),
  // offsets counting groups up to num_row_sums().
  Index num_row_sums() const { return num_row_sums_; }
  template <class Fn>
  void for_each_group_size(const Fn& fn) const {
    Index next = 0;
    for (const Form& of : forms_)
      if (of.needs_row_sums() && of.row_sums_offset == next) {
        fn(of.group_size, of.row_sums_offset);
        next += of.num_groups;
      }
  }

  // The parts are gone.
  void finish_packing() {
    for (Form& of : forms_) of.part = nullptr;
  }

 private:
  struct Panel {
    const Form* form;
    size_t offset;
  };

  const Form* form_of_panel(std::span<const WeightPart> parts, Index panel) const;
  void place_row_sums() {
    for (Form& of : forms_) {
      if (!of.needs_row_sums()) continue;
      const auto same = std::find_if(forms_.data(), &of, [&](const Form& earlier) {
        return earlier.needs_row_sums() && earlier.group_size == of.group_size;
      });
      of.row_sums_offset = same != &of ? same->row_sums_offset : num_row_sums_;
      if (same == &of) num_row_sums_ += of.num_groups;
    }
  }

  Index num_row_sums_ = 0;
  std::vector<Form> forms_;  // one a part
  std::vector<Panel> panels_;
  size_t panel_bytes_ = 0;
  Buffer memory_;
};

// A panel's columns: rows first .. first + count of one list of stacked parts.
struct PanelRows {
  size_t first_part;  // of the list
  size_t num_parts;
  Index first;
  Index count;
};

PanelRows rows_of_panel(std::span<const WeightPart> parts, PanelOrder order, Index panel) {
  const bool in_turns = order == PanelOrder::kInTurns;
  PanelRows rows{.first_part = in_turns ? static_cast<size_t>(panel % 2) : 0,
                 .num_parts = in_turns ? 1 : parts.size(),
                 .first = (in_turns ? panel / 2 : panel) * kPanelCols,
                 .count = 0};
  Index num_rows = 0;
  for (const WeightPart& part : parts.subspan(rows.first_part, rows.num_parts))
    num_rows += out_features_of(part);
  rows.count = std::min(kPanelCols, num_rows - rows.first);
  return rows;
}

// Part and row in it behind row `row` of the list.
struct PartRow {
  size_t part;
  Index row;
};
PartRow find_row(std::span<const WeightPart> parts, const PanelRows& rows, Index row) {
  for (size_t i = rows.first_part; i < rows.first_part + rows.num_parts; ++i) {
    if (row < out_features_of(parts[i])) return {i, row};
    row -= out_features_of(parts[i]);
  }
  CHECK_MSG(false, "no such row");
  __builtin_unreachable();
}

const Form* QuantizedWeight::form_of_panel(std::span<const WeightPart> parts, Index panel) const {
  const PanelRows rows = rows_of_panel(parts, order(), panel);
  const PartRow first = find_row(parts, rows, rows.first);
  const PartRow last = find_row(parts, rows, rows.first + rows.count - 1);
  if (first.part != last.part || !std::holds_alternative<QuantizedPart>(parts[first.part])) return nullptr;
  return &forms_[first.part];
}

// bytes: low half first, [ceil(k / 2)] of one row. Code 2 i in bits 4 i, code 2 i + 1 in bits 16 + 4 i.
uint32_t int4_word(const uint8_t* bytes, Index num_bytes) {
  uint32_t word = 0;
  for (Index i = 0; i < std::min<Index>(num_bytes, 4); ++i)
    word |= static_cast<uint32_t>(bytes[i] & 15) << (4 * i) | static_cast<uint32_t>(bytes[i] >> 4)
                                                                  << (16 + 4 * i);
  return word;
}

// Words of eight codes a column.
void pack_int4(const QuantizedPart& part, Index first, Index count, uint32_t* words) {
  const auto* codes = static_cast<const uint8_t*>(part.codes.data);
  const Index used = num_blocks(part.in_features, 2);
  for (Index byte = 0; byte < used; byte += 4, words += kPanelCols)
    for (Index col = 0; col < count; ++col)
      words[col] = int4_word(codes + (first + col) * part.codes.stride(0) + byte, used - byte);
  // An odd number of codes leaves half a byte that is nobody's.
  if (part.in_features % 2 != 0) {
    const int last = static_cast<int>(part.in_features % 8 / 2);
    for (Index col = 0; col < count; ++col) words[col - kPanelCols] &= ~(15u << (16 + 4 * last));
  }
}

// Bytes, a row of columns for each k.
void pack_bytes(const QuantizedPart& part, Index first, Index count, uint8_t* to) {
  const auto* codes = static_cast<const uint8_t*>(part.codes.data) + first * part.codes.stride(0);
  for (Index k = 0; k < part.in_features; ++k)
    for (Index col = 0; col < count; ++col) to[k * kPanelCols + col] = codes[col * part.codes.stride(0) + k];
}

void pack_panel(const Form& form, Index first, Index count, std::byte* to) {
  const QuantizedPart& part = *form.part;
  if (form.kind == CodeKind::kInt4)
    pack_int4(part, first, count, reinterpret_cast<uint32_t*>(to));
  else
    pack_bytes(part, first, count, reinterpret_cast<uint8_t*>(to));
  const size_t scale_bytes = dtype_size(form.scale_dtype);
  const auto* scales = static_cast<const std::byte*>(part.scales.data);
  for (Index g = 0; g < form.num_groups; ++g)
    for (Index col = 0; col < count; ++col) {
      const Index row = first + col;
      const auto at = static_cast<size_t>(g * kPanelCols + col);
      std::memcpy(
          to + form.scales_offset + at * scale_bytes,
          scales + static_cast<size_t>(row / part.scale_rows * part.scales.stride(0) + g) * scale_bytes,
          scale_bytes);
      if (form.has_zeros)
        to[form.zeros_offset + at] =
            static_cast<std::byte>(part.zeros.as<uint8_t>()[row * part.zeros.stride(0) + g]);
    }
}

// A panel of T: of dense rows, or across a border.
template <class T>
void pack_dense_panel(std::span<const WeightPart> parts, const PanelRows& rows, Index k, T* room, T* panel) {
  for (Index i = 0; i < rows.count; ++i) {
    const PartRow from = find_row(parts, rows, rows.first + i);
    const auto* dense = std::get_if<TensorView>(&parts[from.part]);
    for (Index kk = 0; kk < k; ++kk)
      room[i * k + kk] =
          T(dense != nullptr ? value_of(*dense, from.row * dense->stride(0) + kk)
                             : dequantized(std::get<QuantizedPart>(parts[from.part]), from.row, kk));
  }
  pack_b_transposed(room, k, k, rows.count, panel);
}

// Columns of one task: enough tasks that no thread waits long for the last one; whole pairs of panels.
Index decode_block_cols(Index num_cols, Index num_threads) {
  constexpr Index kUnit = 2 * kPanelCols;
  constexpr Index kMaxCols = 256;
  return std::min(kMaxCols, round_up(num_blocks(num_cols, num_threads == 1 ? 1 : 8 * num_threads), kUnit));
}

// The way depends on the weight's shape and the machine alone.
void multiply_fused(const CodePanel* panels, Index num_panels, const CodeRows& rows, float* sums,
                    Index ld_sums) {
  const auto on_tiles = chosen_kernels().matrix_unit.multiply_codes;
  if (on_tiles != nullptr && panels[0].group_size % 32 == 0 && panels[0].k % 32 == 0)
    return on_tiles(panels, num_panels, rows, sums, ld_sums);
  for (Index i = 0; i < num_panels; ++i) multiply_panel(panels[i], rows, sums + i * kPanelCols, ld_sums);
}

// Sums [m, cols] of a block leave.
void finish_block(const Product& product, Index first_col, Index cols, const float* sums, Index ld_sums) {
  const TypedKernels<bf16>& kernels = chosen_kernels().for_bf16;
  const Index out_col = product.out_from(first_col);
  const Index out_cols = std::min(product.out_from(cols), product.out.dim(1) - out_col);
  bf16* out = product.out.as<bf16>() + out_col;
  if (product.swiglu)
    kernels.swiglu_rows(sums, ld_sums, out, product.out.stride(0), product.out.dim(0), out_cols);
  else
    kernels.round_rows(sums, ld_sums, product.bias_from(first_col), out, product.out.stride(0),
                       product.out.dim(0), out_cols);
}

Index num_rows_of(std::span<const WeightPart> parts) {
  Index rows = 0;
  for (const WeightPart& part : parts) rows += out_features_of(part);
  return rows;
}

std::unique_ptr<Weight> pack(const Context& context, std::span<const WeightPart> parts, DType dtype,
                             PanelOrder order) {
  auto weight = std::make_unique<QuantizedWeight>(parts, dtype, order, num_rows_of(parts));
  weight->allocate();
  const Index k = weight->in_features;
  context.scratch.reserve(static_cast<size_t>(kPanelCols * k) * dtype_size(dtype));
  context.pool.parallel_for(weight->num_panels(), [&](int64_t panel, int thread) {
    const PanelRows rows = rows_of_panel(parts, order, panel);
    void* room = context.scratch.of_thread(thread);
    if (const Form* form = weight->form(panel))
      pack_panel(*form, find_row(parts, rows, rows.first).row, rows.count, weight->at(panel));
    else if (dtype == DType::kF32)
      pack_dense_panel(parts, rows, k, static_cast<float*>(room),
                       reinterpret_cast<float*>(weight->at(panel)));
    else
      pack_dense_panel(parts, rows, k, static_cast<bf16*>(room), reinterpret_cast<bf16*>(weight->at(panel)));
  });
  weight->finish_packing();
  return weight;
}

}  // namespace

std::unique_ptr<Weight> pack_quantized(const Context& context, std::span<const WeightPart> parts,
                                       DType dtype) {
  return pack(context, parts, dtype, PanelOrder::kStacked);
}

std::unique_ptr<Weight> pack_quantized_gate_up(const Context& context, const WeightPart& gate,
                                               const WeightPart& up, DType dtype) {
  const WeightPart parts[] = {gate, up};
  return pack(context, parts, dtype, PanelOrder::kInTurns);
}

PackedBytes packed_bytes(std::span<const WeightPart> parts, Packing packing, DType dtype) {
  const PanelOrder order = packing == Packing::kGateUp ? PanelOrder::kInTurns : PanelOrder::kStacked;
  // Panels of T lie as DenseWeight's, where all are.
  return {.weight = QuantizedWeight(parts, dtype, order, num_rows_of(parts)).size_bytes()};
}

Index multiply_codes(const Context& context, const Product& all, Index num_rows) {
  const Index m = std::min(num_rows, all.x.dim(0));
  if (m == 0 || !all.weight.unpacks() || all.x.dtype != DType::kBF16) return 0;
  const Product product = all.rows(0, m);
  const auto& weight = static_cast<const QuantizedWeight&>(all.weight);
  const Index block_cols = decode_block_cols(product.num_cols(), context.pool.num_threads());

  // Each thread: a panel of bf16, then sums [m, block_cols]. Thread 0 also holds what all read: the rows.
  const Index panel_bytes = weight.panel_elems() * static_cast<Index>(sizeof(bf16));
  const Index sums_bytes = m * block_cols * static_cast<Index>(sizeof(float));
  const Index ld = round_up(weight.in_features, kPanelCols);
  context.scratch.reserve(static_cast<size_t>(panel_bytes + sums_bytes) +
                          static_cast<size_t>(m * (ld + weight.num_row_sums())) * sizeof(float));
  auto* shared = reinterpret_cast<float*>(static_cast<std::byte*>(context.scratch.of_thread(0)) +
                                          panel_bytes + sums_bytes);
  widen_rows(product.x, shared, ld);
  float* row_sums = shared + m * ld;
  weight.for_each_group_size([&](Index group_size, Index offset) {
    sum_groups(shared, ld, m, weight.in_features, group_size, row_sums + m * offset);
  });

  context.pool.parallel_for(num_blocks(product.num_cols(), block_cols), [&](int64_t task, int thread) {
    auto* own = static_cast<std::byte*>(context.scratch.of_thread(thread));
    auto* room = reinterpret_cast<bf16*>(own);
    auto* sums = reinterpret_cast<float*>(own + panel_bytes);
    const Index first_col = task * block_cols;
    const Index cols = std::min(block_cols, product.num_cols() - first_col);
    for (Index col = 0; col < cols;) {
      const Index panel = (first_col + col) / kPanelCols;
      const Form* form = weight.form(panel);
      Index num_panels = 1;
      if (form != nullptr && form->fused) {
        CodePanel panels[kCodePanels];
        num_panels =
            weight.fused_panels(panel, std::min(kCodePanels, num_blocks(cols - col, kPanelCols)), panels);
        multiply_fused(panels, num_panels,
                       {.x = product.x.as<bf16>(),
                        .ldx = product.x.stride(0),
                        .values = shared,
                        .sums = row_sums + m * form->row_sums_offset,
                        .ld = ld,
                        .num_groups = form->num_groups,
                        .m = m},
                       sums + col, block_cols);
      } else {
        chosen_kernels().for_bf16.gemm(product.x.as<bf16>(), product.x.stride(0),
                                       weight.bf16_panel(panel, room), sums + col, block_cols, m, kPanelCols,
                                       weight.in_features, Accumulate::kNo);
      }
      col += num_panels * kPanelCols;
    }
    finish_block(product, first_col, cols, sums, block_cols);
  });
  return m;
}

}  // namespace longspan::ops::cpu
