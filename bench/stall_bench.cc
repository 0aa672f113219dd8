// How long streams wait for their next token while a long prompt is read beside them:
//   longspan_stall_bench MODEL [prompt tokens] [max_decode_stall_ms, comma separated; 0: no limit]
// Eight streams decode from the start; then the prompt comes. A gap is the time between two tokens of a
// stream.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "engine/engine.h"

namespace longspan::bench {
namespace {

constexpr int kNumStreams = 8;
constexpr int64_t kStreamPrompt = 40;  // tokens: less than a grid chunk, so that no step ever prefills alone
constexpr int64_t kTokensAlone = 40;   // of each stream, before the prompt comes

std::vector<int32_t> prompt_of(const engine::Engine& engine, int64_t num_tokens, size_t seed) {
  std::vector<int32_t> prompt(static_cast<size_t>(num_tokens));
  for (size_t i = 0; i < prompt.size(); ++i)
    prompt[i] =
        static_cast<int32_t>(((i + seed) * 7919 + 13) % static_cast<size_t>(engine.info().config.vocab_size));
  return prompt;
}

struct Gaps {
  double median_ms = 0;
  double longest_ms = 0;
  size_t count = 0;
};

// Of all streams' gaps that end after `from`, by `to`.
Gaps gaps_between(const std::vector<std::vector<engine::Clock::time_point>>& times,
                  engine::Clock::time_point from, engine::Clock::time_point to) {
  std::vector<double> gaps;
  for (const auto& stream : times)
    for (size_t i = 1; i < stream.size(); ++i)
      if (stream[i] > from && stream[i] <= to)
        gaps.push_back(std::chrono::duration<double, std::milli>(stream[i] - stream[i - 1]).count());
  if (gaps.empty()) return {};
  std::sort(gaps.begin(), gaps.end());
  return {.median_ms = gaps[gaps.size() / 2], .longest_ms = gaps.back(), .count = gaps.size()};
}

// Returns whether every gap stayed below twice the limit.
bool bench_limit(const char* model, int64_t num_prompt, double limit_ms) {
  engine::Engine engine({.model = model, .max_num_seqs = kNumStreams + 1, .max_decode_stall_ms = limit_ms});
  const auto started = engine::Clock::now();
  std::vector<engine::Response> streams;
  std::vector<std::vector<engine::Clock::time_point>> times(kNumStreams);
  for (size_t i = 0; i < kNumStreams; ++i)
    streams.push_back(engine.submit({.prompt = prompt_of(engine, kStreamPrompt, 1000 * i),
                                     .max_new_tokens = engine.info().max_model_len - kStreamPrompt,
                                     .ignore_eos = true}));
  const auto collect = [&](std::chrono::milliseconds patience) {
    for (size_t i = 0; i < kNumStreams; ++i)
      for (const engine::TokenOutput& token : streams[i].wait(patience).tokens)
        times[i].push_back(token.time);
  };
  while (std::ssize(times.back()) < kTokensAlone) collect(std::chrono::milliseconds(10));

  const auto sent = engine::Clock::now();
  engine::Response prompt =
      engine.submit({.prompt = prompt_of(engine, num_prompt, 5), .max_new_tokens = 1, .ignore_eos = true});
  engine::ResponseUpdate update;
  engine::Clock::time_point answered = sent;
  do {
    update = prompt.wait(std::chrono::milliseconds(1));
    if (!update.tokens.empty()) answered = update.tokens.back().time;
    collect(std::chrono::milliseconds(1));
  } while (!update.done);
  const auto end = engine::Clock::now();
  for (const auto& stream : times)
    while (stream.back() <= end) collect(std::chrono::milliseconds(10));

  const Gaps alone = gaps_between(times, started, sent);
  const Gaps beside = gaps_between(times, sent, engine::Clock::now());
  fmt::print("{:>8}  {:>12.2f}  {:>13.2f}  {:>13.2f}  {:>14.2f}  {:>11.2f}\n",
             limit_ms > 0 ? fmt::format("{:g}", limit_ms) : "none", alone.median_ms, alone.longest_ms,
             beside.median_ms, beside.longest_ms, std::chrono::duration<double>(answered - sent).count());
  return limit_ms == 0 || beside.longest_ms < 2 * limit_ms;
}

int bench_main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: longspan_stall_bench MODEL [prompt tokens] [limits in ms, comma separated]\n");
    return 2;
  }
  const int64_t num_prompt = argc > 2 ? std::atoll(argv[2]) : 32768;
  fmt::print("{} streams beside a prompt of {} tokens; gaps between tokens of a stream in ms\n", kNumStreams,
             num_prompt);
  fmt::print("limit ms  alone median  alone longest  beside median  beside longest  prompt's s\n");
  bool all_hold = true;
  for (const char* text = argc > 3 ? argv[3] : "0,500,200,50"; *text != '\0';) {
    char* end = nullptr;
    all_hold = bench_limit(argv[1], num_prompt, std::strtod(text, &end)) && all_hold;
    text = *end == ',' ? end + 1 : end;
  }
  fmt::print("{}\n",
             all_hold ? "every gap is below twice its limit" : "a gap is longer than twice its limit");
  return all_hold ? 0 : 1;
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) { return longspan::bench::bench_main(argc, argv); }
