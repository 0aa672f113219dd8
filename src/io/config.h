// config.toml: every setting of the server with its default, unit and source. Precedence: flag > environment
// > file > default.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace longspan::io {

enum class ConfigKind : uint8_t { kString, kInteger, kNumber, kBool };

using ConfigValue = std::variant<std::string, int64_t, double, bool>;

// One setting. Its environment variable is LONGSPAN_SECTION_KEY.
struct ConfigKey {
  std::string_view name;  // "cache.alignment_tokens"
  ConfigKind kind;
  std::string_view default_value;  // as written in TOML, strings without quotes
  std::string_view unit;           // "tokens"; empty where it has none
  std::string_view doc;            // one line
};

// All of them, in the order of documentation.
std::span<const ConfigKey> config_keys();

class Config final {
 public:
  Config();  // defaults

  // Each throws kInvalid naming the source, the key (an unknown one with the nearest known), got and need.
  void load_file(const std::filesystem::path& path);
  void load_toml(std::string_view text, std::string_view file);
  void load_environment(const char* const* environment);  // LONGSPAN_SECTION_KEY; an unknown key of a known
                                                          // section is an error too
  void set(std::string_view name, std::string_view value, std::string_view source);

  // The key must exist and be of that kind.
  const std::string& string(std::string_view name) const;
  int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;
  bool boolean(std::string_view name) const;

  std::string_view source(
      std::string_view name) const;  // "default", "config.toml", "LONGSPAN_...", "--block-size"
  bool is_default(std::string_view name) const { return source(name) == "default"; }
  // All of them in the order of documentation, values as in TOML; secrets are masked.
  struct Setting {
    std::string name;
    std::string value;
    std::string source;
  };
  std::vector<Setting> settings() const;
  // One "name = value  # source" line a key of these.
  std::vector<std::string> lines(bool only_changed) const;

 private:
  struct Entry {
    ConfigValue value;
    std::string source;
  };
  const Entry& at(std::string_view name) const;
  void put(const ConfigKey& key, ConfigValue value, std::string_view source);

  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace longspan::io
