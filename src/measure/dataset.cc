#include "measure/dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/json.h"
#include "measure/prompt_text.h"

namespace longspan::measure {
namespace {

constexpr int kWarmUpRound = 1;
constexpr int64_t kDefaultOutput = 128;
constexpr int64_t kContestOutput = 1024;
constexpr std::array<ContestBucket, 3> kBuckets = {
    {{"4K-8K", 4096, 8192, 0.20}, {"8K-16K", 8192, 16384, 0.50}, {"16K-32K", 16384, 32768, 0.30}}};

int64_t output_tokens_of(const DatasetOptions& options) {
  if (options.output_tokens > 0) return options.output_tokens;
  return options.kind == DatasetKind::kBuckets ? kContestOutput : kDefaultOutput;
}

BenchPrompt built_in(const TextKey& key, int64_t num_tokens, int64_t output, const TokenCounter& counter) {
  BenchPrompt prompt{.text = {}, .num_tokens = 0, .max_output_tokens = output};
  if (!counter) {
    prompt.text = text_of_about(key, num_tokens);
    return prompt;
  }
  prompt.text = text_of_tokens(key, num_tokens, counter);
  prompt.num_tokens = counter.with_template ? num_tokens : 0;  // a template's own tokens are not known
  return prompt;
}

// ---- JSONL ----

struct JsonlRow {
  std::string text;
  int64_t output_tokens = 0;  // 0: the row does not say
};

int64_t output_field(const nlohmann::json& row, const std::string& where) {
  for (const char* name : {"output_tokens", "output_len", "max_tokens"}) {
    if (!row.contains(name) || row[name].is_null()) continue;
    if (!row[name].is_number_integer() || row[name].get<int64_t>() < 1)
      fail(ErrorKind::kInvalid, "{}: {}: got {}, need a whole number above 0", where, name, row[name].dump());
    return row[name].get<int64_t>();
  }
  return 0;
}

std::vector<JsonlRow> read_jsonl(const std::string& path) {
  const std::string file = io::read_text_file(path);
  std::vector<JsonlRow> rows;
  int line_number = 0;
  for (size_t begin = 0; begin < file.size();) {
    const size_t end = std::min(file.find('\n', begin), file.size());
    const std::string_view line = std::string_view(file).substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string where = fmt::format("{}:{}", path, line_number);
    const nlohmann::json row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object() || !row.contains("prompt") || !row["prompt"].is_string())
      fail(ErrorKind::kInvalid, "{}: need a JSON object with a string \"prompt\"", where);
    rows.push_back({.text = row["prompt"], .output_tokens = output_field(row, where)});
  }
  return rows;
}

BenchPrompt prompt_of(const JsonlRow& row, const DatasetOptions& options, const TokenCounter& counter) {
  const bool counts = counter && counter.with_template;
  return {.text = row.text,
          .num_tokens = counts ? counter.count(row.text) : 0,
          .max_output_tokens = options.output_tokens > 0 ? options.output_tokens
                               : row.output_tokens > 0   ? row.output_tokens
                                                         : output_tokens_of(options)};
}

// The prompts behind the first N warm up; where they run out, prose as long as the measured ones.
void add_warm_up(PromptGroup& group, std::span<const BenchPrompt> behind, const DatasetOptions& options,
                 const TokenCounter& counter) {
  constexpr int64_t kBytesPerToken = 4;  // where nothing counts
  for (size_t i = 0; i < static_cast<size_t>(options.num_warm_up); ++i) {
    if (i < behind.size()) {
      group.warm_up.push_back(behind[i]);
      continue;
    }
    const BenchPrompt& like = group.measured[i % group.measured.size()];
    const TextKey key{.seed = options.seed, .round = kWarmUpRound, .bucket = group.name, .index = i};
    const int64_t length =
        like.num_tokens > 0 ? like.num_tokens : static_cast<int64_t>(like.text.size()) / kBytesPerToken;
    const bool too_short = counter && counter.count(PromptText(key).with_words(0)) > length;
    group.warm_up.push_back(too_short ? BenchPrompt{.text = PromptText(key).with_words(0),
                                                    .max_output_tokens = like.max_output_tokens}
                                      : built_in(key, length, like.max_output_tokens, counter));
  }
}

void check_enough(const DatasetOptions& options, size_t got, const std::string& what) {
  if (got < static_cast<size_t>(options.num_prompts))
    fail(ErrorKind::kInvalid, "{}: got {} prompts{}, need {} (--num-prompts)", options.path, got, what,
         options.num_prompts);
}

PromptGroup group_of(std::string name, double weight, std::vector<BenchPrompt> prompts,
                     const DatasetOptions& options, const TokenCounter& counter) {
  const auto first_behind = prompts.begin() + options.num_prompts;
  const std::vector<BenchPrompt> behind(first_behind, prompts.end());
  prompts.erase(first_behind, prompts.end());
  PromptGroup group{.name = std::move(name), .weight = weight, .warm_up = {}, .measured = std::move(prompts)};
  add_warm_up(group, behind, options, counter);
  return group;
}

std::vector<PromptGroup> custom_groups(const DatasetOptions& options, const TokenCounter& counter) {
  const std::vector<JsonlRow> rows = read_jsonl(options.path);
  check_enough(options, rows.size(), "");
  const size_t used = std::min(rows.size(), static_cast<size_t>(options.num_prompts + options.num_warm_up));
  std::vector<BenchPrompt> prompts;
  for (size_t i = 0; i < used; ++i) prompts.push_back(prompt_of(rows[i], options, counter));
  return {group_of("all", 1, std::move(prompts), options, counter)};
}

std::vector<PromptGroup> sorted_groups(const DatasetOptions& options, const TokenCounter& counter) {
  if (!counter || !counter.with_template)
    fail(ErrorKind::kUnsupported, "{}: buckets need token counts: give --tokenizer MODEL_DIR", options.path);
  std::array<std::vector<BenchPrompt>, kBuckets.size()> sorted;
  for (const JsonlRow& row : read_jsonl(options.path)) {
    BenchPrompt prompt = prompt_of(row, options, counter);
    for (size_t i = 0; i < kBuckets.size(); ++i)
      if (prompt.num_tokens > kBuckets[i].min_tokens && prompt.num_tokens <= kBuckets[i].max_tokens)
        sorted[i].push_back(prompt);
  }
  std::vector<PromptGroup> groups;
  for (size_t i = 0; i < kBuckets.size(); ++i) {
    check_enough(options, sorted[i].size(), fmt::format(" of {} tokens", kBuckets[i].name));
    groups.push_back(group_of(kBuckets[i].name, kBuckets[i].weight, std::move(sorted[i]), options, counter));
  }
  return groups;
}

// ---- built-in prose ----

template <class Length>
PromptGroup prose_group(std::string name, double weight, const DatasetOptions& options,
                        const TokenCounter& counter, const Length& length_of) {
  PromptGroup group{.name = std::move(name), .weight = weight, .warm_up = {}, .measured = {}};
  const auto fill = [&](std::vector<BenchPrompt>& prompts, int64_t count, int round) {
    for (size_t i = 0; i < static_cast<size_t>(count); ++i)
      prompts.push_back(built_in({.seed = options.seed, .round = round, .bucket = group.name, .index = i},
                                 length_of(i), output_tokens_of(options), counter));
  };
  fill(group.measured, options.num_prompts, /*round=*/0);
  fill(group.warm_up, options.num_warm_up, kWarmUpRound);
  return group;
}

}  // namespace

