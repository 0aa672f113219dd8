#include "text/json_field.h"

#include "core/error.h"
#include "text/vocabulary.h"

namespace longspan::text {
namespace {

constexpr size_t kMaxQuoted = 60;  // bytes of a value that an error message shows

std::string quoted(const nlohmann::json& value) {
  if (value.is_structured()) return value.is_array() ? "an array" : "an object";
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxQuoted) text = text.substr(0, kMaxQuoted) + "...";
  return text;
}

}  // namespace

JsonField JsonField::child(const nlohmann::json& value, std::string path) const {
  JsonField field(value, file_name_);
  field.path_ = std::move(path);
  return field;
}

std::string JsonField::place() const { return path_.empty() ? file_name_ : file_name_ + ": " + path_; }

void JsonField::invalid(std::string_view need) const {
  fail(ErrorKind::kInvalid, "{}: got {}, need {}", place(), quoted(*value_), need);
}

void JsonField::unsupported(std::string_view need) const {
  fail(ErrorKind::kUnsupported, "{}: got {}, need {}", place(), quoted(*value_), need);
}

const nlohmann::json& JsonField::object() const {
  if (!value_->is_object()) invalid("an object");
  return *value_;
}

const nlohmann::json& JsonField::array() const {
  if (!value_->is_array()) invalid("an array");
  return *value_;
}

const std::string& JsonField::string() const {
  if (!value_->is_string()) invalid("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonField::boolean() const {
  if (!value_->is_boolean()) invalid("true or false");
  return value_->get<bool>();
}

bool is_token_id(const nlohmann::json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{kMaxTokenId};
}

int32_t JsonField::id() const {
  if (!is_token_id(*value_)) invalid(fmt::format("a token id, 0 to {}", kMaxTokenId));
  return value_->get<int32_t>();
}

JsonField JsonField::required(const char* key) const {
  const auto it = object().find(key);
  if (it == value_->end()) fail(ErrorKind::kInvalid, "{}: got no field '{}', need one", place(), key);
  return child(*it, path_.empty() ? key : path_ + "." + key);
}

std::optional<JsonField> JsonField::optional(const char* key) const {
  const auto it = object().find(key);
  if (it == value_->end() || it->is_null()) return std::nullopt;
  return required(key);
}

bool JsonField::flag(const char* key, bool otherwise) const {
  const auto field = optional(key);
  return field ? field->boolean() : otherwise;
}

JsonField JsonField::element(size_t idx) const {
  return child(array()[idx], fmt::format("{}[{}]", path_, idx));
}

nlohmann::json parse_json(std::string_view text, std::string_view file_name) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    fail(ErrorKind::kInvalid, "{}: got a syntax error at byte {}, need JSON", file_name, error.byte);
  }
}

}  // namespace longspan::text
