// Raw fp32 multiply-add and memory rates, on the best Highway target.
#include "measure/peaks.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "measure/peaks.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/unroll.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::measure::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
constexpr int kChains = 12;

// Returns floating-point operations done; the sum keeps the compiler honest.
int64_t multiply_adds(int64_t rounds, float* sum) {
  hn::Vec<D> chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = hn::Set(D(), static_cast<float>(i));
  const auto x = hn::Set(D(), 0.999f);
  for (int64_t round = 0; round < rounds; ++round) {
    UNROLL(12)
    for (int i = 0; i < kChains; ++i) chains[i] = hn::MulAdd(chains[i], x, x);
  }
  for (int i = 0; i < kChains; ++i) *sum += hn::GetLane(chains[i]);
  return rounds * kChains * 2 * static_cast<int64_t>(hn::Lanes(D()));
}

float read(const float* from, int64_t count) {
  const int64_t step = static_cast<int64_t>(hn::Lanes(D()));
  hn::Vec<D> sums[4] = {hn::Zero(D()), hn::Zero(D()), hn::Zero(D()), hn::Zero(D())};
  for (int64_t i = 0; i + 4 * step <= count; i += 4 * step) {
    UNROLL(4)
    for (int j = 0; j < 4; ++j) sums[j] = hn::Add(sums[j], hn::LoadU(D(), from + i + j * step));
  }
  return hn::GetLane(hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])));
}

// Plain stores, as kernels write: the line is read first.
void copy(const float* from, float* to, int64_t count) {
  const int64_t step = static_cast<int64_t>(hn::Lanes(D()));
  for (int64_t i = 0; i + step <= count; i += step) hn::StoreU(hn::LoadU(D(), from + i), D(), to + i);
}

}  // namespace
}  // namespace longspan::measure::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::measure {

HWY_EXPORT(multiply_adds);
HWY_EXPORT(read);
HWY_EXPORT(copy);

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double best_of(double seconds, const std::function<double()>& pass) {
  double best = pass();
  for (const double end = now_seconds() + seconds; now_seconds() < end;) best = std::max(best, pass());
  return best;
}

double float_gflops(ThreadPool& pool) {
  constexpr int64_t kRounds = 2'000'000;
  const int num_tasks = kTasksPerThread * pool.num_threads();
  std::vector<float> sums(static_cast<size_t>(pool.num_threads()) * 16);
  std::atomic<int64_t> flops = 0;
  const double start = now_seconds();
  pool.parallel_for(num_tasks, [&](int64_t, int thread) {
    flops += HWY_DYNAMIC_DISPATCH(multiply_adds)(kRounds, &sums[static_cast<size_t>(thread) * 16]);
  });
  return static_cast<double>(flops) / (now_seconds() - start) / 1e9;
}

double read_gbytes(ThreadPool& pool, const Buffer& memory) {
  constexpr int64_t kChunk = 1 << 20;  // bytes a task
  const auto num_chunks = static_cast<int64_t>(memory.size_bytes()) / kChunk;
  std::vector<float> sums(static_cast<size_t>(pool.num_threads()) * 16);
  const double start = now_seconds();
  pool.parallel_for(num_chunks, [&](int64_t chunk, int thread) {
    const auto* from = static_cast<const float*>(memory.data()) + chunk * kChunk / 4;
    sums[static_cast<size_t>(thread) * 16] += HWY_DYNAMIC_DISPATCH(read)(from, kChunk / 4);
  });
  return static_cast<double>(num_chunks * kChunk) / (now_seconds() - start) / 1e9;
}

double copy_gbytes(ThreadPool& pool, const Buffer& memory) {
  constexpr int64_t kChunk = 1 << 20;  // bytes a task
  const auto num_chunks = static_cast<int64_t>(memory.size_bytes()) / 2 / kChunk;
  auto* const floats = static_cast<float*>(memory.data());
  const double start = now_seconds();
  pool.parallel_for(num_chunks, [&](int64_t chunk, int) {
    HWY_DYNAMIC_DISPATCH(copy)
    (floats + chunk * kChunk / 4, floats + (num_chunks + chunk) * kChunk / 4, kChunk / 4);
  });
  return 2.0 * static_cast<double>(num_chunks * kChunk) / (now_seconds() - start) / 1e9;
}

}  // namespace longspan::measure
#endif
