// JsonField: a value of a JSON document together with its place, so that an error can name both.
// Internal to the readers of model files.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace longspan::text {

// Borrows from the document.
class JsonField final {
 public:
  // The root of a file.
  JsonField(const nlohmann::json& value, std::string_view file_name)
      : value_(&value), file_name_(file_name) {}

  // Typed access; each throws kInvalid with the path, what it got and what it needs.
  const nlohmann::json& object() const;
  const nlohmann::json& array() const;
  const std::string& string() const;
  bool boolean() const;
  int32_t id() const;  // of a token: 0 .. kMaxTokenId

  JsonField required(const char* key) const;                 // a member of an object
  std::optional<JsonField> optional(const char* key) const;  // absent and null are the same
  bool flag(const char* key, bool otherwise) const;          // an optional boolean member
  JsonField element(size_t idx) const;                       // of an array

  const nlohmann::json& value() const { return *value_; }
  [[noreturn]] void invalid(std::string_view need) const;      // kInvalid: got this value
  [[noreturn]] void unsupported(std::string_view need) const;  // kUnsupported: got this value

 private:
  JsonField child(const nlohmann::json& value, std::string path) const;
  std::string place() const;  // "tokenizer.json: model.merges[3]"

  const nlohmann::json* value_;
  std::string file_name_;
  std::string path_;  // "model.merges[3]"; empty for the root
};

bool is_token_id(const nlohmann::json& value);

// Throws kInvalid with the name and the byte offset when the text is not JSON.
nlohmann::json parse_json(std::string_view text, std::string_view file_name);

}  // namespace longspan::text
