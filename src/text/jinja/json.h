// Between JSON and values: the request comes in, `tojson` goes out (Python's json.dumps, without HTML
// escapes).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace longspan::text::jinja {

// Key order is kept; invalid UTF-8 becomes U+FFFD; unsigned integers above 2^63-1 become floats.
Value from_json(const nlohmann::ordered_json& json);

struct JsonFormat {
  std::optional<std::string> indent;  // text of one level; none: everything on one line
  std::string item_separator = ", ";  // Python drops the space when it indents
  std::string key_separator = ": ";
  bool sort_keys = false;
  bool ensure_ascii = false;
};

// Throws Error for a value that JSON does not have (undefined, a function, a namespace).
std::string to_json(const Value& value, const JsonFormat& format, Budget& budget);

}  // namespace longspan::text::jinja
