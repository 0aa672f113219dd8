#include "io/json.h"

#include <fstream>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "core/units.h"

namespace longspan::io {
namespace {

constexpr size_t kMaxQuotedChars = 80;  // of a value inside an error message

std::string shortened(std::string text) {
  if (text.size() <= kMaxQuotedChars) return text;
  size_t cut = kMaxQuotedChars;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0u) == 0x80u)
    --cut;  // not inside a UTF-8 sequence
  return text.substr(0, cut) + "...";
}

// "got VALUE" for messages; large containers are named, not printed.
std::string described(const Json& value) {
  if (value.is_structured())
    return fmt::format("{} of {} entries", value.is_object() ? "an object" : "an array", value.size());
  return shortened(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

Json parse_json(std::string_view text, std::string_view file, int max_depth) {
  std::vector<std::unordered_set<std::string>> keys_of_open_objects;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
        keys_of_open_objects.emplace_back();
        [[fallthrough]];
      case Json::parse_event_t::array_start:
        if (depth >= max_depth)
          fail(ErrorKind::kInvalid, "{}: nested {} deep, need at most {}", file, depth + 1, max_depth);
        break;
      case Json::parse_event_t::object_end:
        keys_of_open_objects.pop_back();
        break;
      case Json::parse_event_t::key:
        if (const auto& key = parsed.get_ref<const std::string&>();
            !keys_of_open_objects.back().insert(key).second)
          fail(ErrorKind::kInvalid, "{}: key \"{}\" appears twice in one object", file, shortened(key));
        break;
      default:
        break;
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    fail(ErrorKind::kInvalid, "{}: not valid JSON: {}", file, error.what());
  }
}

std::string read_text_file(const std::filesystem::path& path) {
  std::error_code status;
  if (!std::filesystem::exists(path, status)) fail(ErrorKind::kNotFound, "{}: no such file", path.string());
  if (!std::filesystem::is_regular_file(path, status))
    fail(ErrorKind::kInvalid, "{}: not a regular file", path.string());
  const uint64_t size = std::filesystem::file_size(path, status);
  if (status) fail(ErrorKind::kEnvironment, "{}: {}", path.string(), status.message());
  if (size > kMaxJsonFileBytes)
    fail(ErrorKind::kInvalid, "{}: got {}, need at most {}", path.string(), format_bytes(size),
         format_bytes(kMaxJsonFileBytes));
  std::string text(size, '\0');
  std::ifstream stream(path, std::ios::binary);
  if (!stream.read(text.data(), static_cast<std::streamsize>(size)))
    fail(ErrorKind::kEnvironment, "{}: cannot be read", path.string());
  return text;
}

JsonObject::JsonObject(const Json& value, std::string where) : object_(&value), where_(std::move(where)) {
  if (!value.is_object()) fail(ErrorKind::kInvalid, "{}: got {}, need an object", where_, described(value));
}

bool JsonObject::contains(std::string_view key) const { return object_->contains(key); }

const Json* JsonObject::find(std::string_view key) const {
  const auto entry = object_->find(key);
  return entry == object_->end() || entry->is_null() ? nullptr : &*entry;
}

void JsonObject::refuse(std::string_view key, std::string_view need) const {
  const auto entry = object_->find(key);
  fail(ErrorKind::kInvalid, "{}: {}: got {}, need {}", where_, key,
       entry == object_->end() ? "nothing" : described(*entry), need);
}

std::optional<int64_t> JsonObject::find_integer(std::string_view key, Bounds<int64_t> bounds) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  // Unsigned first: a value above INT64_MAX must not wrap.
  const bool fits = value->is_number_unsigned()
                        ? std::cmp_less_equal(value->get<uint64_t>(), bounds.max) &&
                              std::cmp_greater_equal(value->get<uint64_t>(), bounds.min)
                        : value->is_number_integer() && value->get<int64_t>() >= bounds.min &&
                              value->get<int64_t>() <= bounds.max;
  if (!fits) refuse(key, fmt::format("an integer from {} to {}", bounds.min, bounds.max));
  return value->get<int64_t>();
}

std::optional<double> JsonObject::find_number(std::string_view key, Bounds<double> bounds) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_number() || !(value->get<double>() >= bounds.min && value->get<double>() <= bounds.max))
    refuse(key, fmt::format("a number from {} to {}", bounds.min, bounds.max));
  return value->get<double>();
}

std::optional<bool> JsonObject::find_bool(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonObject::find_string(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) refuse(key, "a string");
  return value->get<std::string>();
}

std::optional<std::vector<std::string>> JsonObject::find_strings(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_array()) refuse(key, "an array of strings");
  std::vector<std::string> strings;
  for (const Json& element : *value) {
    if (!element.is_string())
      refuse(key, fmt::format("an array of strings (it holds {})", described(element)));
    strings.push_back(element.get<std::string>());
  }
  return strings;
}

std::optional<JsonObject> JsonObject::find_object(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_object()) refuse(key, "an object");
  return JsonObject(*value, fmt::format("{}: {}", where_, key));
}

std::vector<int32_t> JsonObject::find_token_ids(std::string_view key) const {
  const Json* value = find(key);
  std::vector<int32_t> ids;
  if (!value) return ids;
  for (const Json& id : value->is_array() ? *value : Json::array({*value})) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t{INT32_MAX})
      refuse(key, "a token id or a list of token ids");
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

int64_t JsonObject::integer(std::string_view key, Bounds<int64_t> bounds) const {
  const auto value = find_integer(key, bounds);
  if (!value) refuse(key, fmt::format("an integer from {} to {}", bounds.min, bounds.max));
  return *value;
}

std::string JsonObject::string(std::string_view key) const {
  auto value = find_string(key);
  if (!value) refuse(key, "a string");
  return *std::move(value);
}

}  // namespace longspan::io
