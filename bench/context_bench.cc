// Prefill and decode speed against context, for both cache layouts and several page sizes, on a real model:
//   longspan_context_bench MODEL [longest context] [rounds]
// Every setting must answer the same, token by token; a setting that does not ends the program.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "engine/engine.h"

namespace longspan::bench {
namespace {

constexpr int64_t kDecoded = 48;  // tokens that a decode figure is made of
constexpr int64_t kFirstContext = 4096;

struct Setting {
  cache::Layout layout;
  int64_t page_tokens;
};
// What the state asks for is the least of the unified layout: there 64 stands for that.
constexpr Setting kSettings[] = {{cache::Layout::kUnified, 64},  {cache::Layout::kUnified, 784},
                                 {cache::Layout::kUnified, 832}, {cache::Layout::kUnified, 1024},
                                 {cache::Layout::kSplit, 64},    {cache::Layout::kSplit, 784},
                                 {cache::Layout::kSplit, 832},   {cache::Layout::kSplit, 1024}};

struct Run {
  std::vector<int32_t> ids;
  double prefill_seconds = 0;
  double decode_seconds = 0;  // of a token
};

Run run(engine::Engine& engine, int64_t num_prompt) {
  std::vector<int32_t> prompt(static_cast<size_t>(num_prompt));
  for (size_t i = 0; i < prompt.size(); ++i)
    prompt[i] = static_cast<int32_t>((i * 7919 + 13) % static_cast<size_t>(engine.info().config.vocab_size));
  const auto started = engine::Clock::now();
  engine::Response response =
      engine.submit({.prompt = std::move(prompt), .max_new_tokens = kDecoded, .ignore_eos = true});
  Run result;
  std::vector<engine::Clock::time_point> times;
  engine::ResponseUpdate update;
  do {
    update = response.wait(std::chrono::seconds(1));
    for (const engine::TokenOutput& token : update.tokens) {
      result.ids.push_back(token.token);
      times.push_back(token.time);
    }
  } while (!update.done);
  if (update.reason == engine::FinishReason::kError) fail(ErrorKind::kEnvironment, "{}", update.error);
  result.prefill_seconds = std::chrono::duration<double>(times.front() - started).count();
  result.decode_seconds = std::chrono::duration<double>(times.back() - times.front()).count() /
                          static_cast<double>(times.size() - 1);
  return result;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int bench_main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: longspan_context_bench MODEL [longest context] [rounds]\n");
    return 2;
  }
  const int64_t longest = argc > 2 ? std::atoll(argv[2]) : 65536 - kDecoded - 1;
  const int64_t num_rounds = std::max<int64_t>(argc > 3 ? std::atoll(argv[3]) : 1, 1);
  std::vector<int64_t> contexts;
  for (int64_t context = kFirstContext; context <= longest; context *= 2) contexts.push_back(context);
  if (contexts.empty() || contexts.back() < longest) contexts.push_back(longest);
  std::vector<std::vector<int32_t>> want(contexts.size());
  fmt::print("layout   page  context  prefill tokens/s  decode ms a token\n");
  for (const Setting& setting : kSettings) {
    engine::Engine engine({.model = argv[1],
                           .max_model_len = longest + kDecoded + 1,
                           .max_num_seqs = 1,
                           .pages = {.alignment = setting.page_tokens % 64 == 0 ? 64 : 16,
                                     .layout = setting.layout,
                                     .min_page_tokens = setting.page_tokens}});
    run(engine, std::min(longest, kFirstContext));  // every kernel has run, the first pages are resident
    for (size_t i = 0; i < contexts.size(); ++i) {
      std::vector<double> prefill, decode;
      for (int64_t round = 0; round < num_rounds; ++round) {
        const Run one = run(engine, contexts[i]);
        if (want[i].empty()) want[i] = one.ids;
        if (one.ids != want[i]) {
          fmt::print("{} {}: another answer at {}\n", cache::to_string(setting.layout),
                     engine.info().page_plan.page_tokens, contexts[i]);
          return 1;
        }
        prefill.push_back(one.prefill_seconds);
        decode.push_back(one.decode_seconds);
      }
      fmt::print("{:<7}  {:>4}  {:>7}  {:>16.0f}  {:>17.3f}\n", cache::to_string(setting.layout),
                 engine.info().page_plan.page_tokens, contexts[i],
                 static_cast<double>(contexts[i]) / median(prefill), median(decode) * 1e3);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) { return longspan::bench::bench_main(argc, argv); }
