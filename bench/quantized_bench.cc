// 4-bit and FP8 weights against bf16, at the projections of the 27B: time of one product by number of rows,
// as decode rows (codes multiplied as they are) and as prompt rows (unpacked a slice at a time). Each figure
// is the median of several; weights are larger than the caches.
//   longspan_quantized_bench [--threads N] [--min-rows N] [--max-rows N]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "ops/cpu/backend.h"

namespace {

using namespace longspan;

struct Shape27B {
  const char* name;
  Index n;
  Index k;
};
constexpr Shape27B kShapes[] = {{"qkv", 14336, 5120}, {"gate-up", 34816, 5120}, {"down", 5120, 17408}};
constexpr Index kRows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192};

Buffer random_bytes(DType dtype, Shape shape, uint8_t mask) {
  Buffer buffer(dtype, shape);
  std::mt19937_64 random(1);
  auto* words = static_cast<uint64_t*>(buffer.data());
  const uint64_t masks = 0x0101010101010101ull * mask;
  for (size_t i = 0; i < buffer.view().size_bytes() / 8; ++i) words[i] = random() & masks;
  return buffer;
}

Buffer filled(DType dtype, Shape shape, float value) {
  Buffer buffer(dtype, shape);
  for (Index i = 0; i < shape.num_elements(); ++i)
    buffer.view().as<bf16>()[i] = bf16(value + 0.001f * static_cast<float>(i % 7));
  return buffer;
}

double median_ms(ops::Backend& backend, const ops::Matmul& args, int repeats) {
  std::vector<double> times;
  for (int i = 0; i <= repeats; ++i) {  // the first one warms up
    const auto start = std::chrono::steady_clock::now();
    backend.matmul(args);
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin() + 1, times.end());
  return times[static_cast<size_t>(1 + repeats / 2)];
}

void run(ops::Backend& backend, const Shape27B& shape, Index min_rows, Index max_rows) {
  constexpr Index kGroup = 128;
  const Index groups = shape.k / kGroup;
  const Buffer codes = random_bytes(DType::kU8, {shape.n, shape.k / 2}, 0xff);
  const Buffer scales = filled(DType::kBF16, {shape.n, groups}, 0.01f);
  const Buffer zeros = random_bytes(DType::kU8, {shape.n, groups}, 0x0f);
  const ops::WeightPart int4[] = {ops::QuantizedPart{.out_features = shape.n,
                                                     .in_features = shape.k,
                                                     .group_size = kGroup,
                                                     .codes = codes.view(),
                                                     .scales = scales.view(),
                                                     .zeros = zeros.view()}};
  const Buffer bytes = random_bytes(DType::kF8E4M3, {shape.n, shape.k}, 0xbf);
  const ops::WeightPart fp8[] = {ops::QuantizedPart{.kind = ops::CodeKind::kE4M3,
                                                    .out_features = shape.n,
                                                    .in_features = shape.k,
                                                    .group_size = kGroup,
                                                    .scale_rows = 1,
                                                    .codes = bytes.view(),
                                                    .scales = scales.view()}};
  const Buffer dense = filled(DType::kBF16, {shape.n, shape.k}, 0.01f);
  const TensorView dense_parts[] = {dense.view()};
  const auto w4 = backend.pack_quantized(int4, DType::kBF16);
  const auto w8 = backend.pack_quantized(fp8, DType::kBF16);
  const auto w16 = backend.pack(dense_parts, DType::kBF16);
  std::printf("%s %lld x %lld: int4 %.1f MB, fp8 %.1f MB, bf16 %.1f MB\n", shape.name,
              static_cast<long long>(shape.n), static_cast<long long>(shape.k), w4->size_bytes() * 1e-6,
              w8->size_bytes() * 1e-6, w16->size_bytes() * 1e-6);
  std::printf("%6s %12s %12s %12s %12s %12s %14s %14s\n", "rows", "bf16 ms", "int4 dec ms", "int4 ms",
              "fp8 dec ms", "fp8 ms", "int4 dec GB/s", "fp8 dec GB/s");
  for (const Index m : kRows) {
    if (m < min_rows) continue;
    if (m > max_rows) break;
    const Buffer x = filled(DType::kBF16, {m, shape.k}, 0.5f);
    const Buffer out(DType::kBF16, {m, shape.n});
    const int repeats = m <= 64 ? 9 : m <= 512 ? 5 : 1;
    const auto time = [&](const ops::Weight& weight, Index num_decode_rows) {
      return median_ms(
          backend, {.x = x.view(), .num_decode_rows = num_decode_rows, .weight = &weight, .out = out.view()},
          repeats);
    };
    const double int4_decode = m <= 64 ? time(*w4, m) : 0;
    const double fp8_decode = m <= 64 ? time(*w8, m) : 0;
    const auto gbytes = [](const ops::Weight& weight, double ms) {
      return ms > 0 ? static_cast<double>(weight.size_bytes()) * 1e-6 / ms : 0.0;
    };
    std::printf("%6lld %12.3f %12.3f %12.3f %12.3f %12.3f %14.1f %14.1f\n", static_cast<long long>(m),
                time(*w16, 0), int4_decode, time(*w4, 0), fp8_decode, time(*w8, 0), gbytes(*w4, int4_decode),
                gbytes(*w8, fp8_decode));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int num_threads = 0;
  Index min_rows = 1, max_rows = 8192;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--threads") == 0) num_threads = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--min-rows") == 0) min_rows = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--max-rows") == 0) max_rows = std::atoll(argv[i + 1]);
  }
  const auto backend = longspan::ops::cpu::make_backend({.num_threads = num_threads});
  std::printf("%s\n", backend->name().c_str());
  for (const Shape27B& shape : kShapes) run(*backend, shape, min_rows, max_rows);
}
