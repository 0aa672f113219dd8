// The kernels of the device backend on the shapes of a 27B model (Qwen3.5-27B), one by one, beside what the
// card can do:  longspan_device_bench [device index] [name filter]
// Each row: back-to-back calls between two waits, so launches overlap as they do in a step. Weights and pages
// are larger than the second-level cache, or rotated until they are.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "measure/kernel_times.h"
#include "ops/device/backend.h"
#include "ops/draw.h"

namespace longspan::bench {
namespace {

using ops::Backend;

constexpr double kSeconds = 0.15;                  // of one measurement, whose median is shown
constexpr size_t kCacheBytes = size_t{256} << 20;  // rotated inputs are larger than this together

class Bench {
 public:
  Bench(Backend& backend, std::string filter) : backend_(backend), filter_(std::move(filter)) {}

  // Times call(i), i counting up. bytes and flops are those of one call.
  void row(const std::string& name, double bytes, double flops, const std::function<void(int)>& call) {
    if (name.find(filter_) == std::string::npos) return;
    const measure::KernelTimes times =
        measure::time_calls([&](Index i) { call(static_cast<int>(i)); }, [&] { backend_.synchronize(); },
                            {.limit_seconds = kSeconds, .run_seconds = measure::kDeviceRunSeconds});
    const double us = times.median();
    fmt::print("{:<44} {:>10.1f} us {:>8.1f} GB/s {:>8.2f} TFLOP/s   90th percentile {:+.1f} %\n", name, us,
               bytes / us * 1e-3, flops / us * 1e-6, 100 * (times.percentile(0.9) / us - 1));
    std::fflush(stdout);
  }

  TensorView tensor(DType dtype, Shape shape) {
    buffers_.push_back(backend_.allocate(dtype, shape));
    backend_.zero(buffers_.back().data(), buffers_.back().size_bytes());
    return buffers_.back().view();
  }
  // Small random numbers: zeros would flatter the card.
  TensorView random(DType dtype, Shape shape) {
    const Index rows = shape.num_elements() / shape[shape.rank - 1];
    weights_.push_back(weight(rows, shape[shape.rank - 1]));
    return TensorView(data_of(*weights_.back(), dtype, shape).data, dtype, shape);
  }
  TensorView ints(const std::vector<int32_t>& values) {
    const TensorView view = tensor(DType::kI32, {static_cast<Index>(values.size())});
    backend_.upload(view.data, values.data(), values.size() * sizeof(int32_t));
    return view;
  }
  std::unique_ptr<ops::Weight> weight(Index n, Index k) {
    const ops::RandomRows rows{static_cast<uint64_t>(n * 31 + k), n};
    return backend_.pack_random({&rows, 1}, k, DType::kBF16, DType::kBF16, 0.02f);
  }

  // Bytes without the codes of NaN and of numbers from 2 on, should they be FP8.
  TensorView codes(DType dtype, Shape shape) {
    const TensorView view = tensor(dtype, shape);
    const std::vector<uint8_t> bytes = random_bytes(std::min(view.size_bytes(), size_t{1} << 24));
    for (size_t at = 0; at < view.size_bytes(); at += bytes.size())
      backend_.upload(static_cast<char*>(view.data) + at, bytes.data(),
                      std::min(bytes.size(), view.size_bytes() - at));
    return view;
  }
  static std::vector<uint8_t> random_bytes(size_t count) {
    std::vector<uint8_t> bytes(count);
    uint32_t state = 1;
    for (uint8_t& byte : bytes)
      byte = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24) & 0xbf;
    return bytes;
  }
  // 4 bits, zeros and f16 scales in groups of 128, as AWQ has them; or FP8 in blocks of 128 x 128
  // with bf16 scales, as checkpoints have them.
  std::unique_ptr<ops::Weight> quantised_weight(Index n, Index k, ops::CodeKind kind) {
    constexpr Index kGroup = 128;
    if (kind == ops::CodeKind::kE4M3) {
      const std::vector<uint8_t> codes = random_bytes(static_cast<size_t>(n * k));
      const std::vector<bf16> scales(static_cast<size_t>(n * k / kGroup / kGroup), bf16(0.03f));
      const ops::WeightPart part = ops::QuantizedPart{
          .kind = kind,
          .out_features = n,
          .in_features = k,
          .group_size = kGroup,
          .scale_rows = kGroup,
          .codes = TensorView(const_cast<uint8_t*>(codes.data()), DType::kF8E4M3, {n, k}),
          .scales = TensorView(const_cast<bf16*>(scales.data()), DType::kBF16, {n / kGroup, k / kGroup})};
      return backend_.pack_quantized({&part, 1}, DType::kBF16);
    }
    std::vector<uint8_t> values = random_bytes(static_cast<size_t>(n * k / 2));
    std::vector<uint8_t> zeros(static_cast<size_t>(n * k / kGroup), 8);
    std::vector<f16> scales(zeros.size(), f16(0.004f));
    const ops::WeightPart part =
        ops::QuantizedPart{.out_features = n,
                           .in_features = k,
                           .group_size = kGroup,
                           .codes = TensorView(values.data(), DType::kU8, {n, k / 2}),
                           .scales = TensorView(scales.data(), DType::kF16, {n, k / kGroup}),
                           .zeros = TensorView(zeros.data(), DType::kU8, {n, k / kGroup})};
    return backend_.pack_quantized({&part, 1}, DType::kBF16);
  }

