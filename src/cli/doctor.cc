// `longspan doctor`: what machine, driver, program and config this really is.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>

#include "cli/commands.h"
#include "cli/settings.h"
#include "measure/doctor.h"

namespace longspan::cli {
namespace {

namespace fs = std::filesystem;

struct DoctorFlags {
  SettingFlags settings;
  std::string base_url;
  bool json = false;
};

// What a program prints on standard output; none where there is no such program or it fails.
std::optional<std::string> output_of(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>/dev/null </dev/null").c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string text;
  char piece[4096];
  while (const size_t n = std::fread(piece, 1, sizeof(piece), pipe)) text.append(piece, n);
  return ::pclose(pipe) == 0 ? std::optional(text) : std::nullopt;
}

std::vector<fs::path> folders_of(const io::Config& config) {
  std::vector<fs::path> folders;
  const fs::path model = config.string("model.model_path");
  if (!model.empty()) folders.push_back(fs::is_directory(model) ? model : model.parent_path());
  folders.push_back(fs::current_path());
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && fs::exists(cache))
    folders.emplace_back(cache);
  else if (const char* home = std::getenv("HOME"); home != nullptr && fs::exists(home))
    folders.emplace_back(home);
  std::erase_if(folders, [](const fs::path& folder) { return folder.empty(); });
  return folders;
}

// Whether a file was given: then every setting is meant, not only those of flags.
bool has_file(const io::Config& config) {
  const auto settings = config.settings();
  return std::ranges::any_of(settings, [](const io::Config::Setting& one) {
    return one.source != "default" && !one.source.starts_with("--") && !one.source.starts_with("LONGSPAN_");
  });
}

struct Examination {
  measure::Environment environment;
  std::optional<measure::ServerFacts> server;
  measure::Findings findings;

  void add(measure::Findings more) { std::ranges::move(more, std::back_inserter(findings)); }
};

void examine_server(const DoctorFlags& flags, const io::Config& config, Examination& found) {
  try {
    found.server = measure::fetch_server_facts(flags.base_url, config.string("server.api_key"));
  } catch (const Error& error) {
    found.add({{"server", measure::Verdict::kFail, error.what(), "is it started, and is this its address?"}});
    return;
  }
  found.add(measure::judge_build(*found.server, found.environment, "/"));
  if (has_file(config)) found.add(measure::judge_config(*found.server, config));
}

// The port of the server: of its address on this machine, else the one it would take.
std::optional<int> port_of(const DoctorFlags& flags, const io::Config& config) {
  if (flags.base_url.empty()) return static_cast<int>(config.integer("server.port"));
  const size_t colon = flags.base_url.rfind(':');
  const bool local = flags.base_url.find("127.0.0.1") != std::string::npos ||
                     flags.base_url.find("localhost") != std::string::npos;
  if (!local || colon == std::string::npos) return std::nullopt;
  return std::atoi(flags.base_url.c_str() + colon + 1);
}

void examine_plan(const io::Config& config, Examination& found) {
  if (config.string("model.model_path").empty()) return found.add(measure::judge_plan(nullptr, found.server));
  try {
    const engine::EngineOptions options = engine_options(config, engine::Purpose::kExplain);
    found.add(measure::judge_plan(&options, found.server));
  } catch (const Error& error) {
    found.add({{"settings", measure::Verdict::kFail, error.what(), "a server refuses to start with it"}});
  }
}

int doctor(const DoctorFlags& flags) {
  const io::Config config = flags.settings.settings();
  Examination found{.environment = measure::read_environment(measure::AskDevices::kYes)};
  const measure::Environment& environment = found.environment;
  found.add({{"program", measure::Verdict::kOk,
              fmt::format("longspan {} ({} build), {}, build {}", environment.version,
                          environment.device_vendor == "emulator" ? "cpu" : environment.device_vendor,
                          environment.program.path, environment.program.hash.substr(0, 19)),
              ""}});
  found.add(measure::judge_machine(environment));
  found.add(measure::judge_devices(environment, "/", output_of));
  if (!flags.base_url.empty()) examine_server(flags, config, found);
  found.add(measure::judge_processes(environment, "/", port_of(flags, config), found.server));
  examine_plan(config, found);
  const char* path = std::getenv("PATH");
  found.add(measure::judge_tools("/", path == nullptr ? "" : path));
  found.add(measure::judge_limits("/", folders_of(config)));
  const bool failed = measure::any_failed(found.findings);
  if (flags.json)
    std::printf("%s\n", nlohmann::ordered_json{{"healthy", !failed},
                                               {"findings", measure::to_json(found.findings)},
                                               {"environment", measure::to_json(environment)}}
                            .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                            .c_str());
  else
    std::fputs(measure::to_text(found.findings).c_str(), stdout);
  return failed ? 1 : 0;
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* command =
      app.add_subcommand("doctor", "What machine, driver, program and config this really is; 1 on a fail");
  flags->settings.add_to(*command, FlagKind::kServer);
  command->add_option("--base-url", flags->base_url, "A running server to examine: http://127.0.0.1:8000");
  command->add_flag("--json", flags->json, "Print {healthy, findings, environment}");
  command->callback([flags, &exit_code] { exit_code = doctor(*flags); });
}

}  // namespace longspan::cli
