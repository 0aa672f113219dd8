#include "text/grammar/schema_flattener.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "core/error.h"

namespace longspan::text {
namespace {

using Json = SchemaJson;

constexpr int kMaxChain = 32;                   // of references and allOf in each other
constexpr size_t kMaxCopied = size_t{1} << 20;  // JSON values copied while joining

const std::set<std::string> kAssertions = {"$ref",
                                           "allOf",
                                           "anyOf",
                                           "oneOf",
                                           "type",
                                           "enum",
                                           "const",
                                           "properties",
                                           "required",
                                           "items",
                                           "pattern",
                                           "format",
                                           "minimum",
                                           "maximum",
                                           "minLength",
                                           "maxLength",
                                           "minItems",
                                           "maxItems",
                                           "nullable",
                                           "prefixItems",
                                           "exclusiveMinimum",
                                           "exclusiveMaximum",
                                           "multipleOf",
                                           "uniqueItems",
                                           "additionalProperties"};

const std::set<std::string> kRefused = {"not",
                                        "if",
                                        "then",
                                        "else",
                                        "patternProperties",
                                        "propertyNames",
                                        "contains",
                                        "minContains",
                                        "maxContains",
                                        "additionalItems",
                                        "dependencies",
                                        "$dynamicRef",
                                        "$recursiveRef",
                                        "minProperties",
                                        "maxProperties",
                                        "dependentRequired",
                                        "dependentSchemas",
                                        "unevaluatedProperties",
                                        "unevaluatedItems"};

// Other formats mean nothing, as other keywords do: OpenAPI's int32, password ...
const std::set<std::string> kFormats = {
    "date-time", "date",          "time", "duration",     "email",        "idn-email",
    "hostname",  "idn-hostname",  "ipv4", "ipv6",         "uri",          "uri-reference",
    "iri",       "iri-reference", "uuid", "uri-template", "json-pointer", "relative-json-pointer",
    "regex"};

// Values with which a keyword asks for nothing.
bool asks_for_nothing(const std::string& name, const Json& value) {
  if (name == "format") return value.is_string() && !kFormats.contains(value.get<std::string>());
  if (name == "uniqueItems") return value == false;
  if (name == "minProperties" || name == "minContains") return value == 0;
  return (name == "unevaluatedProperties" || name == "unevaluatedItems") && value == true;
}

size_t num_values(const Json& json) {
  if (!json.is_structured()) return 1;
  size_t count = 1;
  for (const Json& element : json) count += num_values(element);
  return count;
}

bool contains(const Json& array, const Json& value) {
  return std::find(array.begin(), array.end(), value) != array.end();
}

Json as_list(const Json& one_or_more) {
  return one_or_more.is_array() ? one_or_more : Json::array({one_or_more});
}

Json common_types(const Json& some, const Json& others) {
  const Json x = as_list(some);
  const Json y = as_list(others);
  Json both = Json::array();
  for (const Json& type : x)
    if (contains(y, type) || (type == "integer" && contains(y, "number"))) both.push_back(type);
  if (contains(x, "number") && contains(y, "integer") && !contains(both, "integer"))
    both.push_back("integer");
  return both;
}

Json common_values(const Json& some, const Json& others) {
  Json both = Json::array();
  for (const Json& value : some)
    if (contains(others, value)) both.push_back(value);
  return both;
}

std::string unescaped(std::string part) {  // RFC 6901, in a URI
  for (size_t at = part.find('%'); at != part.npos; at = part.find('%', at + 1)) {
    uint8_t byte = 0;
    const char* const digits = part.data() + at + 1;
    const size_t size = std::min<size_t>(2, part.size() - at - 1);
    if (size == 2 && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2)
      part.replace(at, 3, 1, static_cast<char>(byte));
  }
  for (const auto& [from, to] : {std::pair("~1", "/"), std::pair("~0", "~")})
    for (size_t at = part.find(from); at != part.npos; at = part.find(from, at + 1)) part.replace(at, 2, to);
  return part;
}

}  // namespace

KeywordUse keyword_use(const std::string& name) {
  if (kAssertions.contains(name)) return KeywordUse::kAssertion;
  return kRefused.contains(name) ? KeywordUse::kRefused : KeywordUse::kAnnotation;
}

std::string schema_place(std::string_view parent, std::string_view key) {
  constexpr size_t kMaxKey = 80;
  return fmt::format("{}/{}", parent, key.substr(0, kMaxKey));
}

std::optional<std::string> SchemaFlattener::plain_reference(const Json& schema) {
  if (!schema.is_object() || !schema.contains("$ref") || !schema["$ref"].is_string()) return std::nullopt;
  for (const auto& [name, value] : schema.items())
    if (name != "$ref" && keyword_use(name) != KeywordUse::kAnnotation) return std::nullopt;
  return schema["$ref"].get<std::string>();
}

const Json& SchemaFlattener::find(const std::string& reference, std::string_view place) const {
  if (reference.empty() || reference[0] != '#' || (reference.size() > 1 && reference[1] != '/'))
    fail(ErrorKind::kUnsupported, "$ref at {}: got '{}', need a path in this schema (#/...)", place,
         reference.substr(0, 80));
  const Json* at = &root_;
  for (size_t begin = 1; begin < reference.size();) {
    const size_t end = std::min(reference.find('/', begin + 1), reference.size());
    const std::string key = unescaped(reference.substr(begin + 1, end - begin - 1));
    begin = end;
    const Json* next = nullptr;
    if (at->is_object()) {
      const auto found = at->find(key);
      if (found != at->end()) next = &*found;
    } else if (at->is_array() && !key.empty() && key.size() < 6 &&
               key.find_first_not_of("0123456789") == key.npos) {
      const size_t index = std::stoul(key);
      if (index < at->size()) next = &(*at)[index];
    }
    if (!next)
      fail(ErrorKind::kInvalid, "$ref at {}: got '{}', which is not there", place, reference.substr(0, 80));
    at = next;
  }
  return *at;
}

void SchemaFlattener::spend(const Json& copied) {
  num_copied_ += num_values(copied);
  if (num_copied_ > kMaxCopied)
    fail(ErrorKind::kInvalid, "the schema is too large: its references and allOf hold more than {} values",
         kMaxCopied);
}

Json SchemaFlattener::flatten(const Json& schema, std::string_view place) {
  if (depth_ >= kMaxChain)
    fail(ErrorKind::kInvalid, "$ref or allOf at {}: leads back to itself, or deeper than {}", place,
         kMaxChain);
  const Nesting nesting(depth_);
  spend(schema);
  Json flat = Json::object();
  for (const auto& [name, value] : schema.items()) {
    switch (keyword_use(name)) {
      case KeywordUse::kRefused:
        if (refused_ == Refused::kThrow && !asks_for_nothing(name, value))
          fail(ErrorKind::kUnsupported, "keyword '{}' at {} is not supported", name, place);
        break;
      case KeywordUse::kAssertion:
        if (name != "$ref" && name != "allOf" && name != "nullable" && !asks_for_nothing(name, value))
          flat[name] = value;
        break;
      case KeywordUse::kAnnotation:
        break;
    }
  }
  if (schema.value("nullable", Json()) == true && flat.contains("type")) {  // OpenAPI 3.0
    flat["type"] = as_list(flat["type"]);
    flat["type"].push_back("null");
  }
  const auto join_part = [&](const Json& part) {
    if (part.is_object())
      flat = join(std::move(flat), flatten(part, place), place);
    else if (part == false)
      flat["enum"] = Json::array();  // nothing fits
    else if (part != true)
      fail(ErrorKind::kInvalid, "{}: need an object, true or false", place);
  };
  if (schema.contains("$ref")) {
    if (!schema["$ref"].is_string()) fail(ErrorKind::kInvalid, "$ref at {}: need a string", place);
    join_part(find(schema["$ref"].get<std::string>(), place));
  }
  if (schema.contains("allOf")) {
    if (!schema["allOf"].is_array()) fail(ErrorKind::kInvalid, "allOf at {}: need an array", place);
    for (const Json& part : schema["allOf"]) join_part(part);
  }
  return flat;
}

Json SchemaFlattener::flatten_options(const Json& schema, std::string_view place) {
  Json flat = flatten(schema, place);
  for (const char* keyword : {"anyOf", "oneOf"})
    if (flat.contains(keyword) && flat[keyword].is_array())
      for (Json& option : flat[keyword])
        if (option.is_object()) option = flatten(option, place);
  return flat;
}

Json SchemaFlattener::join(Json schema, const Json& other, std::string_view place) {
  spend(other);
  // What one part says about additional properties would hold for the properties of the other.
  const auto reaches = [](const Json& from, const Json& to) {
    if (from.value("additionalProperties", Json(true)) == true) return false;
    const Json own = from.value("properties", Json::object());
    const Json others = to.value("properties", Json::object());
    for (const auto& [name, value] : others.items())
      if (!own.contains(name)) return true;
    return false;
  };
  if (reaches(schema, other) || reaches(other, schema))
    fail(ErrorKind::kUnsupported,
         "keyword 'additionalProperties' at {}: beside properties from allOf, $ref or anyOf it is not "
         "supported",
         place);
  // `items` of one part would hold for the first items of the other, too.
  const auto overlaps = [](const Json& from, const Json& to) {
    const Json items = from.value("items", Json(true));
    return items != true && !items.is_array() && to.contains("prefixItems") &&
           from.value("prefixItems", Json()) != to["prefixItems"];
  };
  if (overlaps(schema, other) || overlaps(other, schema))
    fail(ErrorKind::kUnsupported,
         "keyword 'items' at {}: beside prefixItems from allOf, $ref or anyOf it is not supported", place);
  for (const auto& [name, value] : other.items()) {
    if (!schema.contains(name))
      schema[name] = value;
    else if (schema[name] != value)
      join_keyword(schema, name, value, place);
  }
  return schema;
}

// Both have the keyword, with different values.
void SchemaFlattener::join_keyword(Json& into, const std::string& name, const Json& value,
                                   std::string_view place) {
  Json& mine = into[name];
  const bool numbers = mine.is_number() && value.is_number();
  const bool lists = mine.is_array() && value.is_array();
  if (name == "type") {
    mine = common_types(mine, value);
  } else if (name == "enum" && lists) {
    mine = common_values(mine, value);
  } else if (name == "required" && lists) {
    for (const Json& one : value)
      if (!contains(mine, one)) mine.push_back(one);
  } else if (name == "properties" && mine.is_object() && value.is_object()) {
    join_properties(mine, value);
  } else if (name == "items" && !lists) {
    mine = {{"allOf", Json::array({mine, value})}};
  } else if (numbers && (name.starts_with("min") || name == "exclusiveMinimum")) {
    mine = std::max(mine, value);
  } else if (numbers && (name.starts_with("max") || name == "exclusiveMaximum")) {
    mine = std::min(mine, value);
  } else {
    fail(ErrorKind::kUnsupported,
         "keyword '{}' at {}: two different values from allOf, $ref or anyOf are not supported", name, place);
  }
}

void SchemaFlattener::join_properties(Json& into, const Json& other) {
  for (const auto& [name, value] : other.items()) {
    if (!into.contains(name))
      into[name] = value;
    else if (into[name] != value)
      into[name] = {{"allOf", Json::array({into[name], value})}};
  }
}

}  // namespace longspan::text
