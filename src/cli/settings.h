// From flags, LONGSPAN_* variables and config.toml to options: the one way to them for every command. Every
// setting has its effect here or is refused with the reason.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/plan.h"
#include "io/config.h"
#include "server/server.h"

namespace CLI {
class App;
}

namespace longspan::cli {

// Whom a flag is for: a command takes those of its own kind and of the kinds before it.
enum class FlagKind : uint8_t {
  kModel,     // whoever runs a model
  kRequests,  // whoever runs, or plans for, many requests at once
  kServer,
};

// --config and the flags that stand for settings. Flags are remembered while the command line is parsed;
// settings() then reads the file and the environment, and lets the flags win.
class SettingFlags final {
 public:
  void add_to(CLI::App& command, FlagKind kind);
  // Throws kInvalid naming file, variable or flag; kNotFound.
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

// "cuda", "cuda:1": the index of that card of this build (the emulator's devices are "emulator",
// "emulator:1"); nothing for "cpu". Throws kInvalid naming `from`, the flag or setting.
std::optional<int> device_index(const std::string& name, const std::string& from);

// Throws kInvalid or kUnsupported naming the setting and its source. kExplain also takes what only other
// machines run.
engine::EngineOptions engine_options(const io::Config& config, engine::Purpose purpose);
// Throws kInvalid; so does an address that others can reach without a key.
server::ServerOptions server_options(const io::Config& config);

// The settings that only expect something of the model (heads, sizes, no sliding window). Throws kInvalid:
// got and need.
void check_expectations(const io::Config& config, const io::ModelConfig& model);

// model.quantization: auto takes the weights as they are, anything else says what they must be. Kernel names
// of other engines ("awq_marlin") stand for the method. For those who run; a plan may ask what if. Throws
// kInvalid.
void check_quantisation(const io::Config& config, const io::QuantConfig& model);

}  // namespace longspan::cli
