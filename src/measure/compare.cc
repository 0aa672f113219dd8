#include "measure/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>

#include "core/error.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

// Metrics whose drift between the two A's voids the whole run. Percentiles of a few requests are too loose
// for it.
constexpr std::array<std::string_view, 5> kPrimary = {"output_throughput", "mean_ttft_ms", "mean_tpot_ms",
                                                      "median_us", "ms"};
constexpr std::array<std::string_view, 4> kHigherIsBetter = {"output_throughput", "total_token_throughput",
                                                             "request_throughput", "prefill_throughput"};
constexpr std::array<std::string_view, 5> kLatencies = {"_ttft_", "_tpot_", "_itl_", "_e2el_", "_ttfr_"};
// What both runs must have been asked for.
constexpr std::array<std::string_view, 8> kLoad = {"endpoint_type",   "num_prompts", "request_rate",
                                                   "max_concurrency", "temperature", "ignore_eos",
                                                   "extra_body",      "burstiness"};

// What tells one place from another, in an environment.
constexpr std::array<std::string_view, 3> kPlace = {"server.device", "client.machine.cpu", "machine.cpu"};

template <class List>
bool listed(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool is_latency(const std::string& name) {
  return name.size() > 3 && name.compare(name.size() - 3, 3, "_ms") == 0 && name.compare(0, 4, "std_") != 0;
}

// Empty where the file has none: nothing then differs from it.
Json environment_of(const Json& json) { return json.value("environment", Json::object()); }

// ---- metrics of a result, by group ----

struct MetricGroup {
  std::string name;
  double weight = 1;
  std::map<std::string, double> values;
};

void add_end_to_end_values(const Json& json, MetricGroup& group) {
  for (const auto& [name, value] : json.items())
    if (value.is_number() && (listed(kHigherIsBetter, name) || is_latency(name)))
      group.values[name] = value.get<double>();
}

std::vector<MetricGroup> end_to_end_groups(const Json& json) {
  std::vector<MetricGroup> groups;
  for (const Json& bucket : json.value("buckets", Json::array())) {
    groups.push_back({.name = bucket.value("name", ""), .weight = bucket.value("weight", 1.0), .values = {}});
    add_end_to_end_values(bucket, groups.back());
  }
  if (groups.empty()) {
    groups.push_back({.name = "all", .weight = 1, .values = {}});
    add_end_to_end_values(json, groups.back());
  }
  if (groups.size() < 2) return groups;
  MetricGroup weighted{.name = "weighted", .weight = 1, .values = {}};
  for (const MetricGroup& group : groups)
    for (const auto& [name, value] : group.values) weighted.values[name] += group.weight * value;
  groups.push_back(std::move(weighted));
  return groups;
}

// The median of each case.
std::vector<MetricGroup> kernel_groups(const Json& json) {
  std::vector<MetricGroup> groups;
  for (const Json& figure : json.value("figures", Json::array()))
    groups.push_back({.name = fmt::format("{} {} {}", figure.value("op", ""), figure.value("variant", ""),
                                          figure.value("shape", "")),
                      .weight = 1,
                      .values = {{"median_us", figure.value("median_us", 0.0)}}});
  return groups;
}

// The time of each class in the window.
std::vector<MetricGroup> profile_groups(const Json& json) {
  std::vector<MetricGroup> groups;
  for (const Json& row : json.value("classes", Json::array()))
    groups.push_back({.name = row.value("name", ""), .weight = 1, .values = {{"ms", row.value("ms", 0.0)}}});
  return groups;
}

std::vector<MetricGroup> groups_of_result(const ResultFile& file) {
  return file.kind == ResultKind::kKernel    ? kernel_groups(file.json)
         : file.kind == ResultKind::kProfile ? profile_groups(file.json)
                                             : end_to_end_groups(file.json);
}

const MetricGroup* group_named(const std::vector<MetricGroup>& groups, const std::string& name) {
  for (const MetricGroup& group : groups)
    if (group.name == name) return &group;
  return nullptr;
}

std::optional<double> value_in(const std::vector<MetricGroup>& groups, const MetricRow& row) {
  const MetricGroup* group = group_named(groups, row.group);
  if (group == nullptr || !group->values.contains(row.name)) return std::nullopt;
  return group->values.at(row.name);
}

// Throughput first, then latencies by metric: mean, median, percentiles.
std::pair<size_t, std::string> metric_order(const std::string& name) {
  const auto throughput = std::find(kHigherIsBetter.begin(), kHigherIsBetter.end(), name);
  if (throughput != kHigherIsBetter.end())
    return {static_cast<size_t>(throughput - kHigherIsBetter.begin()), ""};
  size_t metric = 0;
  while (metric < kLatencies.size() && name.find(kLatencies[metric]) == name.npos) ++metric;
  return {kHigherIsBetter.size() + metric, name};
}

void add_rows(const std::vector<MetricGroup>& a, const std::vector<MetricGroup>& b,
              const std::optional<std::vector<MetricGroup>>& again, Comparison& comparison) {
  for (const MetricGroup& group : a) {
    std::vector<std::string> names;
    for (const auto& item : group.values) names.push_back(item.first);
    std::sort(names.begin(), names.end(),
              [](const std::string& x, const std::string& y) { return metric_order(x) < metric_order(y); });
    for (const std::string& name : names) {
      MetricRow row{.group = group.name,
                    .name = name,
                    .higher_is_better = listed(kHigherIsBetter, name),
                    .a = group.values.at(name)};
      const auto other = value_in(b, row);
      if (!other || !(row.a > 0) || !(*other > 0)) continue;
      row.b = *other;
      if (again) row.a_again = value_in(*again, row);
      comparison.rows.push_back(std::move(row));
    }
  }
}

// ---- why a run is void ----

void add_own_voids(const char* which, const Json& json, std::vector<std::string>& voids) {
  if (const int64_t failed = json.value("failed", int64_t{0}); failed > 0)
    voids.push_back(fmt::format("{}: {} requests failed", which, failed));
  for (const Json& why : json.value("void", Json::array()))
    voids.push_back(fmt::format("{}: {}", which, why.get<std::string>()));
  if (json.value("cold", false))
    voids.push_back(fmt::format("{}: measured cold, without a warm-up round", which));
}

Json load_of(const Json& json) {
  Json load = Json::object();
  for (const std::string_view name : kLoad)
    if (json.contains(name)) load[std::string(name)] = json[std::string(name)];
  if (json.contains("dataset") && json["dataset"].is_object()) {
    load["dataset"] = json["dataset"];
    load["dataset"].erase("path");               // the prompts' own hashes are compared
    load["dataset"].erase("tokens_counted_by");  // says how, not what
    load["dataset"].erase("num_warmups");        // in no figure; none at all is void by itself
  }
  return load;
}

// The prompts themselves: their hashes, else at least their lengths.
Json work_of(const Json& json) {
  Json work = Json::array();
  for (const Json& request : json.value("requests", Json::array()))
    work.push_back(request.value("prompt_hash", ""));
  return work.empty() ? json.value("input_lens", Json::array()) : work;
}

// Two profiles compare when their windows held the same work.
void add_window_voids(const Json& a, const Json& b, const std::string& which,
                      std::vector<std::string>& voids) {
  const Json first = a.value("window", Json::object()), second = b.value("window", Json::object());
  for (const char* name : {"prompt_tokens", "decode_tokens"})
    if (first.contains(name) && second.contains(name) && first[name] != second[name])
      voids.push_back(fmt::format("{} hold different work: {} {} against {}", which, name, first[name].dump(),
                                  second[name].dump()));
}

void add_load_voids(const Json& a, const Json& b, const std::string& which, std::vector<std::string>& voids) {
  add_window_voids(a, b, which, voids);
  const Json first = load_of(a).flatten(), second = load_of(b).flatten();
  for (const auto& [key, value] : first.items())
    if (second.contains(key) && second[key] != value)
      voids.push_back(fmt::format("{} were asked for different work: {} {} against {}", which, key.substr(1),
                                  value.dump(), second[key].dump()));
  const bool both_hashed = a.contains("requests") == b.contains("requests");
  const Json prompts_a = both_hashed ? work_of(a) : a.value("input_lens", Json::array());
  const Json prompts_b = both_hashed ? work_of(b) : b.value("input_lens", Json::array());
  if (!prompts_a.empty() && !prompts_b.empty() && prompts_a != prompts_b)
    voids.push_back(fmt::format("{} were asked for different work: their prompts are not the same", which));
}

void add_machine_voids(Comparison& comparison) {
  for (const EnvironmentDifference& difference : comparison.environment) {
    if (!listed(kPlace, difference.key)) continue;
    if (difference.a == "-" || difference.b == "-")  // another program, which does not say
      comparison.remarks.push_back(fmt::format("{} does not say its {}: whether it is {} is not known",
                                               difference.a == "-" ? "A" : "B", difference.key,
                                               difference.a == "-" ? difference.b : difference.a));
    else
      comparison.voids.push_back(fmt::format("measured in two places: {} {} against {}", difference.key,
                                             difference.a, difference.b));
  }
}

void add_drift_voids(Comparison& comparison) {
  for (const MetricRow& row : comparison.rows)
    if (listed(kPrimary, row.name) && std::abs(row.drift_percent()) > kNoisePercent)
      comparison.voids.push_back(
          fmt::format("A drifted: {} {} was {:.4g}, then {:.4g} ({:+.2f} %, more than {:g} %)", row.group,
                      row.name, row.a, *row.a_again, row.drift_percent(), kNoisePercent));
}

// ---- paths ----

void add_counter_differences(const Json& a, const Json& b, Comparison& comparison) {
  for (const char* name : {"dispatch", "decode_inputs"}) {
    const auto flat = [&](const Json& json) {
      const Json counters = json.value("counters", Json::object());
      return counters.contains(name) ? counters[name].flatten() : Json::object();
    };
    const Json first = flat(a), second = flat(b);
    std::map<std::string, std::pair<std::string, std::string>> both;
    for (const auto& [key, value] : first.items()) both[key].first = value.dump();
    for (const auto& [key, value] : second.items()) both[key].second = value.dump();
    for (auto& [key, values] : both) {
      if (values.first.empty()) values.first = "0";
      if (values.second.empty()) values.second = "0";
      if (values.first == values.second) continue;
      std::string dotted = name + key;
      std::replace(dotted.begin(), dotted.end(), '/', '.');
      comparison.counters.push_back(fmt::format("{}: {} against {}", dotted, values.first, values.second));
    }
  }
}

// Of A and A again.
void add_repeat_voids(const Json& a, const Json& again, Comparison& comparison) {
  add_own_voids("A again", again, comparison.voids);
  add_load_voids(a, again, "A and A again", comparison.voids);
  if (!compare_outputs(a, again).differences.empty())
    comparison.voids.push_back("A and A again gave different outputs: the server does not repeat itself");
  const std::vector<std::string> things =
      differing_things(environment_differences(environment_of(a), environment_of(again)));
  if (!things.empty())
    comparison.voids.push_back(
        fmt::format("A and A again are not the same thing: they differ in {}", fmt::join(things, ", ")));
}

void add_remarks(const Json& a, const Json& b, Comparison& comparison) {
  const std::vector<std::string> things = differing_things(comparison.environment);
  constexpr size_t kMaxNamed = 8;  // two programs differ in all that either says
  if (things.size() > 1)
    comparison.remarks.push_back(fmt::format(
        "the environments differ in {} things, so a ratio belongs to all of them together: {}{}",
        things.size(), fmt::join(std::span(things).first(std::min(things.size(), kMaxNamed)), ", "),
        things.size() > kMaxNamed ? ", ..." : ""));
  if (things.empty() && a.contains("environment") && b.contains("environment"))
    comparison.remarks.push_back("the environments are the same: A and B are one thing, measured twice");
  if (!a.contains("environment") || !b.contains("environment"))
    comparison.remarks.push_back("a file has no environment: whether anything else differs is not known");
  if (comparison.kind == ResultKind::kKernel)
    comparison.remarks.push_back("these are kernels alone: no ratio of them is a ratio of a service");
  if (comparison.kind == ResultKind::kProfile)
    comparison.remarks.push_back(
        "these are buckets inside a profile: no ratio of them is a ratio of a service");
  if (comparison.kind == ResultKind::kEndToEnd && comparison.outputs.num_compared == 0)
    comparison.remarks.push_back("no outputs to compare: whether the answers are the same is not known");
  if (a.value("temperature", 0.0) > 0 && !comparison.outputs.differences.empty())
    comparison.remarks.push_back("the temperature is above 0: outputs differ by chance");
}

Comparison compared_results(const ResultFile& a, const ResultFile& b, const ResultFile* a_again) {
  Comparison comparison{.kind = a.kind};
  comparison.environment = environment_differences(environment_of(a.json), environment_of(b.json));
  std::optional<std::vector<MetricGroup>> again;
  if (a_again != nullptr) again = groups_of_result(*a_again);
  add_rows(groups_of_result(a), groups_of_result(b), again, comparison);
  if (comparison.rows.empty())
    fail(ErrorKind::kInvalid, "{} and {} have no metric in common", a.path, b.path);
  add_own_voids("A", a.json, comparison.voids);
  add_own_voids("B", b.json, comparison.voids);
  add_load_voids(a.json, b.json, "A and B", comparison.voids);
  if (a_again != nullptr) add_repeat_voids(a.json, a_again->json, comparison);
  add_machine_voids(comparison);
  add_drift_voids(comparison);
  if (a.kind == ResultKind::kEndToEnd) comparison.outputs = compare_outputs(a.json, b.json);
  add_counter_differences(a.json, b.json, comparison);
  add_remarks(a.json, b.json, comparison);
  return comparison;
}

}  // namespace

