// What doctor says of a running server: its build, its settings, its neighbours.
#include <algorithm>

#include "measure/doctor.h"
#include "measure/processes.h"
#include "measure/system_file.h"

namespace longspan::measure {

namespace fs = std::filesystem;

namespace {

constexpr const char* kOtherBuild = "started from another build than the one on disk";
constexpr const char* kRestart = "restart it: until then no change of the program is in effect";

std::string short_hash(const std::string& hash) {
  constexpr size_t kDigits = 19;  // "fnv1a:" and 13, or 19 of a build id
  return hash.empty() ? "unknown" : hash.substr(0, kDigits);
}

// The server's process, where it runs on this machine.
std::optional<Program> local_program(const ServerFacts& server, const fs::path& root) {
  if (server.pid <= 0) return std::nullopt;
  Program program = read_program(root, std::to_string(server.pid));
  if (program.path != server.path) return std::nullopt;
  return program;
}

Finding judge_libraries(const Program& program) {
  std::string names;
  for (const Library& library : program.libraries) {
    const std::string name = fs::path(library.path).filename().string();
    if (library.replaced)
      return {"libraries", Verdict::kFail,
              fmt::format("pid {}: {} was replaced on disk since it was loaded", program.pid, library.path),
              kRestart};
    // The C library and its like are on every machine.
    const bool common = name.starts_with("libc.") || name.starts_with("libm.") || name.starts_with("ld-") ||
                        name.starts_with("libgcc") || name.starts_with("libdl.") ||
                        name.starts_with("libpthread") || name.starts_with("librt.");
    if (!common)
      names += fmt::format("{}{}{}", names.empty() ? "" : ", ", library.path,
                           library.version.empty() ? "" : " (" + library.version + ")");
  }
  return {"libraries", Verdict::kOk,
          fmt::format("pid {} has loaded {}", program.pid, names.empty() ? "only the C library" : names), ""};
}

}  // namespace

Findings judge_build(const ServerFacts& server, const Environment& environment, const fs::path& root) {
  const std::string who =
      fmt::format("{}: pid {}, {} {}", server.base_url, server.pid, server.path, server.version);
  if (server.hash.empty())
    return {{"server build", Verdict::kWarn,
             fmt::format("{} does not say which build it is", server.base_url),
             "its version is too old to tell: compare /version by hand"}};
  Findings findings;
  const std::optional<Program> program = local_program(server, root);
  if (!program) {
    findings.push_back(
        {"server build", Verdict::kOk,
         fmt::format("{}, build {}; it runs on another machine or in another container, so its "
                     "file is not compared",
                     who, short_hash(server.hash)),
         ""});
  } else {
    const std::string on_disk = build_hash(below(root, server.path));
    if (on_disk != server.hash)  // a file written anew by the same build is the same
      findings.push_back(
          {"server build", Verdict::kFail,
           fmt::format("{}: {}: it runs {}, the file is {}", who, kOtherBuild, short_hash(server.hash),
                       on_disk.empty() ? "gone" : short_hash(on_disk)),
           kRestart});
    else
      findings.push_back({"server build", Verdict::kOk,
                          fmt::format("{}, build {}, the file on disk", who, short_hash(server.hash)), ""});
    findings.push_back(judge_libraries(*program));
  }
  if (server.hash != environment.program.hash)
    findings.push_back({"server build", Verdict::kWarn,
                        fmt::format("the server is build {}, this program is {}", short_hash(server.hash),
                                    short_hash(environment.program.hash)),
                        fmt::format("what this program says of paths and plans may not hold for the server; "
                                    "use {}",
                                    server.path)});
  return findings;
}

Findings judge_config(const ServerFacts& server, const io::Config& config) {
  if (server.settings.empty())
    return {{"config", Verdict::kWarn, fmt::format("{} does not say its settings", server.base_url),
             "its version is too old to tell"}};
  Findings findings;
  int num_equal = 0;
  std::string changed;  // of the server's, what is no default
  for (const io::Config::Setting& wanted : config.settings()) {
    const ServerFacts::Setting* got = server.setting(wanted.name);
    if (got == nullptr) continue;
    const bool secret = wanted.name.ends_with("api_key");
    if (secret || got->value == wanted.value) {
      ++num_equal;
      if (got->source != "default")
        changed +=
            fmt::format("{}{} = {} ({})", changed.empty() ? "" : ", ", got->key, got->value, got->source);
      continue;
    }
    // A flag or a variable of the server's start wins over the file by intent; else the file it read was
    // another one, or is not what it was.
    const bool meant = got->source.starts_with("--") || got->source.starts_with("LONGSPAN_");
    findings.push_back(
        {"config", meant ? Verdict::kWarn : Verdict::kFail,
         fmt::format("{}: the server runs {} (from {}), here it is {} (from {})", wanted.name, got->value,
                     got->source, wanted.value, wanted.source),
         meant ? fmt::format("the server's {} wins over its file; drop it, or change the file", got->source)
               : "the server was started without this file, or before it was changed: restart it with "
                 "--config"});
  }
  findings.insert(findings.begin(), {"config", Verdict::kOk,
                                     fmt::format("{} settings in effect are those given here{}{}", num_equal,
                                                 changed.empty() ? "" : "; not defaults: ", changed),
                                     ""});
  return findings;
}

namespace {

Findings judge_replaced_programs(const Environment& environment, const fs::path& root,
                                 const std::optional<ServerFacts>& server) {
  Findings findings;
  const std::string name = fs::path(environment.program.path).filename().string();
  for (const int64_t pid : processes_named(root, name, environment.program.pid)) {
    if (server && pid == server->pid) continue;  // judge_build() has it
    const Program program = read_program(root, std::to_string(pid));
    const std::string command = process_of(root, pid).command;
    const std::string on_disk = build_hash(below(root, program.path));
    const bool changed = !program.hash.empty() && on_disk != program.hash;  // empty: it may not be read
    if (program.replaced || changed)
      findings.push_back(
          {"processes", Verdict::kFail, fmt::format("pid {} ({}): {}", pid, command, kOtherBuild), kRestart});
    else if (command.find(" serve") != std::string::npos)
      findings.push_back(
          {"processes", Verdict::kWarn, fmt::format("pid {} ({}) serves, too", pid, command),
           "it shares processors and memory with what you measure: end it, if it is left over"});
    else
      findings.push_back({"processes", Verdict::kOk, fmt::format("pid {} ({})", pid, command), ""});
  }
  return findings;
}

Findings judge_holders(const fs::path& root, const std::optional<ServerFacts>& server, int64_t self) {
  Findings findings;
  for (const DeviceHolder& holder : device_holders(root)) {
    if (holder.process.pid == self) continue;
    const bool is_server = server && holder.process.pid == server->pid;
    findings.push_back(
        {"device in use", is_server ? Verdict::kOk : Verdict::kWarn,
         fmt::format("{} by pid {} ({})", holder.device, holder.process.pid, holder.process.command),
         is_server ? ""
                   : "memory and clocks are shared with it: end it before you measure, if it is "
                     "left over"});
  }
  return findings;
}

Findings judge_port(const fs::path& root, int port, const std::optional<ServerFacts>& server) {
  const std::optional<Listener> listener = listener_on(root, port);
  if (!listener)
    return {{"port", Verdict::kOk, fmt::format("nobody on this machine listens on {}", port), ""}};
  const Process& process = listener->process;
  const std::string who = process.pid == 0 ? "a process of another user or container"
                                           : fmt::format("pid {} ({})", process.pid, process.command);
  const std::string text = fmt::format("{} listens on {}", who, port);
  if (server && (process.pid == 0 || process.pid == server->pid)) return {{"port", Verdict::kOk, text, ""}};
  if (server && server->pid > 0)
    return {{"port", Verdict::kWarn, fmt::format("{}; the server says that it is pid {}", text, server->pid),
             "a proxy or a container stands between: what is measured includes it"}};
  return {{"port", Verdict::kWarn, text,
           fmt::format("a new server cannot have this port: end the old one, or choose another --port. Is it "
                       "the server you mean? Say --base-url http://127.0.0.1:{}",
                       port)}};
}

}  // namespace

Findings judge_processes(const Environment& environment, const fs::path& root, std::optional<int> port,
                         const std::optional<ServerFacts>& server) {
  Findings findings = judge_replaced_programs(environment, root, server);
  std::ranges::move(judge_holders(root, server, environment.program.pid), std::back_inserter(findings));
  if (port) std::ranges::move(judge_port(root, *port, server), std::back_inserter(findings));
  return findings;
}

}  // namespace longspan::measure
