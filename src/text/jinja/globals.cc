// Global functions of templates.
#include <algorithm>
#include <chrono>
#include <ctime>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/utf8.h"

namespace longspan::text::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // Jinja's sandbox has the same limit

Value raise_exception(Interpreter& interpreter, const Value&, const Args& args) {
  throw RaisedException(to_text(args[0], interpreter.budget()));
}

Value make_namespace(Interpreter& interpreter, const Value&, const Args& args) {
  std::vector<std::pair<Text, Value>> fields;
  if (args.positional.size() > 1) fail(ErrorKind::kInvalid, "takes one dict and named arguments");
  if (args.has(0)) {
    const Dict* dict = args[0].as_dict();
    if (!dict) fail(ErrorKind::kInvalid, "needs a dict, got '{}'", args[0].type_name());
    for (const auto& [key, value] : dict->entries())
      fields.emplace_back(as_shared_text(key, interpreter.budget()), value);
  }
  for (const auto& [name, value] : args.named) {
    const auto at = std::find_if(fields.begin(), fields.end(),
                                 [wanted = name](const auto& f) { return f.first.view() == wanted; });
    if (at != fields.end()) {
      at->second = value;
    } else {
      fields.emplace_back(Text(std::string(name)), value);
    }
  }
  return interpreter.new_namespace(std::move(fields));
}

Value range(Interpreter& interpreter, const Value&, const Args& args) {
  const bool single = !args.has(1);
  const int64_t start = single ? 0 : to_int(args[0], "start");
  const int64_t stop = to_int(args[single ? 0 : 1], "stop");
  const int64_t step = args.has(2) ? to_int(args[2], "step") : 1;
  if (step == 0) fail(ErrorKind::kInvalid, "step must not be zero");
  // Unsigned, so that the distance of any two integers fits.
  const uint64_t low = static_cast<uint64_t>(step > 0 ? start : stop);
  const uint64_t high = static_cast<uint64_t>(step > 0 ? stop : start);
  const bool empty = step > 0 ? start >= stop : start <= stop;
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  const uint64_t count = empty ? 0 : (high - low - 1) / stride + 1;
  if (count > kMaxRange) fail(ErrorKind::kInvalid, "has {} elements, the limit is {}", count, kMaxRange);
  interpreter.budget().build(count, sizeof(Value));
  std::vector<Value> items;
  for (uint64_t i = 0; i < count; ++i)
    items.emplace_back(static_cast<int64_t>(static_cast<uint64_t>(start) + i * static_cast<uint64_t>(step)));
  return Value::list(std::move(items), List::Kind::kRange);
}

std::tm local_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  localtime_r(&now, &parts);
  return parts;
}

Value strftime_now(Interpreter& interpreter, const Value&, const Args& args) {
  const std::string format(as_shared_text(args[0], interpreter.budget()).view());
  constexpr size_t kMaxFormat = 1000;
  if (format.size() > kMaxFormat) fail(ErrorKind::kInvalid, "format longer than {} bytes", kMaxFormat);
  if (format.empty()) return Value(std::string());
  const std::tm now = interpreter.options().now ? interpreter.options().now() : local_now();
  char buffer[32 * kMaxFormat];
  const size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &now);
  return Value(replace_invalid_utf8(std::string_view(buffer, size)));
}

Value make_dict(Interpreter&, const Value&, const Args& args) {
  std::vector<Dict::Entry> entries;
  if (args.positional.size() > 1) fail(ErrorKind::kInvalid, "takes one dict and named arguments");
  if (args.has(0)) {
    const Dict* dict = args[0].as_dict();
    if (!dict) fail(ErrorKind::kInvalid, "needs a dict, got '{}'", args[0].type_name());
    entries = dict->entries();
  }
  for (const auto& [name, value] : args.named) entries.emplace_back(Value(std::string(name)), value);
  return Value::dict(std::move(entries));
}

constexpr Builtin kGlobals[] = {
    {"raise_exception", "message", raise_exception},
    {"namespace", "*", make_namespace},
    {"range", "start stop? step?", range},
    {"strftime_now", "format", strftime_now},
    {"dict", "*", make_dict},
};

}  // namespace

const Builtin* find_global(std::string_view name) {
  const auto at =
      std::find_if(std::begin(kGlobals), std::end(kGlobals), [&](auto& b) { return b.name == name; });
  return at == std::end(kGlobals) ? nullptr : at;
}

}  // namespace longspan::text::jinja
