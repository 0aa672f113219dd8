// `longspan profile`: where a running server's time goes, in a window of one's choice. start and stop talk to
// the server; report reads the folder it left.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdlib>

#include "cli/commands.h"
#include "core/error.h"
#include "measure/profile_report.h"
#include "server/http_client.h"
#include "text/utf8.h"

namespace longspan::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kProfileTimeout{3'600'000};  // a step under way, then the report

struct ServerFlags {
  std::string base_url = "http://127.0.0.1:8000";
  std::string api_key;
  std::string name;
  bool json = false;
};

struct ReportFlags {
  std::string folder;
  std::string against;
  bool json = false;
};

void add_server_flags(CLI::App& command, ServerFlags& flags) {
  command.add_option("--base-url", flags.base_url, "The server, with or without /v1")->capture_default_str();
  command.add_option("--api-key", flags.api_key, "Its key; else LONGSPAN_API_KEY");
  command.add_flag("--json", flags.json, "Print JSON");
}

Json post_profile(const ServerFlags& flags, const std::string& what, const Json& body) {
  server::HttpUrl url = server::parse_http_url(flags.base_url);
  if (url.path.ends_with("/v1")) url.path.resize(url.path.size() - 3);
  std::string key = flags.api_key;
  if (const char* from = std::getenv("LONGSPAN_API_KEY"); key.empty() && from != nullptr) key = from;
  server::HttpQuery query{.method = "POST",
                          .path = "/v1/longspan/profile/" + what,
                          .headers = {{"Content-Type", "application/json"}},
                          .body = body.dump()};
  if (!key.empty()) query.headers.emplace_back("Authorization", "Bearer " + key);
  const server::HttpAnswer answer = server::http_request(url, {.read = kProfileTimeout}, query);
  const Json json = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  if (answer.status == 200 && json.is_object()) return json;
  const bool usual = json.is_object() && json.contains("error") && json["error"].is_object();
  fail(answer.status >= 400 && answer.status < 500 ? ErrorKind::kInvalid : ErrorKind::kEnvironment,
       "profile {}: {} {}", what, answer.status,
       usual ? json["error"].value("message", "") : text::replace_invalid_utf8(answer.body.substr(0, 300)));
}

int start_profile(const ServerFlags& flags) {
  const Json answer = post_profile(flags, "start", {{"name", flags.name}});
  if (flags.json)
    std::printf("%s\n", answer.dump(2).c_str());
  else
    std::printf("profile %s runs; the server keeps it in %s\n", flags.name.c_str(),
                answer.value("directory", "").c_str());
  return 0;
}

int stop_profile(const ServerFlags& flags) {
  const Json answer = post_profile(flags, "stop", Json::object());
  if (flags.json) {
    std::printf("%s\n", answer.dump(2).c_str());
    return 0;
  }
  const Json& window = answer.at("window");
  std::printf("profile %s: %.2f s, %lld steps, %lld prompt tokens, %lld decoded tokens\n",
              answer.value("name", "").c_str(), window.at("seconds").get<double>(),
              static_cast<long long>(window.at("steps").get<int64_t>()),
              static_cast<long long>(window.at("prompt_tokens").get<int64_t>()),
              static_cast<long long>(window.at("decode_tokens").get<int64_t>()));
  for (const Json& note : answer.at("notes")) std::printf("note: %s\n", note.get<std::string>().c_str());
  std::printf("report: longspan profile report %s\n", answer.value("directory", "").c_str());
  return 0;
}

int report_profile(const ReportFlags& flags) {
  const Json report = measure::load_profile_report(flags.folder);
  if (flags.against.empty()) {
    std::printf("%s", flags.json ? (report.dump(2) + "\n").c_str() : measure::profile_table(report).c_str());
    return 0;
  }
  const Json before = measure::load_profile_report(flags.against);
  if (flags.json)
    std::printf("%s\n",
                Json{{"kind", "profile comparison"}, {"before", before}, {"after", report}}.dump(2).c_str());
  else
    std::printf("%s", measure::profile_comparison(before, report).c_str());
  return 0;
}

}  // namespace

void add_profile(CLI::App& app, int& exit_code) {
  CLI::App* profile =
      app.add_subcommand("profile", "Where a running server's time goes, between start and stop");
  profile->require_subcommand(1);

  auto server = std::make_shared<ServerFlags>();
  CLI::App* start =
      profile->add_subcommand("start", "Begin the window: at once, or after the step under way");
  add_server_flags(*start, *server);
  start->add_option("--name", server->name, "Of the profile and its folder; none is overwritten")->required();
  start->callback([server, &exit_code] { exit_code = start_profile(*server); });
  CLI::App* stop = profile->add_subcommand("stop", "End the window; returns when all of it is on disk");
  add_server_flags(*stop, *server);
  stop->callback([server, &exit_code] { exit_code = stop_profile(*server); });

  auto flags = std::make_shared<ReportFlags>();
  CLI::App* report =
      profile->add_subcommand("report", "The table by class, made from the folder of a profile");
  report->add_option("folder", flags->folder, "Of the profile")->required();
  report->add_option("--against", flags->against, "Folder of an earlier profile: how the shares moved");
  report->add_flag("--json", flags->json, "Print JSON");
  report->callback([flags, &exit_code] { exit_code = report_profile(*flags); });
}

}  // namespace longspan::cli
