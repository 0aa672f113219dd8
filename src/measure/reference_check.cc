#include "measure/reference_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "measure/host_call.h"
#include "ops/reference/backend.h"

namespace longspan::measure {
namespace {

struct PairedWeight final : ops::Weight {
  PairedWeight(std::unique_ptr<ops::Weight> own, std::unique_ptr<ops::Weight> plain, bool is_packed)
      : inner(std::move(own)), reference(std::move(plain)), packed(is_packed) {
    out_features = inner->out_features;
    in_features = inner->in_features;
  }
  size_t size_bytes() const override { return inner->size_bytes(); }

  std::unique_ptr<ops::Weight> inner;
  std::unique_ptr<ops::Weight> reference;
  bool packed;  // in few bits
};

enum class Side : uint8_t { kInner, kReference };

OpCall with_weight(const OpCall& call, Side side) {
  OpCall own = call;
  if (const ops::Weight** weight = weight_of(own)) {
    const auto& pair = static_cast<const PairedWeight&>(**weight);
    *weight = side == Side::kInner ? pair.inner.get() : pair.reference.get();
  }
  return own;
}

// |got - want|^2 and |want|^2 of some elements.
struct Distance {
  double difference = 0;
  double norm = 0;
  int64_t num_non_finite = 0;

  void add(float got, float want) {
    if (!std::isfinite(want)) return;  // the inputs had it
    if (!std::isfinite(got)) {
      ++num_non_finite;
      return;
    }
    const double d = static_cast<double>(got) - static_cast<double>(want);
    difference += d * d;
    norm += static_cast<double>(want) * static_cast<double>(want);
  }
  double relative() const { return difference == 0 ? 0 : std::sqrt(difference / std::max(norm, 1e-30)); }
};

// Offsets of every element of a view, row by row: visit(row, head, offset); head is 0 below three axes.
template <class Visit>
void for_each_element(const TensorView& view, Visit visit) {
  const int rank = view.shape.rank;
  const Index rows = rank > 1 ? view.dim(0) : 1;
  const Index heads = rank > 2 ? view.dim(1) : 1;
  const Index columns = view.dim(rank - 1);
  for (Index i = 0; i < rows; ++i)
    for (Index h = 0; h < heads; ++h) {
      const Index start = (rank > 1 ? i * view.stride(0) : 0) + (rank > 2 ? h * view.stride(1) : 0);
      for (Index j = 0; j < columns; ++j) visit(i, h, start + j);
    }
}

std::string list_of(const std::vector<Index>& numbers) {
  constexpr size_t kMax = 6;
  std::string text;
  for (size_t i = 0; i < std::min(numbers.size(), kMax); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", numbers[i]);
  return numbers.size() > kMax ? text + ", ..." : text;
}

// Which heads, else which rows, are worse than `tolerance`; none where all are.
std::string place_of(const TensorView& got, const TensorView& want, double tolerance) {
  const bool by_head = got.shape.rank > 2;
  const Index count = by_head ? got.dim(1) : got.shape.rank > 1 ? got.dim(0) : 1;
  std::vector<Distance> parts(static_cast<size_t>(count));
  for_each_element(got, [&](Index i, Index h, Index offset) {
    // The two views have the same strides.
    parts[static_cast<size_t>(by_head     ? h
                              : count > 1 ? i
                                          : 0)]
        .add(value_at(got, offset), value_at(want, offset));
  });
  std::vector<Index> bad;
  for (Index i = 0; i < count; ++i) {
    const Distance& part = parts[static_cast<size_t>(i)];
    if (part.relative() > tolerance || part.num_non_finite > 0) bad.push_back(i);
  }
  if (bad.empty() || std::ssize(bad) == count) return "";
  return fmt::format("{} {} of {}", by_head ? "heads" : "rows", list_of(bad), count);
}

TensorView flat(void* data, size_t offset_bytes, DType dtype, Index count) {
  return TensorView(static_cast<char*>(data) + offset_bytes, dtype, {count});
}

// Over what either side wrote, in pieces of equal size: a token's K or V, a page's state.
struct PieceError {
  Distance distance;
  Index first_bad = -1;
};

class Pieces {
 public:
  Pieces(double tolerance, PieceError& error) : tolerance_(tolerance), error_(error) {}

  void add(Index index, const TensorView& got, const TensorView& want, const TensorView& before) {
    const size_t bytes = got.size_bytes();
    const bool written =
        std::memcmp(want.data, before.data, bytes) != 0 || std::memcmp(got.data, before.data, bytes) != 0;
    if (!written) return;
    Distance piece;
    for (Index i = 0; i < got.num_elements(); ++i) piece.add(value_at(got, i), value_at(want, i));
    if (error_.first_bad < 0 && (piece.relative() > tolerance_ || piece.num_non_finite > 0))
      error_.first_bad = index;
    error_.distance.difference += piece.difference;
    error_.distance.norm += piece.norm;
    error_.distance.num_non_finite += piece.num_non_finite;
  }

 private:
  double tolerance_;
  PieceError& error_;
};

PieceError compare_kv(const ops::KvCache& got, const ops::KvCache& want, const ops::KvCache& before,
                      double tolerance) {
  PieceError error;
  Pieces pieces(tolerance, error);
  const Index width = got.num_kv_heads * got.head_dim;
  const size_t row = static_cast<size_t>(width) * dtype_size(got.dtype);
  for (Index page = 0; page < got.num_pages; ++page)
    for (Index i = 0; i < 2 * got.page_tokens; ++i) {
      const size_t at = static_cast<size_t>(page * got.page_stride_bytes) + static_cast<size_t>(i) * row;
      pieces.add(page * got.page_tokens + i % got.page_tokens, flat(got.data, at, got.dtype, width),
                 flat(want.data, at, got.dtype, width), flat(before.data, at, got.dtype, width));
    }
  return error;
}

enum class StatePart : uint8_t { kState, kHistory };

PieceError compare_states(const ops::StateCache& got, const ops::StateCache& want,
                          const ops::StateCache& before, StatePart part, double tolerance) {
  PieceError error;
  Pieces pieces(tolerance, error);
  const bool history = part == StatePart::kHistory;
  const DType dtype = history ? got.conv_dtype : DType::kF32;
  const Index count =
      history ? (got.conv_kernel - 1) * got.conv_channels : got.num_v_heads * got.k_dim * got.v_dim;
  for (Index page = 0; page < got.num_pages; ++page) {
    const size_t at =
        static_cast<size_t>(page * got.page_stride_bytes + (history ? got.conv_offset_bytes : 0));
    pieces.add(page, flat(got.data, at, dtype, count), flat(want.data, at, dtype, count),
               flat(before.data, at, dtype, count));
  }
  return error;
}

}  // namespace

std::string OpError::text() const {
  const std::string place = layer < 0 ? op : fmt::format("layer {} {}", layer, op);
  const std::string at = where.empty() ? "" : fmt::format(" ({})", where);
  if (num_non_finite > 0)
    return fmt::format("{}: {} has {} numbers that are not finite{}", place, output, num_non_finite, at);
  return fmt::format("{}: {} is {:.2g} from the reference{}", place, output, relative_l2, at);
}

double op_tolerance(DType dtype, bool packed_weight) {
  const double plain = dtype == DType::kF32 ? 2e-5 : dtype == DType::kF16 ? 1e-3 : 4e-3;
  // The operation that rounds most often, a product with SwiGLU, rounds gate, up and the result: three times.
  // Each of its two weights makes one more.
  return packed_weight ? plain * std::sqrt(5.0 / 3.0) : plain;
}

ReferenceCheck::ReferenceCheck(std::unique_ptr<ops::Backend> inner, std::shared_ptr<OpReport> report)
    : BackendFront(std::move(inner)),
      reference_(ops::reference::make_backend()),
      report_(std::move(report)) {}

std::unique_ptr<ops::Weight> ReferenceCheck::pack(std::span<const TensorView> parts, DType dtype) {
  return std::make_unique<PairedWeight>(inner().pack(parts, dtype), reference_->pack(parts, dtype), false);
}
std::unique_ptr<ops::Weight> ReferenceCheck::pack_gate_up(const TensorView& gate, const TensorView& up,
                                                          DType dtype) {
  return std::make_unique<PairedWeight>(inner().pack_gate_up(gate, up, dtype),
                                        reference_->pack_gate_up(gate, up, dtype), false);
}
std::unique_ptr<ops::Weight> ReferenceCheck::pack_quantized(Parts parts, DType dtype) {
  return std::make_unique<PairedWeight>(inner().pack_quantized(parts, dtype),
                                        reference_->pack_quantized(parts, dtype), true);
}
std::unique_ptr<ops::Weight> ReferenceCheck::pack_quantized_gate_up(const ops::WeightPart& gate,
                                                                    const ops::WeightPart& up, DType dtype) {
  return std::make_unique<PairedWeight>(inner().pack_quantized_gate_up(gate, up, dtype),
                                        reference_->pack_quantized_gate_up(gate, up, dtype), true);
}

void ReferenceCheck::run(const OpCall& call) {
  const OpCall own = with_weight(call, Side::kInner);
  if (!report_->active) return run_op(inner(), own);
  const OpCall cut = with_rows(call, report_->max_rows);
  inner().synchronize();
  const HostCall before(cut, inner());
  const HostCall wanted(cut, inner());
  run_op(inner(), own);
  inner().synchronize();
  run_op(*reference_, with_weight(wanted.call(), Side::kReference));
  ++report_->num_calls;
  const HostCall after(cut, inner());
  OpCall weighed = call;
  const ops::Weight** const weight = weight_of(weighed);
  compare(after.call(), wanted.call(), before.call(),
          weight != nullptr && static_cast<const PairedWeight&>(**weight).packed);
}

void ReferenceCheck::compare(OpCall got, OpCall want, OpCall before, bool packed_weight) {
  std::vector<TensorView> wanted;
  for_each_view(want, [&](const char*, TensorView& view, ViewRole) { wanted.push_back(view); });
  const std::string op(op_name(got));
  DType dtype = DType::kF32;  // of the result, whose rounding the tolerance allows
  size_t at = 0;
  for_each_view(got, [&](const char* name, TensorView& view, ViewRole role) {
    const TensorView& expected = wanted[at++];
    if ((role != ViewRole::kOut && role != ViewRole::kInOut) || view.num_elements() == 0) return;
    if (view.dtype != DType::kI32) dtype = view.dtype;
    Distance all;
    for_each_element(view, [&](Index, Index, Index offset) {
      all.add(value_at(view, offset), value_at(expected, offset));
    });
    const double tolerance = op_tolerance(dtype, packed_weight);
    add({layer(), op, name, all.relative(), tolerance, all.num_non_finite,
         place_of(view, expected, tolerance)});
  });
  const double tolerance = op_tolerance(dtype, packed_weight);
  const auto add_pieces = [&](const char* output, const char* piece, const PieceError& error) {
    add({layer(), op, output, error.distance.relative(), tolerance, error.distance.num_non_finite,
         error.first_bad < 0 ? "" : fmt::format("{} {} is the first", piece, error.first_bad)});
  };
  if (std::holds_alternative<ops::QkRopeWrite>(got))
    add_pieces("K and V", "slot",
               compare_kv(*kv_cache_of(got), *kv_cache_of(want), *kv_cache_of(before), tolerance));
  if (std::holds_alternative<ops::CausalConv>(got))
    add_pieces("history", "page",
               compare_states(*state_cache_of(got), *state_cache_of(want), *state_cache_of(before),
                              StatePart::kHistory, tolerance));
  if (std::holds_alternative<ops::GatedDelta>(got))
    add_pieces("state", "page",
               compare_states(*state_cache_of(got), *state_cache_of(want), *state_cache_of(before),
                              StatePart::kState, tolerance));
}

void ReferenceCheck::add(OpError error) {
  OpError& worst = report_->worst[error.op];
  if (worst.op.empty() || error.num_non_finite > worst.num_non_finite ||
      (error.num_non_finite == worst.num_non_finite && error.relative_l2 > worst.relative_l2))
    worst = error;
  if (!report_->first && (error.num_non_finite > 0 || error.relative_l2 > error.tolerance))
    report_->first = std::move(error);
}

}  // namespace longspan::measure
