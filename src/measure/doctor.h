// Doctor: what machine, driver, program and config this really is, judged line by line. Each judge is a
// function of facts; none of them changes anything.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan.h"
#include "io/config.h"
#include "measure/environment.h"
#include "measure/finding.h"
#include "measure/server_facts.h"

namespace longspan::measure {

// Processor, memory, swap, NUMA, control group, processes killed for memory.
Findings judge_machine(const Environment& environment);

// Open files and room on disks: `folders` are those that a server reads or writes.
Findings judge_limits(const std::filesystem::path& root, const std::vector<std::filesystem::path>& folders);

// Cards and what drives them. `run` gives the output of a command line, none where it cannot run.
using Shell = std::function<std::optional<std::string>(const std::string& command)>;
Findings judge_devices(const Environment& environment, const std::filesystem::path& root, const Shell& run);

// The vendor's measuring programs: there, allowed to run, and on the PATH ("/usr/bin:/opt/rocm/bin").
Findings judge_tools(const std::filesystem::path& root, const std::string& path_variable);

// Processes of this program that no longer are what lies on disk; whoever holds a card or the port.
Findings judge_processes(const Environment& environment, const std::filesystem::path& root,
                         std::optional<int> port, const std::optional<ServerFacts>& server);

// The server's build against the file it was started from, and against this program.
Findings judge_build(const ServerFacts& server, const Environment& environment,
                     const std::filesystem::path& root);
// Every setting of `config` against the one in effect.
Findings judge_config(const ServerFacts& server, const io::Config& config);

// Page, paths and prefix caching that the options give on this device, and those of the server. Options whose
// plan is refused (a page that was expected otherwise, ...) are a finding.
Findings judge_plan(const engine::EngineOptions* options, const std::optional<ServerFacts>& server);

}  // namespace longspan::measure
