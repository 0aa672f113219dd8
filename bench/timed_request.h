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

inline double seconds_between(engine::Clock::time_point from, engine::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// num_prompt arbitrary tokens in, num_new out; `sampling` says how these are chosen.
inline engine::Response submit_arbitrary(engine::Engine& engine, int64_t num_prompt, int64_t num_new,
                                         const engine::SamplingParams& sampling = {}, int64_t first = 0) {
  const int64_t num_ids = std::min<int64_t>(1000, engine.info().config.vocab_size - 1);
  std::vector<int32_t> prompt(static_cast<size_t>(num_prompt));
  for (size_t i = 0; i < prompt.size(); ++i)
    prompt[i] = static_cast<int32_t>(1 + (first + static_cast<int64_t>(i)) * 7919 % num_ids);
  return engine.submit(
      {.prompt = std::move(prompt), .max_new_tokens = num_new, .sampling = sampling, .ignore_eos = true});
}

// When each of its tokens came. Throws kEnvironment where the engine gives no answer.
inline std::vector<engine::Clock::time_point> token_times(engine::Response& response) {
  std::vector<engine::Clock::time_point> times;
  engine::ResponseUpdate update;
  do {
    update = response.wait(std::chrono::seconds(10));
    for (const engine::TokenOutput& token : update.tokens) times.push_back(token.time);
  } while (!update.done);
  if (times.empty()) fail(ErrorKind::kEnvironment, "no answer: {}", update.error);
  return times;
}

inline TimedRequest time_request(engine::Engine& engine, int64_t num_prompt, int64_t num_new,
                                 const engine::SamplingParams& sampling = {}) {
  const auto started = engine::Clock::now();
  engine::Response response = submit_arbitrary(engine, num_prompt, num_new, sampling);
  const std::vector<engine::Clock::time_point> times = token_times(response);
  std::vector<double> gaps;
  for (size_t i = 1; i < times.size(); ++i) gaps.push_back(seconds_between(times[i - 1], times[i]));
  std::sort(gaps.begin(), gaps.end());
  return {.ttft = seconds_between(started, times[0]),
          .decode_token = gaps.empty() ? 0 : gaps[gaps.size() / 2]};
}

// Tokens a second of num_seqs requests side by side, while all of them decode.
inline double decode_rate(engine::Engine& engine, int64_t num_seqs, int64_t num_prompt, int64_t num_new) {
  std::vector<engine::Response> responses;
  for (int64_t i = 0; i < num_seqs; ++i)
    responses.push_back(submit_arbitrary(engine, num_prompt, num_new, {}, i));
  std::vector<std::vector<engine::Clock::time_point>> times;
  for (engine::Response& response : responses) times.push_back(token_times(response));
  engine::Clock::time_point begin = times[0].front(), end = times[0].back();
  for (const auto& of_one : times) {
    begin = std::max(begin, of_one.front());
    end = std::min(end, of_one.back());
  }
  int64_t num_tokens = 0;
  for (const auto& of_one : times)
    num_tokens += std::ranges::count_if(of_one, [&](auto time) { return begin < time && time <= end; });
  return static_cast<double>(num_tokens) / seconds_between(begin, end);
}

}  // namespace longspan::bench
