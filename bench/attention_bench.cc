// Attention on the CPU at the shapes of the published models, against what the machine can do:
//   longspan_attention_bench [seconds a case] [prefill | decode]
// Prefill is a chunk of 4,096 tokens at the end of its context; flops are the causal ones, 4 * head_dim a
// visible (query, key) pair. Decode reads K and V once, from copies that exceed the caches. Best of many
// runs: on a shared machine the others measure the neighbours.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "measure/peaks.h"
#include "ops/cpu/backend.h"

namespace longspan::bench {
namespace {

constexpr Index kHeadDim = 256;
constexpr Index kPageTokens = 832;
constexpr Index kCacheBytes = Index{640} << 20;  // beyond any cache's reach

struct Heads {
  const char* model;
  Index num_q_heads;
  Index num_kv_heads;
};

constexpr Heads kHeads[] = {{"0.8B", 8, 2}, {"27B", 24, 4}};

Buffer random_values(Index count) {
  Buffer buffer(DType::kBF16, {count});
  auto* values = buffer.view().as<bf16>();
  uint32_t state = 1;
  // Signs and low bits of +-0.5 .. 2, without the cost of a distribution: hundreds of megabytes are filled.
  for (Index i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    values[i].bits = static_cast<uint16_t>(((state >> 16) & 0x80ffu) | 0x3f00u);
  }
  return buffer;
}

// Sequences of kv_len tokens; the last q_len of one at a time are queried.
class Problem {
 public:
  Problem(Index q_len, Index kv_len, const Heads& heads, Index num_seqs) {
    const Index pages = (kv_len + kPageTokens - 1) / kPageTokens;
    const Index page_elements = 2 * kPageTokens * heads.num_kv_heads * kHeadDim;
    cache_ = random_values(num_seqs * pages * page_elements);
    rows_ = random_values(q_len * num_seqs * heads.num_q_heads * 2 * kHeadDim);
    out_ = Buffer(DType::kBF16, {q_len * num_seqs, heads.num_q_heads, kHeadDim});
    table_ = Buffer(DType::kI32, {num_seqs, pages});
    starts_ = Buffer(DType::kI32, {num_seqs + 1});
    lens_ = Buffer(DType::kI32, {num_seqs});
    for (Index i = 0; i < num_seqs * pages; ++i)
      table_.view().as<int32_t>()[i] = static_cast<int32_t>(num_seqs * pages - 1 - i);
    for (Index i = 0; i <= num_seqs; ++i) starts_.view().as<int32_t>()[i] = static_cast<int32_t>(i * q_len);
    for (Index i = 0; i < num_seqs; ++i) lens_.view().as<int32_t>()[i] = static_cast<int32_t>(kv_len);

    args_.q = rows_.view().split_last(q_len * num_seqs, heads.num_q_heads * 2 * kHeadDim);
    args_.q = args_.q.split_last(heads.num_q_heads, 2 * kHeadDim);
    args_.gate = args_.q.cols(kHeadDim, kHeadDim);
    args_.q = args_.q.cols(0, kHeadDim);
    args_.block_table = table_.view();
    args_.kv = {.data = cache_.data(),
                .dtype = DType::kBF16,
                .num_pages = num_seqs * pages,
                .page_stride_bytes = page_elements * 2,
                .page_tokens = kPageTokens,
                .num_kv_heads = heads.num_kv_heads,
                .head_dim = kHeadDim};
    args_.seqs = {starts_.view(), lens_.view(), num_seqs, q_len == 1 ? num_seqs : 0};
    args_.num_seqs = 1;
    args_.scale = 1.0f / 16;
    args_.out = out_.view();
  }

  void run(ops::Backend& backend, Index seq_idx, ops::AttentionPath path) {
    args_.first_seq = seq_idx;
    args_.path = path;
    backend.attention(args_);
  }

 private:
  Buffer cache_, rows_, out_, table_, starts_, lens_;
  ops::Attention args_;
};

// Best time of fn(0), fn(1), ... over `seconds`, three runs at least.
template <class Fn>
double best_seconds(double seconds, const Fn& fn) {
  double best = 1e30;
  const double end = measure::now_seconds() + seconds;
  for (Index i = 0; i < 3 || measure::now_seconds() < end; ++i) {
    const double start = measure::now_seconds();
    fn(i);
    best = std::min(best, measure::now_seconds() - start);
  }
  return best;
}

void bench_prefill(ops::Backend& backend, const Heads& heads, Index kv_len, double seconds, double peak) {
  constexpr Index kTokens = 4096;
  Problem problem(kTokens, kv_len, heads, 1);
  const double best =
      best_seconds(seconds, [&](Index) { problem.run(backend, 0, ops::AttentionPath::kVendorPrefill); });
  const double pairs = static_cast<double>(kTokens) * (static_cast<double>(kv_len) - (kTokens - 1) / 2.0);
  const double gflops = pairs * static_cast<double>(4 * kHeadDim * heads.num_q_heads) / best / 1e9;
  fmt::print("{:6} prefill {:5} of {:6} {:12.2f} ms {:8.0f} GFLOP/s {:5.0f} % of AMX\n", heads.model, kTokens,
             kv_len, best * 1e3, gflops, 100 * gflops / peak);
}

void bench_decode(ops::Backend& backend, const Heads& heads, Index kv_len, double seconds, double peak) {
  const Index bytes = kv_len * heads.num_kv_heads * kHeadDim * 4;
  const Index num_seqs = std::max(Index{1}, kCacheBytes / bytes);
  Problem problem(1, kv_len, heads, num_seqs);
  for (const auto path : {ops::AttentionPath::kUnified, ops::AttentionPath::kPageContiguousDecode}) {
    const double best = best_seconds(seconds, [&](Index i) { problem.run(backend, i % num_seqs, path); });
    const double gbytes = static_cast<double>(bytes) / best / 1e9;
    const bool by_pages = path == ops::AttentionPath::kPageContiguousDecode;
    fmt::print("{:6} decode  {:8} {:6} {:12.3f} ms {:8.1f} GB/s    {:5.0f} % of reading\n", heads.model,
               by_pages ? "by pages" : "unified", kv_len, best * 1e3, gbytes, 100 * gbytes / peak);
  }
}

int run(double seconds, std::string_view only) {
  const int num_threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  ThreadPool pool(num_threads);
  Buffer memory(static_cast<size_t>(kCacheBytes));
  std::memset(memory.data(), 1, memory.size_bytes());
  const double read_peak = measure::best_of(seconds, [&] { return measure::read_gbytes(pool, memory); });
  const double amx_peak = measure::best_of(seconds, [&] { return measure::amx_gflops(pool); });
  const std::unique_ptr<ops::Backend> backend = ops::cpu::make_backend({.num_threads = num_threads});
  fmt::print("{}; peak of {} threads at once: AMX bf16 {:.0f} GFLOP/s, read {:.1f} GB/s\n", backend->name(),
             num_threads, amx_peak, read_peak);
  for (const Heads& heads : kHeads) {
    for (Index kv_len : {4096, 32768})
      if (only != "decode") bench_prefill(*backend, heads, kv_len, seconds, amx_peak);
    for (Index kv_len : {4096, 32768, 131072})
      if (only != "prefill") bench_decode(*backend, heads, kv_len, seconds, read_peak);
  }
  return 0;
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) {
  return longspan::bench::run(argc > 1 ? std::atof(argv[1]) : 0.5, argc > 2 ? argv[2] : "");
}