  Backend& backend() { return backend_; }
  bool wants(const std::string& name) const {
    return name.find(filter_) != std::string::npos || filter_.find(name) != std::string::npos;
  }
  void forget() {
    backend_.synchronize();
    buffers_.clear();
    weights_.clear();
  }

 private:
  // A weight's rows as a tensor, by way of embed.
  TensorView data_of(const ops::Weight& weight, DType dtype, Shape shape) {
    std::vector<int32_t> ids(static_cast<size_t>(weight.out_features));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    const TensorView out = tensor(dtype, {weight.out_features, weight.in_features});
    backend_.embed({.ids = this->ints(ids), .table = &weight, .out = out});
    backend_.synchronize();
    (void)shape;
    return out;
  }

  Backend& backend_;
  std::string filter_;
  std::vector<Buffer> buffers_;
  std::vector<std::unique_ptr<ops::Weight>> weights_;
};

void copies(Bench& bench) {
  const Index bytes = Index{2} << 30;
  const TensorView from = bench.tensor(DType::kU8, {bytes}), to = bench.tensor(DType::kU8, {bytes});
  bench.row("copy 2 GiB", 2.0 * static_cast<double>(bytes), 0,
            [&](int) { bench.backend().copy(to.data, from.data, static_cast<size_t>(bytes)); });
  bench.forget();
}

void products(Bench& bench) {
  struct Layer {
    const char* name;
    Index n, k;
  };
  for (const Layer& layer :
       {Layer{"gate_up", 34816, 5120}, Layer{"down", 5120, 17408}, Layer{"gdn in", 16480, 5120},
        Layer{"attn qkv", 14336, 5120}, Layer{"out", 5120, 6144}, Layer{"lm_head", 248320, 5120}}) {
    const double bytes = 2.0 * static_cast<double>(layer.n * layer.k);
    const int copies = std::max(1, static_cast<int>(static_cast<double>(kCacheBytes) / bytes) + 1);
    std::vector<std::unique_ptr<ops::Weight>> weights;
    for (int i = 0; i < copies; ++i) weights.push_back(bench.weight(layer.n, layer.k));
    for (const Index m : {1, 2, 4, 8, 16, 64, 512, 4096}) {
      if (layer.n > 100000 && m > 64) continue;
      const TensorView x = bench.random(DType::kBF16, {m, layer.k});
      const TensorView out = bench.tensor(DType::kBF16, {m, layer.n});
      bench.row(fmt::format("matmul {} {} x {} rows {}", layer.name, layer.n, layer.k, m), bytes,
                2.0 * static_cast<double>(m * layer.n * layer.k), [&](int i) {
                  bench.backend().matmul({.x = x,
                                          .num_decode_rows = m <= 16 ? m : 0,
                                          .weight = weights[static_cast<size_t>(i % copies)].get(),
                                          .out = out});
                });
    }
    bench.forget();
  }
}

// W4A16 and W8A16 at the projections of the 27B: the fused product, rows unpacked once and the dense product,
// a bf16 weight, and which of the first two a step takes (up to 16 rows: as decode rows).
void quantised(Bench& bench, ops::CodeKind kind) {
  struct Layer {
    const char* name;
    Index n, k;
  };
  const bool int4 = kind == ops::CodeKind::kInt4;
  const char* const name = int4 ? "w4a16" : "w8a16";
  if (!bench.wants(name)) return;
  for (const Layer& layer : {Layer{"qkv", 14336, 5120}, Layer{"gdn in", 16384, 5120},
                             Layer{"gate_up", 34816, 5120}, Layer{"down", 5120, 17408}}) {
    const double dense_bytes = 2.0 * static_cast<double>(layer.n * layer.k);
    const double packed_bytes =
        int4 ? dense_bytes / 4 + 3.0 * static_cast<double>(layer.n * layer.k / 128) : dense_bytes / 2;
    const int copies = static_cast<int>(static_cast<double>(kCacheBytes) / packed_bytes) + 1;
    std::vector<std::unique_ptr<ops::Weight>> packed, dense;
    for (int i = 0; i < copies; ++i) packed.push_back(bench.quantised_weight(layer.n, layer.k, kind));
    for (int i = 0; i < 2; ++i) dense.push_back(bench.weight(layer.n, layer.k));
    for (const Index m : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192}) {
      const TensorView x = bench.random(DType::kBF16, {m, layer.k});
      const TensorView out = bench.tensor(DType::kBF16, {m, layer.n});
      const double flops = 2.0 * static_cast<double>(m * layer.n * layer.k);
      const auto row = [&](const char* form, const auto& weights, Index num_decode, double bytes) {
        const bool chosen = &weights == &packed && (num_decode > 0) == (m <= 16);
        bench.row(fmt::format("{} {} rows {} {}{}", name, layer.name, m, form, chosen ? " (chosen)" : ""),
                  bytes, flops, [&](int i) {
                    bench.backend().matmul({.x = x,
                                            .num_decode_rows = num_decode,
                                            .weight = weights[static_cast<size_t>(i) % weights.size()].get(),
                                            .out = out});
                  });
      };
      row("fused", packed, m, packed_bytes * static_cast<double>((m + 15) / 16));
      row("unpacked once", packed, 0, packed_bytes + 2 * dense_bytes);
      row("bf16", dense, m <= 16 ? m : 0, dense_bytes);
    }
    bench.forget();
  }
}

