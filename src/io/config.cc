#include "io/config.h"

#include <toml++/toml.h>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <numeric>
#include <sstream>

#include "core/error.h"
#include "io/json.h"

namespace longspan::io {
namespace {

const ConfigKey* find_key(std::string_view name) {
  for (const ConfigKey& key : config_keys())
    if (key.name == name) return &key;
  return nullptr;
}

// Edit distance (Levenshtein).
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

// The known name that is most like this one: the same key in another section counts as close.
std::string_view nearest(std::string_view name) {
  const auto bare = [](std::string_view full) { return full.substr(full.find('.') + 1); };
  const auto cost = [&](const ConfigKey& key) {
    return std::min(distance(name, key.name), distance(bare(name), bare(key.name)) + 1);
  };
  const auto keys = config_keys();
  return std::min_element(keys.begin(), keys.end(),
                          [&](const ConfigKey& a, const ConfigKey& b) { return cost(a) < cost(b); })
      ->name;
}

[[noreturn]] void unknown(std::string_view name, std::string_view source) {
  fail(ErrorKind::kInvalid, "{}: unknown key {}; did you mean {}?", source, name, nearest(name));
}

// LONGSPAN_CACHE_...: meant for a setting. Others (LONGSPAN_API_KEY, LONGSPAN_CPU_ISA) are somebody else's.
bool names_a_section(std::string_view variable) {
  std::string lower(variable.substr(std::min(variable.size(), std::string_view("LONGSPAN_").size())));
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto keys = config_keys();
  return std::any_of(keys.begin(), keys.end(), [&](const ConfigKey& key) {
    return lower.starts_with(fmt::format("{}_", key.name.substr(0, key.name.find('.'))));
  });
}

std::string_view kind_name(ConfigKind kind) {
  switch (kind) {
    case ConfigKind::kString:
      return "a string";
    case ConfigKind::kInteger:
      return "an integer";
    case ConfigKind::kNumber:
      return "a number";
    case ConfigKind::kBool:
      return "true or false";
  }
  return "";
}

[[noreturn]] void wrong(const ConfigKey& key, std::string_view got, std::string_view source) {
  fail(ErrorKind::kInvalid, "{}: {}: got {}, need {}{}{}", source, key.name, got, kind_name(key.kind),
       key.unit.empty() ? "" : " of ", key.unit);
}

template <class T>
T parse_number(const ConfigKey& key, std::string_view text, std::string_view source) {
  T value{};
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || rest != text.data() + text.size())
    wrong(key, fmt::format("'{}'", text), source);
  return value;
}

ConfigValue parse(const ConfigKey& key, std::string_view text, std::string_view source) {
  switch (key.kind) {
    case ConfigKind::kString:
      return std::string(text);
    case ConfigKind::kInteger:
      return parse_number<int64_t>(key, text, source);
    case ConfigKind::kNumber:
      return parse_number<double>(key, text, source);
    case ConfigKind::kBool:
      break;
  }
  for (std::string_view yes : {"true", "1", "on", "yes"})
    if (text == yes) return true;
  for (std::string_view no : {"false", "0", "off", "no"})
    if (text == no) return false;
  wrong(key, fmt::format("'{}'", text), source);
}

std::string to_toml(const ConfigValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    std::string quoted = "\"";
    for (char c : *text) {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += c;
    }
    return quoted + '"';
  }
  if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{}", *number);
  return std::get<bool>(value) ? "true" : "false";
}

ConfigValue from_toml(const ConfigKey& key, const toml::node& node, std::string_view source) {
  if (key.kind == ConfigKind::kString && node.is_string()) return node.as_string()->get();
  if (key.kind == ConfigKind::kInteger && node.is_integer()) return node.as_integer()->get();
  if (key.kind == ConfigKind::kNumber && node.is_number()) return *node.value<double>();
  if (key.kind == ConfigKind::kBool && node.is_boolean()) return node.as_boolean()->get();
  std::ostringstream text;
  node.visit([&](const auto& shown) { text << shown; });
  wrong(key, text.str(), source);
}

}  // namespace

Config::Config() {
  for (const ConfigKey& key : config_keys()) put(key, parse(key, key.default_value, "default"), "default");
}

void Config::load_file(const std::filesystem::path& path) {
  load_toml(read_text_file(path), path.filename().string());
}

void Config::load_toml(std::string_view text, std::string_view file) {
  toml::table table;
  try {
    table = toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    fail(ErrorKind::kInvalid, "{}: line {}: {}", file, error.source().begin.line,
         std::string(error.description()));
  }
  for (const auto& [section, node] : table) {
    const toml::table* keys = node.as_table();
    if (keys == nullptr) unknown(section.str(), file);
    for (const auto& [name, value] : *keys) {
      const std::string full = fmt::format("{}.{}", section.str(), name.str());
      const ConfigKey* key = find_key(full);
      if (key == nullptr) unknown(full, file);
      put(*key, from_toml(*key, value, file), file);
    }
  }
}

void Config::load_environment(const char* const* environment) {
  constexpr std::string_view kPrefix = "LONGSPAN_";
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    if (!entry.starts_with(kPrefix)) continue;
    const std::string_view variable = entry.substr(0, entry.find('='));
    const auto matches = [&](const ConfigKey& key) {
      std::string name(kPrefix);
      for (char c : key.name)
        name += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      return name == variable;
    };
    const auto keys = config_keys();
    const auto key = std::find_if(keys.begin(), keys.end(), matches);
    if (key != keys.end())
      put(*key, parse(*key, entry.substr(variable.size() + 1), variable), variable);
    else if (names_a_section(variable))
      unknown(variable, "environment");
  }
}

void Config::set(std::string_view name, std::string_view value, std::string_view source) {
  const ConfigKey* key = find_key(name);
  if (key == nullptr) unknown(name, source);
  put(*key, parse(*key, value, source), source);
}

void Config::put(const ConfigKey& key, ConfigValue value, std::string_view source) {
  entries_[std::string(key.name)] = {std::move(value), std::string(source)};
}

const Config::Entry& Config::at(std::string_view name) const {
  const auto found = entries_.find(name);
  CHECK_MSG(found != entries_.end(), "no setting {}", name);
  return found->second;
}

const std::string& Config::string(std::string_view name) const {
  return std::get<std::string>(at(name).value);
}
int64_t Config::integer(std::string_view name) const { return std::get<int64_t>(at(name).value); }
double Config::number(std::string_view name) const { return std::get<double>(at(name).value); }
bool Config::boolean(std::string_view name) const { return std::get<bool>(at(name).value); }
std::string_view Config::source(std::string_view name) const { return at(name).source; }

std::vector<std::string> Config::lines(bool only_changed) const {
  std::vector<std::string> lines;
  for (const Setting& setting : settings())
    if (!only_changed || setting.source != "default")
      lines.push_back(fmt::format("{} = {}  # {}", setting.name, setting.value, setting.source));
  return lines;
}

std::vector<Config::Setting> Config::settings() const {
  std::vector<Setting> settings;
  for (const ConfigKey& key : config_keys()) {
    const Entry& entry = at(key.name);
    const bool secret = key.name.ends_with("api_key") && entry.value != ConfigValue(std::string());
    settings.push_back({std::string(key.name), secret ? "\"***\"" : to_toml(entry.value), entry.source});
  }
  return settings;
}

}  // namespace longspan::io
