// ServerState: what a server under load says about itself before and after, for a saved result: Longspan's
// /v1/longspan/status where it has one, else a version. Nothing of it is needed: what is missing stays out.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "measure/load_client.h"

namespace longspan::measure {

struct ServerState {
  nlohmann::ordered_json lasting = nlohmann::ordered_json::object();   // plan, config, build, device
  nlohmann::ordered_json counters = nlohmann::ordered_json::object();  // dispatch, prefix_cache, totals
};

ServerState read_server_state(const LoadTarget& target);

// The first of /v1/models. Throws kEnvironment when there is none.
std::string first_model(const LoadTarget& target);

// after - before of every whole number, at any depth; other values are left out.
nlohmann::ordered_json counted_between(const nlohmann::ordered_json& before,
                                       const nlohmann::ordered_json& after);
// a + b of every whole number.
nlohmann::ordered_json counted_together(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b);

}  // namespace longspan::measure
