#include "text/grammar/json_schema.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "core/error.h"
#include "text/grammar/multiples.h"
#include "text/grammar/number_range.h"
#include "text/utf8.h"

namespace longspan::text {
namespace {

using Json = SchemaJson;

constexpr int kMaxDepth = 64;           // of schemas in each other
constexpr size_t kMaxSchemas = 20'000;  // in one document, references counted once
constexpr int32_t kMaxCount = 1 << 30;  // of characters or items

const std::vector<std::string> kTypes = {"object", "array", "string", "integer", "number", "boolean", "null"};

// Days that exist, in years that have them.
constexpr const char* kDate =
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|"
    "(?:[02468][048]|[13579][26])00)-02-29)";
constexpr const char* kTime =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

constexpr const char* kHostname =
    "(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\\.){0,2}[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
constexpr const char* kUriCharacter = "(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})";

// Eight groups, of which `::` may stand for one or more.
std::string ipv6_regex() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  std::string regex = fmt::format("^(?:(?:{0}:){{7}}{0}|(?:{0}:){{1,7}}:|:(?::{0}){{1,7}}|::", group);
  for (int before = 1; before <= 6; ++before)
    regex += fmt::format("|(?:{0}:){{{1}}}(?::{0}){{1,{2}}}", group, before, 7 - before);
  return regex + ")$";
}

// ISO 8601 as RFC 3339 has it: no unit is left out between two others.
std::string duration_regex() {
  const auto units = [](const char* first, const char* second, const char* third) {
    return fmt::format("(?:[0-9]+{0}(?:[0-9]+{1}(?:[0-9]+{2})?)?|[0-9]+{1}(?:[0-9]+{2})?|[0-9]+{2})", first,
                       second, third);
  };
  const std::string time = "T" + units("H", "M", "S");
  return fmt::format("^P(?:[0-9]+W|{}(?:{})?|{})$", units("Y", "M", "D"), time, time);
}

std::optional<std::string> regex_of_format(const std::string& format) {
  if (format == "date") return fmt::format("^{}$", kDate);
  if (format == "time") return fmt::format("^{}$", kTime);
  if (format == "date-time") return fmt::format("^{}T{}$", kDate, kTime);
  if (format == "uuid")
    return "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$";
  if (format == "ipv4")
    return "^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?["
           "0-9])$";
  if (format == "email")  // the common part of RFC 5321
    return "^[A-Za-z0-9_%+-]+(?:\\.[A-Za-z0-9_%+-]+)*@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\\.)+["
           "A-Za-z]{2,24}$";
  if (format == "hostname") return fmt::format("^{}$", kHostname);
  if (format == "ipv6") return ipv6_regex();
  if (format == "duration") return duration_regex();
  if (format == "uri")  // with a host
    return fmt::format("^[A-Za-z][A-Za-z0-9+.-]*://{0}(?::[0-9]{{1,5}})?(?:/{1}*)?(?:\\?{1}*)?(?:#{1}*)?$",
                       kHostname, kUriCharacter);
  return std::nullopt;
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

bool has_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  return value.is_number_integer() ||
         (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
}

// `type`, or the types that the other keywords are about; none: any type.
std::vector<std::string> types_of(const Json& flat, const std::string& place) {
  std::vector<std::string> types;
  const auto add = [&](const Json& type) {
    if (!type.is_string() || std::find(kTypes.begin(), kTypes.end(), type.get<std::string>()) == kTypes.end())
      fail(ErrorKind::kInvalid, "type at {}: got {}, need one of {}", place, dump(type).substr(0, 80),
           fmt::join(kTypes, ", "));
    types.push_back(type.get<std::string>());
  };
  if (const auto type = flat.find("type"); type != flat.end()) {
    if (type->is_array())
      for (const Json& one : *type) add(one);
    else
      add(*type);
    return types;
  }
  const auto has_any = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), [&](const char* name) { return flat.contains(name); });
  };
  if (has_any({"properties", "required", "additionalProperties"})) types.push_back("object");
  if (has_any({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"})) types.push_back("array");
  if (has_any({"pattern", "format", "minLength", "maxLength"})) types.push_back("string");
  if (has_any({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}))
    types.push_back("number");
  return types;
}

struct NumberBound {
  double value;
  bool exclusive;
};

// `minimum` and `exclusiveMinimum`, of which the narrower counts, or the same for the maximum.
std::optional<NumberBound> bound_of(const Json& flat, const char* plain, const char* exclusive,
                                    double direction, const std::string& place) {
  constexpr double kMax = 4611686018427387904.0;  // 2^62
  const auto read = [&](const char* name) -> std::optional<double> {
    if (!flat.contains(name) || flat[name].is_boolean()) return std::nullopt;
    const double value = flat[name].is_number() ? flat[name].get<double>() : NAN;
    if (!(std::abs(value) <= kMax))
      fail(ErrorKind::kInvalid, "{} at {}: got {}, need a number within 2^62", name, place,
           dump(flat[name]).substr(0, 80));
    return value;
  };
  const auto inside = read(plain);
  const auto outside = read(exclusive);
  if (inside && flat.value(exclusive, Json()) == true) return NumberBound{*inside, true};  // draft 4
  if (!inside && !outside) return std::nullopt;
  if (!outside || (inside && direction * *inside > direction * *outside)) return NumberBound{*inside, false};
  return NumberBound{*outside, true};
}

}  // namespace

NodeId JsonSchemaRules::value(const Json& schema, const std::string& place) {
  if (schema == true) return any_value();
  if (schema == false) return builder_.reserve();  // leads nowhere
  if (!schema.is_object())
    fail(ErrorKind::kInvalid, "schema at {}: got {}, need an object, true or false", place,
         dump(schema).substr(0, 80));
  if (depth_ >= kMaxDepth) fail(ErrorKind::kInvalid, "schema at {}: nested deeper than {}", place, kMaxDepth);
  if (++num_schemas_ > kMaxSchemas)
    fail(ErrorKind::kInvalid, "the schema is too large: more than {} parts", kMaxSchemas);
  const Nesting nesting(depth_);
  if (const auto target = SchemaFlattener::plain_reference(schema)) return reference(*target, place);
  const Json flat = flattener_.flatten(schema, place);
  for (const char* keyword : {"anyOf", "oneOf"})
    if (flat.contains(keyword)) return alternatives(flat, keyword, place);
  if (flat.contains("enum") || flat.contains("const")) return listed_values(flat, place);
  const std::vector<std::string> types = types_of(flat, place);
  if (types.empty() && !flat.contains("type")) return any_value();
  std::vector<NodeId> rules;
  for (const std::string& type : types) {
    const bool covered = type == "integer" && std::find(types.begin(), types.end(), "number") != types.end();
    if (!covered) rules.push_back(value_of_type(flat, type, place));
  }
  return rules.empty() ? builder_.reserve() : builder_.split(std::move(rules));
}

NodeId JsonSchemaRules::value_of_type(const Json& flat, const std::string& type, const std::string& place) {
  const NodeId end = builder_.end_of_rule();
  if (type == "object") return object(flat, place);
  if (type == "array") return array(flat, place);
  if (type == "string") return string(flat, place);
  if (type == "integer") return integer(flat, place);
  if (type == "number") return number(flat, place);
  if (type == "boolean") return builder_.one_of({{"true", end}, {"false", end}});
  return builder_.literal("null", end);
}

// A rule for each target, made once: it may contain itself.
NodeId JsonSchemaRules::reference(const std::string& reference, const std::string& place) {
  const auto [at, is_new] = references_.try_emplace(reference, kNoNode);
  if (is_new) {
    const Json& target = flattener_.find(reference, place);
    const NodeId rule = at->second = builder_.reserve();
    const NodeId body = value(target, reference);
    builder_.set_split(rule, {builder_.call(body, builder_.end_of_rule())});
    return rule;
  }
  return builder_.call(at->second, builder_.end_of_rule());
}

// Each alternative together with what stands beside the keyword.
NodeId JsonSchemaRules::alternatives(Json flat, const char* keyword, const std::string& place) {
  const Json options = flat[keyword];
  if (!options.is_array() || options.empty())
    fail(ErrorKind::kInvalid, "{} at {}: need an array of schemas", keyword, place);
  flat.erase(keyword);
  std::vector<NodeId> rules;
  for (size_t i = 0; i < options.size(); ++i) {
    const std::string here = schema_place(schema_place(place, keyword), std::to_string(i));
    const bool alone = flat.empty();
    if (alone || options[i].is_boolean())
      rules.push_back(value(alone ? options[i] : options[i] == true ? flat : options[i], here));
    else if (options[i].is_object())
      rules.push_back(value(flattener_.join(flat, flattener_.flatten(options[i], here), here), here));
    else
      fail(ErrorKind::kInvalid, "{} at {}: need an array of schemas", keyword, place);
  }
  return builder_.split(std::move(rules));
}

NodeId JsonSchemaRules::listed_values(const Json& flat, const std::string& place) {
  std::vector<GrammarBuilder::Ending> endings;
  for (const std::string& text : listed_texts(flat, place))
    endings.emplace_back(text, builder_.end_of_rule());
  return endings.empty() ? builder_.reserve() : builder_.one_of(std::move(endings));
}

// The JSON of each value that the list and the other keywords allow.
std::set<std::string> JsonSchemaRules::listed_texts(const Json& flat, const std::string& place) {
  for (const auto& [name, unused] : flat.items())
    if (name != "enum" && name != "const" && name != "type")
      fail(ErrorKind::kUnsupported, "keyword '{}' at {}: beside enum or const it is not supported", name,
           place);
  if (flat.contains("enum") && !flat["enum"].is_array())
    fail(ErrorKind::kInvalid, "enum at {}: need an array", place);
  const Json values = flat.contains("enum") ? flat["enum"] : Json::array({flat["const"]});
  const std::vector<std::string> types = types_of(flat, place);
  std::set<std::string> texts;
  for (const Json& one : values) {
    const bool fits =
        !flat.contains("type") ||
        std::any_of(types.begin(), types.end(), [&](const std::string& type) { return has_type(one, type); });
    const bool is_const = !flat.contains("const") || one == flat["const"];
    if (fits && is_const) texts.insert(dump(one));
  }
  return texts;
}

std::optional<Regex> JsonSchemaRules::regex_of(const Json& flat, const std::string& place) {
  const bool has_pattern = flat.contains("pattern");
  const bool has_format = flat.contains("format");
  if (!has_pattern && !has_format) return std::nullopt;
  const char* name = has_pattern ? "pattern" : "format";
  for (const char* other : {"format", "minLength", "maxLength"})
    if (flat.contains(other) && std::string_view(other) != name)
      fail(ErrorKind::kUnsupported, "keyword '{}' at {}: beside {} it is not supported", other, place, name);
  if (!flat[name].is_string()) fail(ErrorKind::kInvalid, "{} at {}: need a string", name, place);
  const auto text = flat[name].get<std::string>();
  if (has_pattern) return parse_regex(text);
  const auto regex = regex_of_format(text);
  if (!regex) fail(ErrorKind::kUnsupported, "format at {}: '{}' is not supported", place, text.substr(0, 80));
  return parse_regex(*regex);
}

JsonSchemaRules::Bounds JsonSchemaRules::bounds_of(const Json& flat, const char* min, const char* max,
                                                   const std::string& place) {
  const auto read = [&](const char* name, int32_t otherwise) {
    if (!flat.contains(name)) return otherwise;
    const double value = flat[name].is_number() ? flat[name].get<double>() : -1;
    if (!(value >= 0) || value != std::floor(value))
      fail(ErrorKind::kInvalid, "{} at {}: got {}, need a whole number, 0 or more", name, place,
           dump(flat[name]).substr(0, 80));
    return static_cast<int32_t>(std::min(value, static_cast<double>(kMaxCount)));
  };
  return {read(min, 0), read(max, Grammar::kUnlimited)};
}

NodeId JsonSchemaRules::string(const Json& flat, const std::string& place) {
  if (const auto regex = regex_of(flat, place))
    return builder_.literal("\"",
                            add_regex(builder_, *regex, rules_.spelling(), "\"", builder_.end_of_rule()));
  const Bounds bounds = bounds_of(flat, "minLength", "maxLength", place);
  if (bounds.min > bounds.max) return builder_.reserve();
  return rules_.string(builder_.end_of_rule(), bounds.min, bounds.max);
}

NodeId JsonSchemaRules::integer(const Json& flat, const std::string& place) {
  IntegerRange range;
  if (const auto min = bound_of(flat, "minimum", "exclusiveMinimum", 1, place))
    range.min = static_cast<int64_t>(min->exclusive ? std::floor(min->value) + 1 : std::ceil(min->value));
  if (const auto max = bound_of(flat, "maximum", "exclusiveMaximum", -1, place))
    range.max = static_cast<int64_t>(max->exclusive ? std::ceil(max->value) - 1 : std::floor(max->value));
  const Divisor divisor = divisor_of(flat, place);
  if (divisor.whole > 1) return add_multiples(builder_, divisor.whole, range, builder_.end_of_rule());
  return number_text(integer_regex(range));
}

JsonSchemaRules::Divisor JsonSchemaRules::divisor_of(const Json& flat, const std::string& place) const {
  if (!flat.contains("multipleOf")) return {};
  const Json& given = flat["multipleOf"];
  const double value = given.is_number() ? given.get<double>() : 0;
  if (!(value > 0))
    fail(ErrorKind::kInvalid, "multipleOf at {}: got {}, need a number above 0", place,
         dump(given).substr(0, 80));
  if (value == std::floor(value) && value <= kMaxDivisor)
    return {.whole = static_cast<int64_t>(value), .decimals = 0};
  for (int decimals = 1; decimals <= kMaxDecimals; ++decimals)
    if (decimals_of(value) == decimals && std::llround(value * std::pow(10.0, decimals)) == 1)
      return {.decimals = decimals};
  if (flattener_.refused() == Refused::kDrop) return {};
  fail(ErrorKind::kUnsupported,
       "multipleOf at {}: got {}, need a whole number to {}, or 0.1, 0.01 and so on to {} digits", place,
       value, kMaxDivisor, kMaxDecimals);
}

NodeId JsonSchemaRules::number(const Json& flat, const std::string& place) {
  const Divisor divisor = divisor_of(flat, place);
  if (divisor.decimals == 0) return integer(flat, place);
  const auto min = bound_of(flat, "minimum", "exclusiveMinimum", 1, place);
  const auto max = bound_of(flat, "maximum", "exclusiveMaximum", -1, place);
  NumberRange range{.max_decimals = divisor.decimals};
  int decimals = divisor.decimals.value_or(0);
  for (const auto& bound : {min, max})
    if (bound) decimals = std::max(decimals, decimals_of(bound->value).value_or(0));
  for (const auto& bound : {min, max}) {
    if (!bound) continue;
    const bool is_whole = bound->value == std::floor(bound->value);
    const bool has_room = decimals == 0 || std::abs(bound->value) * std::pow(10.0, decimals) < 1e15;
    if ((!is_whole && !decimals_of(bound->value)) || !has_room)
      fail(ErrorKind::kUnsupported,
           "minimum or maximum at {}: got {}, need at most {} digits behind the point and 15 in all", place,
           bound->value, kMaxDecimals);
  }
  if (min) range.min = min->value;
  if (max) range.max = max->value;
  range.above_min = min && min->exclusive;
  range.below_max = max && max->exclusive;
  return number_text(number_regex(range));
}

NodeId JsonSchemaRules::number_text(const std::string& regex) {
  const auto [at, is_new] = numbers_.try_emplace(regex, kNoNode);
  if (is_new)
    at->second = add_regex(builder_, parse_regex(regex), Spelling::kPlain, "", builder_.end_of_rule());
  return at->second;
}

NodeId JsonSchemaRules::array(const Json& flat, const std::string& place) {
  Bounds bounds = bounds_of(flat, "minItems", "maxItems", place);
  const bool items_are_first = flat.contains("items") && flat["items"].is_array();  // before 2020-12
  const char* list = items_are_first ? "items" : "prefixItems";
  std::vector<NodeId> first;
  if (flat.contains(list)) {
    if (!flat[list].is_array()) fail(ErrorKind::kInvalid, "{} at {}: need an array", list, place);
    for (size_t i = 0; i < flat[list].size(); ++i)
      first.push_back(value(flat[list][i], schema_place(schema_place(place, list), std::to_string(i))));
  }
  const bool listed_only = flat.value("items", Json()) == false;
  if (listed_only) bounds.max = std::min(bounds.max, static_cast<int32_t>(first.size()));
  const bool has_items = flat.contains("items") && !items_are_first && !listed_only;
  const NodeId rest = has_items ? value(flat["items"], schema_place(place, "items")) : any_value();
  if (bounds.min > bounds.max) return builder_.reserve();
  if (const auto array = array_without_repeats(flat, bounds, place)) return *array;
  return array_of(first, rest, bounds);
}

std::optional<NodeId> JsonSchemaRules::array_without_repeats(const Json& flat, Bounds bounds,
                                                             const std::string& place) {
  constexpr size_t kMaxListed = 8;  // there is a node for each set of them
  if (flat.value("uniqueItems", Json()) != true || bounds.max <= 1) return std::nullopt;
  Json items = flat.contains("prefixItems") ? Json() : flat.value("items", Json());
  if (items.is_object()) items = flattener_.flatten(items, schema_place(place, "items"));
  std::set<std::string> listed;
  if (items.is_object() && (items.contains("enum") || items.contains("const")))
    listed = listed_texts(items, schema_place(place, "items"));
  if (listed.empty() || listed.size() > kMaxListed) {
    if (flattener_.refused() == Refused::kDrop) return std::nullopt;
    fail(ErrorKind::kUnsupported, "keyword 'uniqueItems' at {}: need items that are at most {} listed values",
         place, kMaxListed);
  }
  const std::vector<std::string> texts(listed.begin(), listed.end());
  const auto num_texts = static_cast<int32_t>(texts.size());
  const auto num_sets = size_t{1} << texts.size();
  const NodeId close = rules_.gap(builder_.literal("]", builder_.end_of_rule()));
  // behind[set]: what may follow when these items were read. Larger sets come first.
  std::vector<NodeId> behind(num_sets, kNoNode);
  for (size_t set = num_sets; set-- > 0;) {
    const int32_t count = std::popcount(set);
    std::vector<NodeId> ways;
    if (count >= bounds.min) ways.push_back(close);
    if (count < std::min(bounds.max, num_texts)) {
      std::vector<GrammarBuilder::Ending> items_left;
      for (size_t i = 0; i < texts.size(); ++i)
        if ((set >> i & 1) == 0) items_left.emplace_back(texts[i], behind[set | size_t{1} << i]);
      const NodeId item = rules_.gap(builder_.one_of(std::move(items_left)));
      ways.push_back(set == 0 ? item : rules_.gap(builder_.literal(",", item)));
    }
    behind[set] = ways.empty() ? builder_.reserve() : builder_.split(std::move(ways));
  }
  return builder_.literal("[", behind[0]);
}

NodeId JsonSchemaRules::array_of(const std::vector<NodeId>& first, NodeId rest, Bounds bounds) {
  const auto at = [&](int32_t i) {
    return i < static_cast<int32_t>(first.size()) ? first[static_cast<size_t>(i)] : rest;
  };
  const auto item = [&](int32_t i, NodeId next) {
    return rules_.gap(builder_.literal(",", rules_.gap(builder_.call(at(i), next))));
  };
  const NodeId end = builder_.end_of_rule();
  const NodeId close = rules_.gap(builder_.literal("]", end));
  // The first ones are written out, one by one; further ones are a loop that counts where there is a limit.
  const int32_t num_written =
      std::min(std::max({static_cast<int32_t>(first.size()), bounds.min, 1}), bounds.max);
  NodeId next = close;
  if (bounds.max > num_written) {
    next = builder_.reserve();
    const NodeId more = item(num_written, next);
    builder_.set_split(next, {close, bounds.max == Grammar::kUnlimited ? more : builder_.count(more)});
  }
  for (int32_t i = num_written; i-- > 0;) {
    if (i == 0) {
      next = rules_.gap(builder_.call(at(0), next));
      if (bounds.min == 0) next = builder_.split({next, close});
    } else {
      next = i < bounds.min ? item(i, next) : builder_.split({item(i, next), close});
    }
  }
  const int32_t room = bounds.max == Grammar::kUnlimited ? bounds.max : bounds.max - num_written;
  return builder_.call(builder_.literal("[", next), end, 0, room);
}

NodeId JsonSchemaRules::object(const Json& flat, const std::string& place) {
  const std::vector<Property> properties = properties_of(flat, place);
  return object_of(properties, additional_of(flat, place));
}

std::vector<JsonSchemaRules::Property> JsonSchemaRules::properties_of(const Json& flat,
                                                                      const std::string& place) {
  std::set<std::string> required;
  std::vector<std::string> order;
  if (flat.contains("required")) {
    if (!flat["required"].is_array())
      fail(ErrorKind::kInvalid, "required at {}: need an array of names", place);
    for (const Json& name : flat["required"]) {
      if (!name.is_string()) fail(ErrorKind::kInvalid, "required at {}: need an array of names", place);
      if (required.insert(name.get<std::string>()).second) order.push_back(name.get<std::string>());
    }
  }
  std::vector<Property> properties;
  std::set<std::string> listed;
  const Json list = flat.value("properties", Json::object());
  if (!list.is_object()) fail(ErrorKind::kInvalid, "properties at {}: need an object", place);
  for (const auto& [name, schema] : list.items()) {
    const std::string here = schema_place(schema_place(place, "properties"), name);
    properties.push_back({name, value(schema, here), required.contains(name)});
    listed.insert(name);
  }
  for (const std::string& name : order) {  // required, and described by additionalProperties alone
    if (listed.contains(name)) continue;
    const Json schema = flat.value("additionalProperties", Json(true));
    properties.push_back({name, value(schema, schema_place(place, "additionalProperties")), true});
  }
  return properties;
}

NodeId JsonSchemaRules::additional_of(const Json& flat, const std::string& place) {
  const bool has_properties = flat.contains("properties") && !flat["properties"].empty();
  const Json schema = flat.value("additionalProperties", Json(!has_properties));
  return schema == false ? kNoNode : value(schema, schema_place(place, "additionalProperties"));
}

// Behind each value: a comma and one of the properties that may come next, or the end if none must come.
NodeId JsonSchemaRules::object_of(const std::vector<Property>& properties, NodeId additional) {
  const NodeId end = builder_.end_of_rule();
  const NodeId close = builder_.literal("}", end);
  const auto pair = [&](NodeId rule, NodeId next) {
    return rules_.gap(builder_.literal(":", rules_.gap(builder_.call(rule, next))));
  };
  NodeId next_key = kNoNode;  // behind a comma, or at the begin
  NodeId after_value = rules_.gap(close);
  if (additional != kNoNode) {
    std::vector<std::string> names;
    for (const Property& property : properties) names.push_back(property.name);
    after_value = builder_.reserve();
    next_key = rules_.string_other_than(names, pair(additional, after_value));
    builder_.set_split(after_value,
                       {rules_.gap(builder_.split({close, builder_.literal(",", rules_.gap(next_key))}))});
  }
  bool may_end = true;
  for (size_t i = properties.size(); i-- > 0;) {
    const Property& property = properties[i];
    const NodeId key = builder_.literal(dump(property.name), pair(property.rule, after_value));
    next_key = property.required || next_key == kNoNode ? key : builder_.split({key, next_key});
    if (property.required) may_end = false;
    const NodeId more = builder_.literal(",", rules_.gap(next_key));
    after_value = rules_.gap(may_end ? builder_.split({more, close}) : more);
  }
  NodeId first = next_key == kNoNode ? close : may_end ? builder_.split({next_key, close}) : next_key;
  return builder_.literal("{", rules_.gap(first));
}

NodeId JsonSchemaRules::any_value() {
  if (any_value_ != kNoNode) return any_value_;
  any_value_ = builder_.reserve();
  const NodeId end = builder_.end_of_rule();
  builder_.set_split(any_value_, {any_object(), array_of({}, any_value_, {}), rules_.string(end),
                                  number_text(number_regex({})),
                                  builder_.one_of({{"true", end}, {"false", end}, {"null", end}})});
  return any_value_;
}

NodeId JsonSchemaRules::any_object() { return object_of({}, any_value()); }

Grammar json_schema_grammar(const Json& schema) {
  GrammarBuilder builder;
  TextRules rules(builder);
  JsonSchemaRules json(builder, rules, schema);
  const NodeId start = json.value(schema);
  return builder.build(start);
}

Grammar json_object_grammar() {
  const Json any = true;
  GrammarBuilder builder;
  TextRules rules(builder);
  return builder.build(JsonSchemaRules(builder, rules, any).any_object());
}

}  // namespace longspan::text
