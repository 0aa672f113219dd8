#include "ops/reference/backend.h"

#include <cmath>

#include "core/buffer.h"
#include "ops/dequantize.h"
#include "ops/reference/internal.h"

namespace longspan::ops::reference {
namespace {

// Rows as they are, each value rounded once to the product's dtype and kept as float.
class PlainWeight final : public Weight {
 public:
  PlainWeight(std::span<const TensorView> parts, DType dtype) {
    in_features = parts[0].dim(1);
    for (const TensorView& part : parts) out_features += part.dim(0);
    values_ = Buffer(DType::kF32, {out_features, in_features});
    Index row = 0;
    for (const TensorView& part : parts)
      for (Index i = 0; i < part.dim(0); ++i, ++row)
        for (Index j = 0; j < in_features; ++j)
          values_.view().as<float>()[row * in_features + j] = rounded(Elements(part).at(i, j), dtype);
  }

  // Quantised rows stay exact: no rounding to the product's dtype.
  PlainWeight(std::span<const WeightPart> parts, DType dtype) {
    in_features = in_features_of(parts[0]);
    for (const WeightPart& part : parts) out_features += out_features_of(part);
    values_ = Buffer(DType::kF32, {out_features, in_features});
    float* to = values_.view().as<float>();
    for (const WeightPart& part : parts)
      for (Index i = 0; i < out_features_of(part); ++i)
        for (Index j = 0; j < in_features; ++j)
          *to++ = std::holds_alternative<TensorView>(part)
                      ? rounded(Elements(std::get<TensorView>(part)).at(i, j), dtype)
                      : dequantized(std::get<QuantizedPart>(part), i, j);
  }

  size_t size_bytes() const override { return values_.size_bytes(); }
  const float* row(Index i) const { return values_.view().as<float>() + i * in_features; }

 private:
  Buffer values_;
};

const PlainWeight& plain(const Weight* weight) { return static_cast<const PlainWeight&>(*weight); }

float silu(float x) { return x / (1.0f + std::exp(-x)); }

// Normalised and scaled values of one row, not yet rounded at the end.
std::vector<float> normed(const std::vector<float>& x, const TensorView& weight, NormKind kind, float eps,
                          DType dtype) {
  double sum = 0;
  for (float value : x) sum += static_cast<double>(value) * value;
  const float scale = 1.0f / std::sqrt(static_cast<float>(sum / static_cast<double>(x.size())) + eps);
  std::vector<float> y(x.size());
  for (size_t j = 0; j < x.size(); ++j) {
    const float w = weight.as<float>()[j];
    y[j] = kind == NormKind::kZeroCentered ? x[j] * scale * (1.0f + w) : rounded(x[j] * scale, dtype) * w;
  }
  return y;
}

class ReferenceBackend final : public Backend {
 public:
  std::string name() const override { return "reference"; }

  std::unique_ptr<Weight> pack(std::span<const TensorView> parts, DType dtype) override {
    return std::make_unique<PlainWeight>(parts, dtype);
  }

  std::unique_ptr<Weight> pack_quantized(std::span<const WeightPart> parts, DType dtype) override {
    return std::make_unique<PlainWeight>(parts, dtype);
  }

  void embed(const Embed& args) override {
    for (Index i = 0; i < args.out.dim(0); ++i) {
      const float* row = plain(args.table).row(args.ids.as<int32_t>()[i]);
      for (Index j = 0; j < args.out.dim(1); ++j) Elements(args.out).set(row[j], i, j);
    }
  }

  void gather_rows(const GatherRows& args) override {
    for (Index i = 0; i < args.out.dim(0); ++i)
      for (Index j = 0; j < args.out.dim(1); ++j)
        Elements(args.out).set(Elements(args.x).at(args.rows.as<int32_t>()[i], j), i, j);
  }

  void rms_norm(const RmsNorm& args) override {
    const Elements x(args.x);
    std::vector<float> row(static_cast<size_t>(args.x.dim(1)));
    for (Index i = 0; i < args.x.dim(0); ++i) {
      for (Index j = 0; j < args.x.dim(1); ++j) {
        if (!args.delta.empty()) x.set(x.at(i, j) + Elements(args.delta).at(i, j), i, j);
        row[static_cast<size_t>(j)] = x.at(i, j);
      }
      const std::vector<float> y = normed(row, args.weight, args.kind, args.eps, args.out.dtype);
      for (Index j = 0; j < args.x.dim(1); ++j) Elements(args.out).set(y[static_cast<size_t>(j)], i, j);
    }
  }

