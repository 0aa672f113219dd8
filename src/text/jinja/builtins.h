// Tables of what templates may call: filters, tests, methods, global functions.
#pragma once

#include <string_view>

#include "text/jinja/interpreter.h"

namespace longspan::text::jinja {

struct Builtin {
  std::string_view name;
  std::string_view parameters;  // "old new count?": in order, '?' for optional; "*": any, unchecked
  // `args` holds a positional value for each parameter, undefined where it was not given.
  Value (*call)(Interpreter& interpreter, const Value& self, const Args& args);
};

// Null when there is none of that name.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_global(std::string_view name);
const Builtin* find_method(const Value& self, std::string_view name);
// A Python method that would change the object: templates may not call it.
bool is_mutating_method(const Value& self, std::string_view name);

// Arguments by position. Throws Error that names the callable (`kind`: "filter", ...) and the parameter.
Args bind(const Builtin& builtin, std::string_view kind, Args args);

}  // namespace longspan::text::jinja