void attention(Bench& bench, DType kv_dtype) {
  constexpr Index kQ = 24, kKv = 4, kDim = 256, kPage = 832;
  const bool fp8 = kv_dtype == DType::kF8E4M3;
  for (const Index kv_len : {4096, 8192, 16384, 32768, 65536, 131072}) {
    const Index num_pages = (kv_len + kPage - 1) / kPage;
    const Shape rows_shape{num_pages * 2 * kPage * kKv, kDim};
    const TensorView cache = fp8 ? bench.codes(kv_dtype, rows_shape) : bench.random(kv_dtype, rows_shape);
    std::vector<int32_t> pages;
    for (Index i = 0; i < num_pages; ++i) pages.push_back(static_cast<int32_t>(num_pages - 1 - i));
    TensorView table = bench.ints(pages);
    table = TensorView(table.data, DType::kI32, {1, num_pages});
    const ops::KvCache kv{
        .data = cache.data,
        .dtype = kv_dtype,
        .num_pages = num_pages,
        .page_stride_bytes = 2 * kPage * kKv * kDim * static_cast<Index>(dtype_size(kv_dtype)),
        .page_tokens = kPage,
        .num_kv_heads = kKv,
        .head_dim = kDim};
    for (const Index q_len : {1, 4096}) {
      if (q_len > kv_len) continue;
      const TensorView rows = bench.random(DType::kBF16, {q_len * kQ, kDim});
      const TensorView q(rows.data, DType::kBF16, {q_len, kQ, kDim});
      const TensorView out = bench.tensor(DType::kBF16, {q_len, kQ, kDim});
      const ops::Sequences seqs{bench.ints({0, static_cast<int32_t>(q_len)}),
                                bench.ints({static_cast<int32_t>(kv_len)}), 1, q_len == 1 ? 1 : 0};
      const double bytes = q_len == 1 ? 2.0 * static_cast<double>(kv_len * kKv * kDim) *
                                            static_cast<double>(dtype_size(kv_dtype))
                                      : 0;
      const double pairs = static_cast<double>(q_len) * static_cast<double>(kv_len - q_len / 2);
      const auto other =
          q_len == 1 ? ops::AttentionPath::kPageContiguousDecode : ops::AttentionPath::kVendorPrefill;
      for (const auto path : {ops::AttentionPath::kUnified, other}) {
        const char* const name = path == ops::AttentionPath::kUnified         ? "unified"
                                 : path == ops::AttentionPath::kVendorPrefill ? "vendor"
                                                                              : "page-contiguous";
        bench.row(fmt::format("attention q {} kv {}{} {}", q_len, kv_len, fp8 ? " fp8" : "", name), bytes,
                  4.0 * pairs * kQ * kDim, [&](int) {
                    bench.backend().attention({.q = q,
                                               .gate = q,
                                               .block_table = table,
                                               .kv = kv,
                                               .seqs = seqs,
                                               .num_seqs = 1,
                                               .scale = 0.0625f,
                                               .path = path,
                                               .out = out});
                  });
      }
    }
    bench.forget();
  }
}

