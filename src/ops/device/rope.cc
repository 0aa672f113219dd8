// Rotary angles; head norm, rotation and the write of k and v into their pages.
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/paged_kv.h"
#include "ops/device/wave.h"

namespace longspan::ops::device {
namespace {

// Thread: one angle. Positions go to a million: a float's sine of such an angle needs double arithmetic, and
// there are few of them. The first operation of a step that a kernel may stand in front of (AdvanceInputs):
// it does not start early, so that those behind it may read the step's inputs as early as they like.
struct RopeAnglesKernel {
  static constexpr int kThreads = 64;
  Global<int32_t> positions;  // [num_tokens]
  Global<float> inv_freq;     // [half]
  Matrix<float> cos_sin;      // [num_tokens, 2 half]
  int half;

  DEVICE_FN void operator()() const {
    release_next();
    const int64_t token = block_idx().x;
    for (int j = thread_idx(); j < half; j += kThreads) {
      const double angle = static_cast<double>(static_cast<float>(positions.get(token)) * inv_freq.get(j));
      cos_sin.row(token).put(j, static_cast<float>(cos(angle)));
      cos_sin.row(token).put(half + j, static_cast<float>(sin(angle)));
    }
  }
};

// A head's place in the cache or in q_out: T as it is, or codes of rnd(value) / scale.
template <class T, class E>
struct HeadWriter {
  Global<E> to;
  float scale = 1.0f;
  int num_saturated = 0;  // of this lane

  DEVICE_FN void put(int d, float value) {
    if constexpr (sizeof(E) == 1) {
      value = rounded<T>(value) / scale;
      num_saturated += fabsf(value) > 448.0f ? 1 : 0;
    }
    to.set(d, value);
  }
};

// Wave: one head of one token. Heads 0 .. num_q_heads - 1 are q's; the rest are k's, whose wave moves v too.
// In place: a lane writes only elements that it alone reads after the norm's sum.
// E: the element of the cache.
template <int kWave, class T, class E>
struct QkRopeKernel {
  static constexpr bool kOverlaps = true;
  static constexpr int kThreads = 128;
  static constexpr int kHeadsPerBlock = kThreads / kWave;
  Heads<T> q, k, v, q_out;
  Global<float> q_norm, k_norm;  // [head_dim] or empty
  Matrix<float> cos_sin;         // [num_tokens, 2 half]
  Global<int32_t> slots;         // [num_tokens]
  PagedKv<E> kv;
  int num_q_heads;
  int half;
  float eps;
  bool round_then_scale;

  DEVICE_FN void operator()() const {
    release_next();
    await_previous();
    const int64_t token = block_idx().x;
    const int head = block_idx().y * kHeadsPerBlock + Wave<kWave>::index();
    if (head >= num_q_heads + kv.num_kv_heads) return;
    if (head < num_q_heads) {
      HeadWriter<T, T> to{q_out.row(token, head)};
      return rotate(q.row(token, head), q_norm, token, to);
    }
    const int slot = slots.get(token);
    if (slot < 0) return;
    const int kv_head = head - num_q_heads;
    const int page = slot / kv.page_tokens;
    const int offset = slot % kv.page_tokens;
    HeadWriter<T, E> to_k{kv.row(page, 0, offset, kv_head), kv.scale(0, kv_head)};
    rotate(k.row(token, kv_head), k_norm, token, to_k);
    const Global<T> from = v.row(token, kv_head);
    HeadWriter<T, E> to_v{kv.row(page, 1, offset, kv_head), kv.scale(1, kv_head)};
    for (int d = Wave<kWave>::lane(); d < kv.head_dim; d += kWave) to_v.put(d, from.at(d));
    if constexpr (sizeof(E) == 1) {
      const float count = Wave<kWave>::sum(static_cast<float>(to_k.num_saturated + to_v.num_saturated));
      if (Wave<kWave>::lane() == 0 && count > 0.0f && !kv.saturated.empty())
        add_global(kv.saturated.data, static_cast<int64_t>(count));
    }
  }

  template <class Writer>
  DEVICE_FN void rotate(Global<T> x, Global<float> norm, int64_t token, Writer& to) const {
    const int head_dim = kv.head_dim;
    float scale = 1.0f;
    if (!norm.empty()) {
      float squares = 0.0f;
      for (int d = Wave<kWave>::lane(); d < head_dim; d += kWave) squares += x.at(d) * x.at(d);
      scale = 1.0f / sqrtf(Wave<kWave>::sum(squares) / static_cast<float>(head_dim) + eps);
    }
    const Global<float> angles = cos_sin.row(token);
    for (int j = Wave<kWave>::lane(); j < half; j += kWave) {
      const float low = normed(x.at(j), norm, j, scale);
      const float high = normed(x.at(j + half), norm, j + half, scale);
      const float cosine = angles.get(j);
      const float sine = angles.get(half + j);
      to.put(j, low * cosine - high * sine);
      to.put(j + half, high * cosine + low * sine);
    }
    for (int d = 2 * half + Wave<kWave>::lane(); d < head_dim; d += kWave)
      to.put(d, normed(x.at(d), norm, d, scale));
  }

  DEVICE_FN float normed(float value, Global<float> norm, int d, float scale) const {
    if (norm.empty()) return value;
    const float w = norm.get(d);
    return round_then_scale ? rounded<T>(value * scale) * w : value * scale * (1.0f + w);
  }
};

}  // namespace

void rope_angles(const Context& context, const RopeAngles& args) {
  launch(context.device, {.name = "rope_angles", .grid = {static_cast<int>(args.positions.dim(0))}},
         RopeAnglesKernel{.positions = global<int32_t>(args.positions),
                          .inv_freq = global<float>(args.inv_freq),
                          .cos_sin = matrix<float>(args.cos_sin),
                          .half = static_cast<int>(args.inv_freq.dim(0))});
}

namespace {

template <int kWave, class T, class E>
void write_heads(const Context& context, const QkRopeWrite& args) {
  using Kernel = QkRopeKernel<kWave, T, E>;
  const Index num_heads = args.q.dim(1) + args.k.dim(1);
  launch(context.device,
         {.name = "qk_rope_write",
          .grid = {static_cast<int>(args.q.dim(0)), ceil_div(num_heads, Kernel::kHeadsPerBlock)},
          .bytes = 2.0 * static_cast<double>(args.q.size_bytes() + 2 * args.k.size_bytes())},
         Kernel{.q = heads<T>(args.q),
                .k = heads<T>(args.k),
                .v = heads<T>(args.v),
                .q_out = heads<T>(args.q_out),
                .q_norm = global<float>(args.q_norm),
                .k_norm = global<float>(args.k_norm),
                .cos_sin = matrix<float>(args.cos_sin),
                .slots = global<int32_t>(args.slots),
                .kv = paged_kv<E>(args.kv),
                .num_q_heads = static_cast<int>(args.q.dim(1)),
                .half = static_cast<int>(args.cos_sin.dim(1) / 2),
                .eps = args.eps,
                .round_then_scale = args.norm_kind == NormKind::kRoundThenScale});
}

}  // namespace

void qk_rope_write(const Context& context, const QkRopeWrite& args) {
  dispatch_element(args.q.dtype, [&]<class T>() {
    dispatch_wave(context.device, [&]<int kWave>() {
      if (args.kv.dtype == DType::kF8E4M3)
        write_heads<kWave, T, e4m3_t>(context, args);
      else
        write_heads<kWave, T, T>(context, args);
    });
  });
}

}  // namespace longspan::ops::device
