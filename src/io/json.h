// The one door for JSON of the model directory: bounded depth, no duplicate keys, and errors that name file,
// key, value and need.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longspan::io {

using Json = nlohmann::json;

inline constexpr int kMaxJsonDepth = 128;
inline constexpr uint64_t kMaxJsonFileBytes = uint64_t{256} << 20;

// Throws kInvalid: `file` is not JSON (with the place), nests deeper than max_depth, or repeats a key.
Json parse_json(std::string_view text, std::string_view file, int max_depth = kMaxJsonDepth);

// The whole file; throws kNotFound, kEnvironment, or kInvalid when larger than kMaxJsonFileBytes.
std::string read_text_file(const std::filesystem::path& path);

// Inclusive bounds of a number.
template <class T>
struct Bounds {
  T min;
  T max;
};

// A JSON object and the place it came from. Borrows the object. A null counts as absent everywhere but in
// contains(). The find_ functions return nothing when the key is absent, and throw kInvalid on a wrong type
// or a value out of bounds: `config.json: hidden_size: got "abc", need an integer from 1 to 1048576`.
class JsonObject final {
 public:
  // Throws kInvalid when `value` is not an object. `where` is "config.json" or "config.json: text_config".
  JsonObject(const Json& value, std::string where);

  const std::string& where() const { return where_; }
  const Json& json() const { return *object_; }
  bool contains(std::string_view key) const;     // also when null
  const Json* find(std::string_view key) const;  // nullptr when absent or null

  std::optional<int64_t> find_integer(std::string_view key, Bounds<int64_t> bounds) const;
  std::optional<double> find_number(std::string_view key, Bounds<double> bounds) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string> find_string(std::string_view key) const;
  std::optional<std::vector<std::string>> find_strings(std::string_view key) const;
  std::optional<JsonObject> find_object(std::string_view key) const;

  // One token id, a list of them, or none (absent or null).
  std::vector<int32_t> find_token_ids(std::string_view key) const;

  int64_t integer(std::string_view key, Bounds<int64_t> bounds) const;  // throws when absent
  std::string string(std::string_view key) const;                       // throws when absent

  // Throws kInvalid: "WHERE: KEY: got VALUE, need NEED".
  [[noreturn]] void refuse(std::string_view key, std::string_view need) const;

 private:
  const Json* object_;
  std::string where_;
};

}  // namespace longspan::io