void delta(Bench& bench) {
  constexpr Index kKHeads = 16, kVHeads = 48, kDim = 128, kChannels = 2 * kKHeads * kDim + kVHeads * kDim;
  ops::StateCache state{.conv_dtype = DType::kBF16,
                        .num_pages = 1,
                        .conv_offset_bytes = kVHeads * kDim * kDim * 4,
                        .num_v_heads = kVHeads,
                        .k_dim = kDim,
                        .v_dim = kDim,
                        .conv_kernel = 4,
                        .conv_channels = kChannels};
  state.page_stride_bytes = state.conv_offset_bytes + 3 * kChannels * 2;
  state.data = bench.tensor(DType::kU8, {state.page_stride_bytes}).data;
  const TensorView heads = bench.tensor(DType::kF32, {kVHeads}), norm = bench.tensor(DType::kF32, {kDim});
  const TensorView taps = bench.tensor(DType::kF32, {kChannels, 4});
  for (const Index n : {1, 64, 1024, 4096, 8192}) {
    const TensorView rows = bench.random(DType::kBF16, {n, kChannels + kVHeads * kDim + 2 * kVHeads});
    const TensorView conv = bench.tensor(DType::kBF16, {n, kChannels});
    const TensorView out = bench.tensor(DType::kBF16, {n, kVHeads, kDim});
    const ops::Sequences seqs{bench.ints({0, static_cast<int32_t>(n)}),
                              bench.ints({static_cast<int32_t>(64 + n)}), 1, n == 1 ? 1 : 0};
    const TensorView pages = bench.ints({0});
    bench.row(fmt::format("conv {} tokens", n), 4.0 * static_cast<double>(n * kChannels), 0, [&](int) {
      bench.backend().causal_conv({.x = rows.cols(0, kChannels),
                                   .weight = taps,
                                   .state = state,
                                   .state_pages = pages,
                                   .seqs = seqs,
                                   .out = conv});
    });
    const Index after = kChannels + kVHeads * kDim;
    const double chunk_flops = 2.0 * (3.0 * 64 * 64 * kDim + 2.0 * 64 * 64 * kDim + 3.0 * 64 * kDim * kDim);
    bench.row(fmt::format("gated delta {} tokens", n),
              n == 1 ? 2.0 * static_cast<double>(state.conv_offset_bytes) : 0,
              n == 1 ? 0 : static_cast<double>(n) / 64 * kVHeads * chunk_flops, [&](int) {
                bench.backend().gated_delta(
                    {.q = rows.cols(0, kKHeads * kDim).split_last(kKHeads, kDim),
                     .k = rows.cols(kKHeads * kDim, kKHeads * kDim).split_last(kKHeads, kDim),
                     .v = rows.cols(2 * kKHeads * kDim, kVHeads * kDim).split_last(kVHeads, kDim),
                     .z = rows.cols(kChannels, kVHeads * kDim).split_last(kVHeads, kDim),
                     .a = rows.cols(after, kVHeads),
                     .b = rows.cols(after + kVHeads, kVHeads),
                     .a_log = heads,
                     .dt_bias = heads,
                     .norm = norm,
                     .state = state,
                     .state_pages = pages,
                     .seqs = seqs,
                     .out = out});
              });
  }
  bench.forget();
}

