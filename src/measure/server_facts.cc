#include "measure/server_facts.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "server/http_client.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

std::map<std::string, int64_t> counts_of(const Json& object) {
  std::map<std::string, int64_t> counts;
  for (const auto& [name, value] : object.items())
    if (value.is_number_integer()) counts[name] = value.get<int64_t>();
  return counts;
}

}  // namespace

const ServerFacts::Setting* ServerFacts::setting(std::string_view key) const {
  for (const Setting& one : settings)
    if (one.key == key) return &one;
  return nullptr;
}

ServerFacts server_facts(std::string_view status_json, const std::string& base_url) {
  const Json json = Json::parse(status_json, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("plan"))
    fail(ErrorKind::kInvalid, "{}: /v1/longspan/status: got no status; is it a Longspan server?", base_url);
  try {
    const Json& plan = json.at("plan");
    const Json& dispatch = json.at("dispatch");
    const Json build = json.value("build", Json::object());
    ServerFacts facts{.base_url = base_url,
                      .model = json.value("model", ""),
                      .device = json.value("device", ""),
                      .version = build.value("version", ""),
                      .path = build.value("path", ""),
                      .hash = build.value("hash", ""),
                      .pid = build.value("pid", int64_t{0}),
                      .started_unix_seconds = build.value("started_at", int64_t{0}),
                      .page_tokens = plan.value("page_tokens", int64_t{0}),
                      .alignment = plan.value("alignment", int64_t{0}),
                      .layout = plan.value("layout", ""),
                      .prefix_caching = plan.value("prefix_caching", false),
                      .derivation = plan.value("derivation", std::vector<std::string>()),
                      .hits = counts_of(dispatch.at("hits")),
                      .vendor_prefill_misses = counts_of(dispatch.at("vendor_prefill_misses"))};
    for (const Json& setting : json.value("config", Json::array()))
      facts.settings.push_back({.key = setting.at("key").get<std::string>(),
                                .value = setting.at("value").get<std::string>(),
                                .source = setting.at("source").get<std::string>()});
    return facts;
  } catch (const Json::exception& error) {
    fail(ErrorKind::kInvalid, "{}: /v1/longspan/status: {}", base_url, error.what());
  }
}

ServerFacts fetch_server_facts(const std::string& base_url, const std::string& api_key) {
  server::HttpUrl url = server::parse_http_url(base_url);
  // Clients of the OpenAI kind write the version into the base; the path below has it.
  if (url.path.ends_with("/v1")) url.path.resize(url.path.size() - 3);
  server::HttpQuery query{.path = "/v1/longspan/status"};
  if (!api_key.empty()) query.headers.emplace_back("Authorization", "Bearer " + api_key);
  const server::HttpTimeouts timeouts{.connect = std::chrono::seconds(10), .read = std::chrono::seconds(60)};
  const server::HttpAnswer answer = server::http_request(url, timeouts, query);
  if (answer.status == 401 || answer.status == 403)
    fail(ErrorKind::kInvalid, "{}: {}: need --api-key", base_url, answer.status);
  if (answer.status != 200)
    fail(ErrorKind::kEnvironment, "{}: /v1/longspan/status: got {}, need 200; is it a Longspan server?",
         base_url, answer.status);
  return server_facts(answer.body, base_url);
}

}  // namespace longspan::measure
