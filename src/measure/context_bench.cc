#include "measure/context_bench.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/units.h"
#include "io/model_config.h"
#include "measure/environment.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

struct ContextRun {
  std::vector<int32_t> ids;
  double prefill_seconds = 0;
  double decode_seconds = 0;  // of a token
};

ContextRun run_context(engine::Engine& engine, int64_t num_prompt, int64_t num_decoded) {
  std::vector<int32_t> prompt(static_cast<size_t>(num_prompt));
  const auto vocab = static_cast<size_t>(engine.info().config.vocab_size);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>((i * 7919 + 13) % vocab);
  const auto started = engine::Clock::now();
  engine::Response response =
      engine.submit({.prompt = std::move(prompt), .max_new_tokens = num_decoded, .ignore_eos = true});
  ContextRun result;
  std::vector<engine::Clock::time_point> times;
  engine::ResponseUpdate update;
  do {
    update = response.wait(std::chrono::seconds(1));
    for (const engine::TokenOutput& token : update.tokens) {
      result.ids.push_back(token.token);
      times.push_back(token.time);
    }
  } while (!update.done);
  if (std::ssize(times) < num_decoded)
    fail(ErrorKind::kEnvironment, "{} tokens: got {} of {} answer tokens: {}", num_prompt, times.size(),
         num_decoded, update.error);
  result.prefill_seconds = std::chrono::duration<double>(times.front() - started).count();
  result.decode_seconds = std::chrono::duration<double>(times.back() - times.front()).count() /
                          static_cast<double>(times.size() - 1);
  return result;
}

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::vector<int64_t> contexts_of(int64_t first, int64_t longest) {
  std::vector<int64_t> contexts;
  for (int64_t context = first; context <= longest; context *= 2) contexts.push_back(context);
  if (contexts.empty() || contexts.back() < longest) contexts.push_back(longest);
  return contexts;
}

void fit_result(ContextResult& result) {
  std::vector<std::pair<double, double>> prefill, decode;
  for (const ContextFigure& figure : result.figures) {
    const auto context = static_cast<double>(figure.context);
    prefill.emplace_back(context / 2, figure.prefill_us_per_token());
    decode.emplace_back(context, figure.decode_seconds * 1e6);
  }
  result.prefill = fit_growth(prefill);
  result.decode = fit_growth(decode);
}

}  // namespace

GrowthFit fit_growth(const std::vector<std::pair<double, double>>& points) {
  GrowthFit fit;
  if (points.empty()) return fit;
  const auto n = static_cast<double>(points.size());
  double mean_x = 0, mean_y = 0;
  for (const auto& [x, y] : points) {
    mean_x += x / n;
    mean_y += y / n;
  }
  double xx = 0, xy = 0;
  for (const auto& [x, y] : points) {
    xx += (x - mean_x) * (x - mean_x);
    xy += (x - mean_x) * (y - mean_y);
  }
  fit.slope_us = xx > 0 ? xy / xx : 0;
  fit.constant_us = mean_y - fit.slope_us * mean_x;
  for (const auto& [x, y] : points)
    if (y > 0) fit.worst_percent = std::max(fit.worst_percent, 100 * std::abs(fit.at(x) / y - 1));
  return fit;
}

