// From the settings of config.toml to the engine's options. Every setting has its effect here or is refused
// with the reason.
#pragma once

#include <string>
#include <vector>

#include "engine/plan.h"
#include "io/config.h"

namespace CLI {
class App;
}

namespace longspan::cli {

// --config and the flags that stand for settings. Flags are remembered while the command line is parsed;
// settings() then reads the file and the environment, and lets the flags win.
class SettingFlags final {
 public:
  // Adds --config and every flag of the table in settings.cc whose setting starts with one of the sections.
  void add_to(CLI::App& command, const std::vector<std::string>& sections);
  io::Config settings() const;

 private:
  struct Given {
    std::string key;
    std::string value;
    std::string flag;
  };
  std::string config_file_;
  std::vector<Given> given_;
};

// Throws kInvalid or kUnsupported naming the setting and its source. kExplain also takes what only other
// machines run.
engine::EngineOptions engine_options(const io::Config& config, engine::Purpose purpose);

// The settings that only expect something of the model (heads, sizes, no sliding window). Throws kInvalid:
// got and need.
void check_expectations(const io::Config& config, const io::ModelConfig& model);

}  // namespace longspan::cli
