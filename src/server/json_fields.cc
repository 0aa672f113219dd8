#include "server/json_fields.h"

#include <cmath>

namespace longspan::server {
namespace {

// Counts brackets and members before the parser builds anything.
void check_shape(std::string_view text) {
  struct Level {
    bool is_object;
    size_t num_commas = 0;
  };
  std::vector<Level> levels;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      levels.push_back({.is_object = c == '{'});
      if (levels.size() > kMaxJsonDepth)
        throw WireError{.message = fmt::format("the JSON body is nested more than {} deep", kMaxJsonDepth)};
    } else if ((c == '}' || c == ']') && !levels.empty()) {
      levels.pop_back();
    } else if (c == ',' && !levels.empty() && levels.back().is_object) {
      if (++levels.back().num_commas >= kMaxJsonMembers)
        throw WireError{
            .message = fmt::format("the JSON body has an object of more than {} members", kMaxJsonMembers)};
    }
  }
}

}  // namespace

Json parse_json_object(std::string_view body) {
  if (body.empty()) throw WireError{.message = "the body is empty: need a JSON object"};
  check_shape(body);
  Json json;
  try {
    json = Json::parse(body);
  } catch (const Json::exception& error) {
    // The library's text begins with its own error number in brackets.
    std::string text = error.what();
    if (const size_t end = text.find("] "); end != std::string::npos) text.erase(0, end + 2);
    throw WireError{.message = "the body is not JSON: " + text};
  }
  if (!json.is_object())
    throw WireError{.message = fmt::format("the body: got {}, need a JSON object", describe(json))};
  return json;
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::string describe(const Json& json) {
  constexpr size_t kMaxQuoted = 60;
  if (json.is_array() || json.is_object()) return fmt::format("an {}", json.type_name());
  std::string text = dump(json);
  if (text.size() > kMaxQuoted) text = text.substr(0, kMaxQuoted) + "...";
  return text;
}

int64_t to_integer(const Json& json, const std::string& field, int64_t min, int64_t max) {
  const auto refuse = [&] {
    fail_field(field, "got {}, need a whole number from {} to {}", describe(json), min, max);
  };
  int64_t value = 0;
  if (json.is_number_unsigned()) {
    const auto big = json.get<uint64_t>();
    if (big > static_cast<uint64_t>(INT64_MAX)) refuse();
    value = static_cast<int64_t>(big);
  } else if (json.is_number_integer()) {
    value = json.get<int64_t>();
  } else if (json.is_number_float()) {
    const auto real = json.get<double>();
    if (std::trunc(real) != real || std::abs(real) > 9e18) refuse();
    value = static_cast<int64_t>(real);
  } else {
    refuse();
  }
  if (value < min || value > max) refuse();
  return value;
}

const Json* JsonFields::find(const char* name) const {
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

std::optional<bool> JsonFields::boolean(const char* field) const {
  const Json* json = find(field);
  if (!json) return std::nullopt;
  if (!json->is_boolean()) fail_field(name(field), "got {}, need true or false", describe(*json));
  return json->get<bool>();
}

std::optional<std::string> JsonFields::text(const char* field) const {
  const Json* json = find(field);
  if (!json) return std::nullopt;
  if (!json->is_string()) fail_field(name(field), "got {}, need a string", describe(*json));
  return json->get<std::string>();
}

std::optional<int64_t> JsonFields::integer(const char* field, int64_t min, int64_t max) const {
  const Json* json = find(field);
  if (!json) return std::nullopt;
  return to_integer(*json, name(field), min, max);
}

std::optional<double> JsonFields::number(const char* field, double min, double max) const {
  const Json* json = find(field);
  if (!json) return std::nullopt;
  const double value = json->is_number() ? json->get<double>() : std::nan("");
  if (!(value >= min && value <= max))
    fail_field(name(field), "got {}, need a number from {} to {}", describe(*json), min, max);
  return value;
}

const Json* JsonFields::array(const char* field) const {
  const Json* json = find(field);
  if (json && !json->is_array()) fail_field(name(field), "got {}, need an array", describe(*json));
  return json;
}

const Json* JsonFields::object(const char* field) const {
  const Json* json = find(field);
  if (json && !json->is_object()) fail_field(name(field), "got {}, need an object", describe(*json));
  return json;
}

void JsonFields::refuse(const char* field, const char* why) const {
  if (find(field)) fail_field(name(field), "not supported by this server: {}", why);
}

}  // namespace longspan::server