ContextResult bench_context(const ContextBenchOptions& options,
                            const std::function<void(const std::string&)>& tell) {
  if (options.first < 1 || options.longest < options.first || options.decoded < 2 || options.rounds < 1)
    fail(ErrorKind::kInvalid,
         "contexts from {} to {}, {} decoded tokens, {} rounds: need 1 <= first <= longest, "
         "two tokens and a round",
         options.first, options.longest, options.decoded, options.rounds);
  const int64_t native = io::load_model_config(options.engine.model).max_position_embeddings;
  const int64_t longest = std::min(options.longest, native - options.decoded - 1);
  if (longest < options.first)
    fail(ErrorKind::kInvalid, "contexts from {} and {} decoded tokens: this model was made for {} tokens",
         options.first, options.decoded, native);
  engine::EngineOptions engine_options = options.engine;
  engine_options.max_model_len = longest + options.decoded + 1;
  engine_options.max_num_seqs = 1;
  engine::Engine engine(engine_options);
  const cache::PagePlan& plan = engine.info().page_plan;
  ContextResult result{.device = engine.info().device,
                       .model = options.engine.model.filename().string(),
                       .layout = std::string(cache::to_string(plan.layout)),
                       .page_tokens = plan.page_tokens,
                       .rounds = options.rounds};
  const std::vector<int64_t> contexts = contexts_of(options.first, longest);
  run_context(engine, contexts.back(), options.decoded);  // cold: every page and workspace is touched here
  for (const int64_t context : contexts) {
    std::vector<double> prefill, decode;
    std::vector<int32_t> answer;
    for (int64_t round = 0; round < options.rounds; ++round) {
      ContextRun run = run_context(engine, context, options.decoded);
      if (!answer.empty() && run.ids != answer)
        fail(ErrorKind::kInvalid, "context {}: two rounds answered differently", context);
      answer = std::move(run.ids);
      prefill.push_back(run.prefill_seconds);
      decode.push_back(run.decode_seconds);
    }
    result.answers.push_back(std::move(answer));
    const ContextFigure& figure = result.figures.emplace_back(ContextFigure{
        .context = context, .prefill_seconds = median_of(prefill), .decode_seconds = median_of(decode)});
    tell(fmt::format("{:<8} page {:>4}  context {:>7}  prefill {:>8.0f} tokens/s  decode {:>8.3f} ms a token",
                     result.layout, result.page_tokens, context,
                     static_cast<double>(context) / figure.prefill_seconds, figure.decode_seconds * 1e3));
  }
  fit_result(result);
  return result;
}

std::vector<ContextResult> bench_layouts(const ContextBenchOptions& options,
                                         const std::function<void(const std::string&)>& tell) {
  struct Setting {
    cache::Layout layout;
    int64_t page_tokens;
  };
  // What the state asks for is the least of the unified layout: there 64 stands for that.
  constexpr Setting kSettings[] = {{cache::Layout::kUnified, 64},  {cache::Layout::kUnified, 784},
                                   {cache::Layout::kUnified, 832}, {cache::Layout::kUnified, 1024},
                                   {cache::Layout::kSplit, 64},    {cache::Layout::kSplit, 784},
                                   {cache::Layout::kSplit, 832},   {cache::Layout::kSplit, 1024}};
  std::vector<ContextResult> results;
  for (const Setting& setting : kSettings) {
    ContextBenchOptions with = options;
    with.engine.pages = {.alignment = setting.page_tokens % 64 == 0 ? 64 : 16,
                         .layout = setting.layout,
                         .min_page_tokens = setting.page_tokens};
    results.push_back(bench_context(with, tell));
    if (results.back().answers != results.front().answers)
      fail(ErrorKind::kInvalid, "{} layout, page {}: another answer than {} layout, page {}",
           results.back().layout, results.back().page_tokens, results.front().layout,
           results.front().page_tokens);
  }
  return results;
}

Json to_json(const ContextResult& result) {
  Json figures = Json::array();
  for (const ContextFigure& figure : result.figures)
    figures.push_back({{"context", figure.context},
                       {"prefill_seconds", figure.prefill_seconds},
                       {"prefill_tokens_per_s", static_cast<double>(figure.context) / figure.prefill_seconds},
                       {"prefill_us_per_token", figure.prefill_us_per_token()},
                       {"decode_ms_per_token", figure.decode_seconds * 1e3}});
  const auto fit_json = [](const GrowthFit& fit) {
    return Json{{"constant_us", fit.constant_us},
                {"us_per_1000_tokens_of_context", fit.slope_us * 1e3},
                {"worst_miss_percent", fit.worst_percent}};
  };
  return {{"kind", "context"},
          {"device", result.device},
          {"model", result.model},
          {"layout", result.layout},
          {"page_tokens", result.page_tokens},
          {"rounds", result.rounds},
          {"figures", std::move(figures)},
          {"prefill_growth", fit_json(result.prefill)},
          {"decode_growth", fit_json(result.decode)},
          {"environment", to_json(read_environment(AskDevices::kNo))}};
}

}  // namespace longspan::measure
