#include "measure/server_state.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "core/error.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

// Members of /v1/longspan/status that grow.
constexpr std::array<std::string_view, 4> kCounters = {"dispatch", "decode_inputs", "prefix_cache", "totals"};
// Members that hold as long as the server runs.
constexpr std::array<std::string_view, 10> kLasting = {"model",        "architecture",  "device", "dtype",
                                                       "dtype_reason", "max_model_len", "limits", "plan",
                                                       "build",        "config"};

template <size_t n>
bool is_one_of(const std::array<std::string_view, n>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Json server_json(const LoadTarget& target, const std::string& path) {
  const server::HttpAnswer answer = server::http_request(
      target.url, target.timeouts, {.method = "GET", .path = path, .headers = bench_headers(target.api_key)});
  if (answer.status != 200) return nullptr;
  Json json = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? Json(nullptr) : json;
}

void add_llama_cpp_props(ServerState& state, const Json& props) {
  if (props.contains("build_info")) state.lasting["version"] = props["build_info"];
  for (const char* name : {"model_path", "model_ftype", "total_slots"})
    if (props.contains(name)) state.lasting[name] = props[name];
}

template <class Combine>
Json combined_counts(const Json& a, const Json& b, const Combine& combine) {
  Json out = Json::object();
  std::set<std::string> names;
  for (const Json* side : {&a, &b})
    if (side->is_object())
      for (const auto& item : side->items()) names.insert(item.key());
  const auto member = [](const Json& object, const std::string& name) {
    return object.is_object() && object.contains(name) ? object[name] : Json(nullptr);
  };
  for (const std::string& name : names) {
    const Json first = member(a, name), second = member(b, name);
    if (first.is_object() || second.is_object())
      out[name] = combined_counts(first, second, combine);
    else if (first.is_number_integer() || second.is_number_integer())
      out[name] = combine(first.is_number_integer() ? first.get<int64_t>() : 0,
                          second.is_number_integer() ? second.get<int64_t>() : 0);
  }
  return out;
}

}  // namespace

ServerState read_server_state(const LoadTarget& target) {
  ServerState state;
  if (const Json status = server_json(target, "/v1/longspan/status"); status.is_object())
    for (const auto& [name, value] : status.items()) {
      if (is_one_of(kCounters, name)) state.counters[name] = value;
      if (is_one_of(kLasting, name)) state.lasting[name] = value;
    }
  if (const Json version = server_json(target, "/version");
      version.is_object() && version.contains("version"))
    state.lasting["version"] = version["version"];
  else if (const Json props = server_json(target, "/props"); props.is_object())
    add_llama_cpp_props(state, props);
  return state;
}

std::string first_model(const LoadTarget& target) {
  const Json models = server_json(target, "/v1/models");
  if (models.is_object() && models.contains("data") && models["data"].is_array() && !models["data"].empty() &&
      models["data"][0].is_object() && models["data"][0].contains("id") &&
      models["data"][0]["id"].is_string())
    return models["data"][0]["id"];
  fail(ErrorKind::kEnvironment, "http://{}:{}{}/v1/models names no model: give --model", target.url.host,
       target.url.port, target.url.path);
}

Json counted_between(const Json& before, const Json& after) {
  return combined_counts(before, after, [](int64_t a, int64_t b) { return b - a; });
}

Json counted_together(const Json& a, const Json& b) {
  return combined_counts(a, b, [](int64_t x, int64_t y) { return x + y; });
}

}  // namespace longspan::measure