void rows(Bench& bench) {
  constexpr Index kHidden = 5120, kMlp = 17408;
  for (const Index n : {1, 4096}) {
    const TensorView x = bench.random(DType::kBF16, {n, kHidden}),
                     d = bench.random(DType::kBF16, {n, kHidden});
    const TensorView out = bench.tensor(DType::kBF16, {n, kHidden}), w = bench.tensor(DType::kF32, {kHidden});
    bench.row(fmt::format("add + rms_norm {} rows", n), 8.0 * static_cast<double>(n * kHidden), 0,
              [&](int) { bench.backend().rms_norm({.x = x, .delta = d, .weight = w, .out = out}); });
    const TensorView gate_up = bench.random(DType::kBF16, {n, 2 * kMlp});
    const TensorView hidden = bench.tensor(DType::kBF16, {n, kMlp});
    bench.row(fmt::format("swiglu {} rows", n), 6.0 * static_cast<double>(n * kMlp), 0,
              [&](int) { bench.backend().swiglu({.gate_up = gate_up, .out = hidden}); });
  }
  bench.forget();
}

// Tokens drawn from rows of logits that spread like a model's: the standard deviation is 3 temperatures.
void draws(Bench& bench) {
  constexpr Index kVocab = 248320;
  constexpr float kTemperature = 0.02f / 3;  // random() gives a deviation of 0.02
  const ops::DrawRow all{.scale =
                             static_cast<float>(std::exp2(ops::kDistanceBits) * ops::kLog2E) / kTemperature};
  ops::DrawRow top_k = all, both = all;
  top_k.top_k = both.top_k = 20;
  both.top_p = uint64_t{0xf3333333} << 32;  // 0.95
  const std::pair<const char*, ops::DrawRow> kinds[] = {
      {"all", all}, {"top_k 20", top_k}, {"top_k 20, top_p 0.95", both}};
  for (const Index n : {1, 8}) {
    const TensorView x = bench.random(DType::kBF16, {n, kVocab});
    const TensorView out = bench.tensor(DType::kI32, {n});
    for (const auto& [name, kind] : kinds) {
      const std::vector<ops::DrawRow> rows(static_cast<size_t>(n), kind);
      const TensorView there = bench.tensor(DType::kU8, {n, static_cast<Index>(sizeof(ops::DrawRow))});
      bench.backend().upload(there.data, rows.data(), there.size_bytes());
      bench.row(fmt::format("draw {} of {} {}", n, kVocab, name), static_cast<double>(x.size_bytes()), 0,
                [&](int) { bench.backend().draw({.x = x, .rows = there, .out = out}); });
    }
    bench.row(fmt::format("best column {} of {}", n, kVocab), static_cast<double>(x.size_bytes()), 0,
              [&](int) { bench.backend().best_column({.x = x, .out = out}); });
  }
  bench.forget();
}

int main_of(int argc, char** argv) {
  const std::unique_ptr<Backend> backend =
      ops::device::make_backend(argc > 1 ? std::atoi(argv[1]) : 0, {.unpacked_kv_bytes = size_t{600} << 20});
  fmt::print("{}\n", backend->name());
  Bench bench(*backend, argc > 2 ? argv[2] : "");
  copies(bench);
  rows(bench);
  draws(bench);
  products(bench);
  for (const ops::CodeKind kind : {ops::CodeKind::kInt4, ops::CodeKind::kE4M3}) quantised(bench, kind);
  attention(bench, DType::kBF16);
  attention(bench, DType::kF8E4M3);
  delta(bench);
  return 0;
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) {
  try {
    return longspan::bench::main_of(argc, argv);
  } catch (const longspan::Error& error) {
    std::fprintf(stderr, "longspan_device_bench: %s\n", error.what());
    return longspan::exit_code(error.kind);
  }
}
