#include "text/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "text/utf8.h"

namespace longspan::text::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(const JsonFormat& format, Budget& budget) : format_(format), budget_(budget) {}

  std::string take() { return std::move(out_); }

  void write(const Value& value, int level) {
    budget_.step();
    if (const Text* text = value.as_text()) {
      write_string(text->view());
    } else if (const Dict* dict = value.as_dict()) {
      write_dict(*dict, level);
    } else if (const List* list = value.as_list(); list && list->kind <= List::Kind::kTuple) {
      write_list(*list, level);
    } else {
      append(scalar(value));
    }
  }

 private:
  void append(std::string_view text) {
    budget_.build(text.size());
    out_.append(text);
  }

  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (const bool* flag = value.get_if<bool>()) return *flag ? "true" : "false";
    if (const int64_t* number = value.as_int()) return std::to_string(*number);
    if (const double* number = value.get_if<double>()) {
      if (std::isnan(*number)) return "NaN";
      if (std::isinf(*number)) return *number < 0 ? "-Infinity" : "Infinity";
      return format_float(*number);
    }
    if (const Undefined* missing = value.get_if<Undefined>())
      fail(ErrorKind::kInvalid, "'{}' is undefined: it has no JSON form", missing->name.view());
    fail(ErrorKind::kInvalid, "a value of type '{}' has no JSON form", value.type_name());
  }

  void new_line(int level) {
    if (!format_.indent) return;
    budget_.build(static_cast<size_t>(level), format_.indent->size());
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += *format_.indent;
  }

  void write_list(const List& list, int level) {
    append("[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) append(format_.item_separator);
      new_line(level + 1);
      write(list.items[i], level + 1);
    }
    if (!list.items.empty()) new_line(level);
    append("]");
  }

  void write_dict(const Dict& dict, int level) {
    std::vector<const Dict::Entry*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (format_.sort_keys)
      std::stable_sort(entries.begin(), entries.end(), [&](const Dict::Entry* a, const Dict::Entry* b) {
        return compare(a->first, b->first, "<", budget_) < 0;
      });
    append("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) append(format_.item_separator);
      new_line(level + 1);
      const auto& [key, value] = *entries[i];
      write_string(key.is_string() ? key.as_text()->view() : std::string_view(scalar(key)));
      append(format_.key_separator);
      write(value, level + 1);
    }
    if (!entries.empty()) new_line(level);
    append("}");
  }

  void write_string(std::string_view text) {
    budget_.build(text.size() + 2);
    out_ += '"';
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = code_point_at(text, at);
      write_code_point(c.value, text.substr(at, c.size_bytes));
      at += c.size_bytes;
    }
    out_ += '"';
  }

  void write_code_point(char32_t c, std::string_view bytes) {
    switch (c) {
      case '"':
        out_ += "\\\"";
        return;
      case '\\':
        out_ += "\\\\";
        return;
      case '\n':
        out_ += "\\n";
        return;
      case '\r':
        out_ += "\\r";
        return;
      case '\t':
        out_ += "\\t";
        return;
      case '\b':
        out_ += "\\b";
        return;
      case '\f':
        out_ += "\\f";
        return;
      default:
        break;
    }
    const auto escape = [this](uint32_t unit) { out_ += fmt::format("\\u{:04x}", unit); };
    if (c < 0x20 || (format_.ensure_ascii && c >= 0x7F && c < 0x10000)) {
      escape(c);
    } else if (format_.ensure_ascii && c >= 0x10000) {
      escape(0xD800 + ((c - 0x10000) >> 10));
      escape(0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      out_ += bytes;
    }
  }

  const JsonFormat& format_;
  Budget& budget_;
  std::string out_;
};

Value convert(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxValueDepth) fail(ErrorKind::kInvalid, "JSON nested deeper than {} levels", kMaxValueDepth);
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::null:
      return None{};
    case Type::boolean:
      return json.get<bool>();
    case Type::number_integer:
      return json.get<int64_t>();
    case Type::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > static_cast<uint64_t>(INT64_MAX)) return static_cast<double>(number);
      return static_cast<int64_t>(number);
    }
    case Type::number_float:
      return json.get<double>();
    case Type::string: {
      const auto& text = json.get_ref<const std::string&>();
      return find_invalid_utf8(text) ? replace_invalid_utf8(text) : text;
    }
    case Type::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(convert(item, depth + 1));
      return Value::list(std::move(items));
    }
    case Type::object: {
      std::vector<Dict::Entry> entries;
      entries.reserve(json.size());
      for (const auto& [key, item] : json.items())
        entries.emplace_back(replace_invalid_utf8(key), convert(item, depth + 1));
      return Value::dict(std::move(entries));
    }
    default:
      return Value();
  }
}

}  // namespace

Value from_json(const nlohmann::ordered_json& json) { return convert(json, 0); }

std::string to_json(const Value& value, const JsonFormat& format, Budget& budget) {
  JsonWriter writer(format, budget);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace longspan::text::jinja
