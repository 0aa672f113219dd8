// A slow and obvious validator of JSON schemas, the oracle of these tests. It shares nothing with the room.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

namespace longspan::testing {

using Json = nlohmann::ordered_json;

inline size_t num_characters(const std::string& utf8) {
  size_t count = 0;
  for (const char c : utf8) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

inline bool has_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  return value.is_number_integer() ||
         (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>());
}

class JsonValidator {
 public:
  explicit JsonValidator(const Json& root) : root_(root) {}

  bool fits(const Json& value) const { return fits(value, root_); }

 private:
  bool fits(const Json& value, const Json& schema) const {
    if (schema.is_boolean()) return schema.get<bool>();
    for (const auto& [keyword, wanted] : schema.items())
      if (!obeys(value, keyword, wanted, schema)) return false;
    return true;
  }

  bool obeys(const Json& value, const std::string& keyword, const Json& wanted, const Json& schema) const {
    const auto fits_this = [&](const Json& part) { return fits(value, part); };
    if (keyword == "$ref") return fits(value, resolve(wanted));
    if (keyword == "type") {
      for (const Json& type : wanted.is_array() ? wanted : Json::array({wanted}))
        if (has_type(value, type)) return true;
      return false;
    }
    if (keyword == "enum") return std::find(wanted.begin(), wanted.end(), value) != wanted.end();
    if (keyword == "const") return value == wanted;
    if (keyword == "anyOf" || keyword == "oneOf") return std::any_of(wanted.begin(), wanted.end(), fits_this);
    if (keyword == "allOf") return std::all_of(wanted.begin(), wanted.end(), fits_this);
    if (value.is_object()) return object_obeys(value, keyword, wanted, schema);
    if (value.is_array()) return array_obeys(value, keyword, wanted, schema);
    if (value.is_number()) return number_obeys(value.get<double>(), keyword, wanted);
    if (value.is_string()) return string_obeys(value.get<std::string>(), keyword, wanted);
    return true;
  }

  bool object_obeys(const Json& value, const std::string& keyword, const Json& wanted,
                    const Json& schema) const {
    if (keyword == "required")
      return std::all_of(wanted.begin(), wanted.end(),
                         [&](const Json& name) { return value.contains(name); });
    if (keyword == "properties") {
      for (const auto& [name, part] : wanted.items())
        if (value.contains(name) && !fits(value[name], part)) return false;
    } else if (keyword == "additionalProperties") {
      for (const auto& [name, member] : value.items())
        if (!schema.value("properties", Json::object()).contains(name) && !fits(member, wanted)) return false;
    }
    return true;
  }

  bool array_obeys(const Json& value, const std::string& keyword, const Json& wanted,
                   const Json& schema) const {
    if (keyword == "minItems") return value.size() >= wanted.get<size_t>();
    if (keyword == "maxItems") return value.size() <= wanted.get<size_t>();
    if (keyword == "uniqueItems" && wanted == true) {
      for (size_t i = 0; i < value.size(); ++i)
        for (size_t j = 0; j < i; ++j)
          if (value[i] == value[j]) return false;
    }
    const size_t num_first = schema.value("prefixItems", Json::array()).size();
    for (size_t i = 0; i < value.size(); ++i) {
      if (keyword == "prefixItems" && i < num_first && !fits(value[i], wanted[i])) return false;
      if (keyword == "items" && i >= num_first && !fits(value[i], wanted)) return false;
    }
    return true;
  }

  static bool number_obeys(double value, const std::string& keyword, const Json& wanted) {
    if (keyword == "minimum") return value >= wanted.get<double>();
    if (keyword == "maximum") return value <= wanted.get<double>();
    if (keyword == "exclusiveMinimum") return value > wanted.get<double>();
    if (keyword == "exclusiveMaximum") return value < wanted.get<double>();
    if (keyword == "multipleOf") {
      const double times = value / wanted.get<double>();
      return std::abs(times - std::round(times)) <= 1e-12 * std::max(1.0, std::abs(times));
    }
    return true;
  }

  static bool string_obeys(const std::string& value, const std::string& keyword, const Json& wanted) {
    if (keyword == "minLength") return num_characters(value) >= wanted.get<size_t>();
    if (keyword == "maxLength") return num_characters(value) <= wanted.get<size_t>();
    if (keyword == "pattern") return std::regex_search(value, std::regex(wanted.get<std::string>()));
    return true;
  }

  Json resolve(const std::string& reference) const {
    return reference == "#" ? root_ : root_.at(Json::json_pointer(reference.substr(1)));
  }

  const Json root_;
};

}  // namespace longspan::testing
