// EnvironmentDifference: in what two saved environments differ. A ratio belongs to one thing under test only
// when nothing else differs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace longspan::measure {

struct EnvironmentDifference {
  std::string key;  // "server.config.cache.block_size", "client.machine.kernel"
  std::string a;    // "-" where absent
  std::string b;
  // What it belongs to: a setting, "server.build", "server.device", "client.machine", ... The plan follows
  // from the settings and the build: it is a thing of its own only when they are the same.
  std::string thing;
};

// Of the "environment" of two results. What changes by itself (process ids, free memory) is left out; against
// an empty one nothing is known to differ.
std::vector<EnvironmentDifference> environment_differences(const nlohmann::ordered_json& a,
                                                           const nlohmann::ordered_json& b);
// Distinct, in order of appearance.
std::vector<std::string> differing_things(const std::vector<EnvironmentDifference>& differences);

}  // namespace longspan::measure