const char* to_string(RatioVerdict verdict) {
  return verdict == RatioVerdict::kNoise    ? "noise"
         : verdict == RatioVerdict::kBetter ? "better"
         : verdict == RatioVerdict::kWorse  ? "worse"
                                            : "void";
}

RatioVerdict MetricRow::verdict() const {
  if (std::abs(drift_percent()) > kNoisePercent) return RatioVerdict::kVoid;
  if (std::abs(change_percent()) <= kNoisePercent) return RatioVerdict::kNoise;
  return (change_percent() > 0) == higher_is_better ? RatioVerdict::kBetter : RatioVerdict::kWorse;
}

Comparison compare_results(const ResultFile& a, const ResultFile& b, const ResultFile* a_again) {
  for (const ResultFile* other : {&b, a_again})
    if (other != nullptr && other->kind != a.kind)
      fail(ErrorKind::kInvalid,
           "{} measures {}, {} measures {}: their ratio would mean nothing. Measure both in the same way",
           a.path, described(a.kind), other->path, described(other->kind));
  try {
    return compared_results(a, b, a_again);
  } catch (const Json::exception& error) {  // written by hand, or by another program
    fail(ErrorKind::kInvalid, "{} or {} has a member of another type than results have: {}", a.path, b.path,
         error.what());
  }
}

}  // namespace longspan::measure