DatasetKind dataset_from_name(const std::string& name) {
  if (name == "text" || name == "random") return DatasetKind::kText;
  if (name == "custom") return DatasetKind::kCustom;
  if (name == "buckets") return DatasetKind::kBuckets;
  fail(ErrorKind::kInvalid, "--dataset-name: got '{}', need text (or random), custom or buckets", name);
}

const char* to_string(DatasetKind kind) {
  return kind == DatasetKind::kText ? "text" : kind == DatasetKind::kCustom ? "custom" : "buckets";
}

std::span<const ContestBucket> contest_buckets() { return kBuckets; }

int64_t bucket_length(const ContestBucket& bucket, size_t index) {
  // Van der Corput: 1/2, 1/4, 3/4, 1/8, 5/8, ...
  double fraction = 0, digit = 0.5;
  for (size_t rest = index + 1; rest > 0; rest /= 2, digit /= 2)
    if (rest % 2 == 1) fraction += digit;
  const auto width = static_cast<double>(bucket.max_tokens - bucket.min_tokens);
  return bucket.min_tokens + static_cast<int64_t>(std::lround(fraction * width));
}

std::vector<PromptGroup> make_dataset(const DatasetOptions& options, const TokenCounter& counter) {
  if (options.num_prompts < 1)
    fail(ErrorKind::kInvalid, "--num-prompts: got {}, need at least 1", options.num_prompts);
  if (options.kind == DatasetKind::kCustom && options.path.empty())
    fail(ErrorKind::kInvalid, "--dataset-name custom: need --dataset-path FILE.jsonl");
  if (options.kind == DatasetKind::kCustom) return custom_groups(options, counter);
  if (options.kind == DatasetKind::kText)
    return {prose_group("all", 1, options, counter, [&](size_t) { return options.input_tokens; })};
  if (!options.path.empty()) return sorted_groups(options, counter);
  std::vector<PromptGroup> groups;
  for (const ContestBucket& bucket : kBuckets)
    groups.push_back(prose_group(bucket.name, bucket.weight, options, counter,
                                 [&](size_t i) { return bucket_length(bucket, i); }));
  return groups;
}

}  // namespace longspan::measure
