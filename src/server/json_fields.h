// JsonFields: checked access to the fields of a request. null is absent; a wrong type or value throws a
// WireError that names the field, with what was got and what is needed.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/wire_error.h"

namespace longspan::server {

using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 128;
inline constexpr size_t kMaxJsonMembers = 4096;  // of one object: a look-up walks them

// A request body as a JSON object. Throws WireError 400 for what is not JSON, not UTF-8, not an object,
// nested too deeply or has an object with too many members.
Json parse_json_object(std::string_view body);

// Valid UTF-8 always; no white space between tokens.
std::string dump(const Json& json);

class JsonFields {
 public:
  // `path` goes in front of names in errors: "messages[3].".
  explicit JsonFields(const Json& object, std::string path = "") : object_(object), path_(std::move(path)) {}

  const Json* find(const char* name) const;  // null when absent or null
  std::string name(const char* field) const { return path_ + field; }

  std::optional<bool> boolean(const char* field) const;
  std::optional<std::string> text(const char* field) const;
  // Whole numbers; 64.0 counts as one.
  std::optional<int64_t> integer(const char* field, int64_t min, int64_t max) const;
  std::optional<double> number(const char* field, double min, double max) const;
  const Json* array(const char* field) const;   // null when absent
  const Json* object(const char* field) const;  // null when absent
  // Refuses a field that has a meaning this server does not give it.
  void refuse(const char* field, const char* why) const;

 private:
  const Json& object_;
  std::string path_;
};

// What `json` is, for errors: short, and never the whole of a long text.
std::string describe(const Json& json);
// A number in the words of JsonFields::integer; `field` names it in errors.
int64_t to_integer(const Json& json, const std::string& field, int64_t min, int64_t max);

}  // namespace longspan::server