  void matmul(const Matmul& args) override {
    const Index k = args.weight->in_features;
    std::vector<float> x(static_cast<size_t>(k));
    for (Index i = 0; i < args.x.dim(0); ++i) {
      for (Index kk = 0; kk < k; ++kk) x[static_cast<size_t>(kk)] = Elements(args.x).at(i, kk);
      for (Index j = 0; j < args.weight->out_features; ++j) {
        const float* w = plain(args.weight).row(j);
        float sum = args.bias.empty() ? 0.0f : args.bias.as<float>()[j];
        for (Index kk = 0; kk < k; ++kk) sum += x[static_cast<size_t>(kk)] * w[kk];
        Elements(args.out).set(sum, i, j);
      }
    }
  }

  void swiglu(const SwiGlu& args) override {
    const Elements gate_up(args.gate_up);
    const Index n = args.out.dim(1);
    for (Index i = 0; i < args.out.dim(0); ++i)
      for (Index j = 0; j < n; ++j)
        Elements(args.out).set(silu(gate_up.at(i, j)) * gate_up.at(i, n + j), i, j);
  }

  void rope_angles(const RopeAngles& args) override {
    const Index half = args.inv_freq.dim(0);
    for (Index t = 0; t < args.positions.dim(0); ++t)
      for (Index j = 0; j < half; ++j) {
        const float angle =
            static_cast<float>(args.positions.as<int32_t>()[t]) * args.inv_freq.as<float>()[j];
        Elements(args.cos_sin).set(static_cast<float>(std::cos(static_cast<double>(angle))), t, j);
        Elements(args.cos_sin).set(static_cast<float>(std::sin(static_cast<double>(angle))), t, half + j);
      }
  }

  void qk_rope_write(const QkRopeWrite& args) override {
    const Index num_tokens = args.q.dim(0);
    for (Index t = 0; t < num_tokens; ++t) {
      for (Index head = 0; head < args.q.dim(1); ++head)
        write_head(rotated(args, args.q, args.q_norm, t, head), Elements(args.q_out), t, head);
      const Index slot = args.slots.as<int32_t>()[t];
      if (slot < 0) continue;
      for (Index head = 0; head < args.k.dim(1); ++head) {
        std::vector<float> v(static_cast<size_t>(args.v.dim(2)));
        for (size_t d = 0; d < v.size(); ++d) v[d] = Elements(args.v).at(t, head, static_cast<Index>(d));
        write_cached(args, slot, 0, head, rotated(args, args.k, args.k_norm, t, head));
        write_cached(args, slot, 1, head, std::move(v));
      }
    }
  }

  void attention(const Attention& args) override { reference::attention(args); }
  void causal_conv(const CausalConv& args) override { reference::causal_conv(args); }
  void gated_delta(const GatedDelta& args) override { reference::gated_delta(args); }

 private:
  static void write_head(const std::vector<float>& values, const Elements& out, Index i, Index head) {
    for (size_t d = 0; d < values.size(); ++d) out.set(values[d], i, head, static_cast<Index>(d));
  }

  // K (plane 0) or V (plane 1) of one head into its slot.
  static void write_cached(const QkRopeWrite& args, Index slot, Index plane, Index head,
                           std::vector<float> values) {
    const KvCache& kv = args.kv;
    if (kv.dtype == DType::kF8E4M3) {
      const float scale = kv_scale(kv, plane, head);
      for (float& value : values) {
        value = rounded(value, args.k.dtype) / scale;
        if (std::abs(value) > 448.0f && !kv.saturated.empty()) ++*kv.saturated.as<int64_t>();
      }
    }
    write_head(values, Elements(kv_page(kv, slot / kv.page_tokens, plane)), slot % kv.page_tokens, head);
  }

  // One head of q or k: norm, then rotation of the first rotary_dim values.
  static std::vector<float> rotated(const QkRopeWrite& args, const TensorView& x, const TensorView& norm,
                                    Index t, Index head) {
    std::vector<float> values(static_cast<size_t>(x.dim(2)));
    for (Index d = 0; d < x.dim(2); ++d) values[static_cast<size_t>(d)] = Elements(x).at(t, head, d);
    if (!norm.empty()) values = normed(values, norm, args.norm_kind, args.eps, x.dtype);
    const Index half = args.cos_sin.dim(1) / 2;
    for (Index j = 0; j < half; ++j) {
      const float cosine = Elements(args.cos_sin).at(t, j);
      const float sine = Elements(args.cos_sin).at(t, half + j);
      const float low = values[static_cast<size_t>(j)];
      const float high = values[static_cast<size_t>(j + half)];
      values[static_cast<size_t>(j)] = low * cosine - high * sine;
      values[static_cast<size_t>(j + half)] = high * cosine + low * sine;
    }
    return values;
  }
};

}  // namespace

PackedBytes packed_bytes(std::span<const WeightPart> parts) {
  Index rows = 0;
  for (const WeightPart& part : parts) rows += out_features_of(part);
  return {.weight = static_cast<size_t>(rows * in_features_of(parts[0])) * sizeof(float)};
}

std::unique_ptr<Backend> make_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace longspan::ops::reference
