// One request to an engine, timed.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "core/error.h"
#include "engine/engine.h"

namespace longspan::bench {

struct TimedRequest {
  double ttft = 0;          // seconds from submission to the first token
  double decode_token = 0;  // median seconds between tokens; 0 for one token
};

// num_prompt arbitrary tokens in, num_new out. Throws kEnvironment where the engine gives no answer.
inline TimedRequest time_request(engine::Engine& engine, int64_t num_prompt, int64_t num_new) {
  const size_t num_ids = static_cast<size_t>(std::min<int64_t>(1000, engine.info().config.vocab_size - 1));
  std::vector<int32_t> prompt(static_cast<size_t>(num_prompt));
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(1 + i * 7919 % num_ids);
  const auto started = engine::Clock::now();
  engine::Response response =
      engine.submit({.prompt = std::move(prompt), .max_new_tokens = num_new, .ignore_eos = true});
  std::vector<engine::Clock::time_point> times;
  engine::ResponseUpdate update;
  do {
    update = response.wait(std::chrono::seconds(10));
    for (const engine::TokenOutput& token : update.tokens) times.push_back(token.time);
  } while (!update.done);
  if (times.empty()) fail(ErrorKind::kEnvironment, "{} tokens: no answer: {}", num_prompt, update.error);
  const auto seconds = [](auto duration) { return std::chrono::duration<double>(duration).count(); };
  std::vector<double> gaps;
  for (size_t i = 1; i < times.size(); ++i) gaps.push_back(seconds(times[i] - times[i - 1]));
  std::sort(gaps.begin(), gaps.end());
  return {.ttft = seconds(times[0] - started), .decode_token = gaps.empty() ? 0 : gaps[gaps.size() / 2]};
}

}  // namespace longspan::bench
