#include "measure/environment_difference.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

// Ends of keys that differ between two runs of the same thing, or say again what another key says.
constexpr std::array<std::string_view, 13> kChangesByItself = {".plan.derivation",
                                                               ".pid",
                                                               ".started_at",
                                                               ".available_bytes",
                                                               ".swap_used_bytes",
                                                               ".oom_events",
                                                               ".oom_kills",
                                                               ".memory_bytes_used",
                                                               ".oom_kills_since_boot",
                                                               ".cgroup.memory_bytes",
                                                               ".server.host",
                                                               ".server.port",
                                                               ".api_key"};

bool key_ends_in(std::string_view key, std::string_view end) {
  return key.size() >= end.size() && key.substr(key.size() - end.size()) == end;
}

bool key_begins_with(std::string_view key, std::string_view begin) {
  return key.substr(0, begin.size()) == begin;
}

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Every leaf by its path. Lists of settings and of libraries are keyed by their names, so that one more of
// them is one difference.
void add_leaves(const Json& json, const std::string& key, std::map<std::string, std::string>& leaves) {
  if (json.is_object()) {
    for (const auto& [name, value] : json.items())
      add_leaves(value, key.empty() ? name : key + "." + name, leaves);
    return;
  }
  if (json.is_array() && !json.empty() && json[0].is_object()) {
    for (size_t i = 0; i < json.size(); ++i) {
      const Json& item = json[i];
      if (item.contains("key") && item.contains("value"))
        leaves[key + "." + item["key"].get<std::string>()] =
            item["value"].is_string() ? item["value"].get<std::string>() : item["value"].dump();
      else if (item.contains("path") && item.contains("version"))
        leaves[key + "." + file_name(item.value("path", ""))] = item.value("version", "");
      else
        add_leaves(item, key + "." + std::to_string(i), leaves);
    }
    return;
  }
  leaves[key] = json.is_string() ? json.get<std::string>() : json.dump();
}

std::string thing_of(const std::string& key) {
  for (const std::string_view whole : {"server.build", "server.version", "server.plan", "server.limits",
                                       "client.machine", "client.cgroup", "client.program", "client.devices"})
    if (key_begins_with(key, whole)) return whole == "server.version" ? "server.build" : std::string(whole);
  return key;
}

}  // namespace

std::vector<EnvironmentDifference> environment_differences(const Json& a, const Json& b) {
  std::map<std::string, std::string> first, second;
  if (a.empty() || b.empty()) return {};
  add_leaves(a, "", first);
  add_leaves(b, "", second);
  std::map<std::string, std::pair<std::string, std::string>> both;
  for (const auto& [key, value] : first) both[key] = {value, "-"};
  for (const auto& [key, value] : second) both.try_emplace(key, "-", "-").first->second.second = value;
  std::vector<EnvironmentDifference> out;
  for (const auto& [key, values] : both) {
    const std::string_view name = key;
    const bool passes = std::any_of(kChangesByItself.begin(), kChangesByItself.end(),
                                    [&](std::string_view end) { return key_ends_in(name, end); });
    if (values.first != values.second && !passes)
      out.push_back({.key = key, .a = values.first, .b = values.second, .thing = thing_of(key)});
  }
  return out;
}

std::vector<std::string> differing_things(const std::vector<EnvironmentDifference>& differences) {
  std::vector<std::string> things;
  for (const EnvironmentDifference& difference : differences)
    if (std::find(things.begin(), things.end(), difference.thing) == things.end())
      things.push_back(difference.thing);
  const bool has_cause = std::any_of(things.begin(), things.end(), [](const std::string& thing) {
    return thing == "server.build" || key_begins_with(thing, "server.config");
  });
  if (has_cause) std::erase(things, "server.plan");
  return things;
}

}  // namespace longspan::measure
