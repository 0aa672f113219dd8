// Filters: what may stand after `|`.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/json.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"

namespace longspan::text::jinja {
namespace {

Value stream(std::vector<Value> items) { return Value::list(std::move(items), List::Kind::kStream); }

// ---- Strings ----

template <std::string (*map)(std::string_view)>
Value map_text(Interpreter& interpreter, const Value& self, const Args&) {
  const Text text = as_shared_text(self, interpreter.budget());
  interpreter.budget().build(text.view().size());
  return Value(map(text.view()));
}

Value as_string(Interpreter& interpreter, const Value& self, const Args&) {
  return Value(as_shared_text(self, interpreter.budget()));
}

Value trim(Interpreter& interpreter, const Value& self, const Args& args) {
  const Text text = as_shared_text(self, interpreter.budget());
  if (!args.has(0) || args[0].is_none()) return Value(text.slice(strip(text.view())));
  if (!args[0].is_string())
    fail(ErrorKind::kInvalid, "chars must be a string, got '{}'", args[0].type_name());
  return Value(text.slice(strip_chars(text.view(), args[0].as_text()->view())));
}

Value replace_text(Interpreter& interpreter, const Value& self, const Args& args) {
  Budget& budget = interpreter.budget();
  const Text text = as_shared_text(self, budget);
  const Text from = as_shared_text(args[0], budget);
  const Text to = as_shared_text(args[1], budget);
  const int64_t max_count = args.has(2) && !args[2].is_none() ? to_int(args[2], "count") : -1;
  const int64_t found = count_occurrences(text.view(), from.view());
  budget.build(static_cast<size_t>(max_count < 0 ? found : std::min(found, max_count)), to.view().size());
  budget.build(text.view().size());
  return Value(replace(text.view(), from.view(), to.view(), max_count));
}

std::string escape_html(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '\'':
        result += "&#39;";
        break;
      case '"':
        result += "&#34;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

Value indent(Interpreter& interpreter, const Value& self, const Args& args) {
  Budget& budget = interpreter.budget();
  if (!self.is_string()) fail(ErrorKind::kInvalid, "needs a string, got '{}'", self.type_name());
  const Text& text = *self.as_text();
  const int64_t width = !args.has(0) ? 4 : args[0].is_string() ? 0 : to_int(args[0], "width");
  budget.build(static_cast<size_t>(std::max<int64_t>(width, 0)));
  const std::string margin = args[0].is_string()
                                 ? std::string(args[0].as_text()->view())
                                 : std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  // A newline is added first, so that text without a line end still is one line, and a final line end is
  // kept.
  const std::string source = std::string(text.view()) + "\n";
  const std::vector<std::string_view> lines = split_lines(source);
  budget.build(lines.size(), margin.size() + 1);
  budget.build(source.size());
  std::string result = args[1].truthy() ? margin : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result += '\n';
    if (i > 0 && (!lines[i].empty() || args[2].truthy())) result += margin;
    result += lines[i];
  }
  return Value(std::move(result));
}

Value tojson(Interpreter& interpreter, const Value& self, const Args& args) {
  JsonFormat format;
  format.ensure_ascii = args[0].truthy();
  format.sort_keys = args[3].truthy();
  if (args.has(1) && !args[1].is_none()) {
    constexpr int64_t kMaxIndent = 64;
    format.indent =
        args[1].is_string()
            ? std::string(args[1].as_text()->view())
            : std::string(static_cast<size_t>(std::clamp<int64_t>(to_int(args[1], "indent"), 0, kMaxIndent)),
                          ' ');
    format.item_separator = ",";
  }
  if (args.has(2) && !args[2].is_none()) {
    const List* pair = args[2].as_list();
    if (!pair || pair->items.size() != 2 || !pair->items[0].is_string() || !pair->items[1].is_string())
      fail(ErrorKind::kInvalid, "separators must be two strings");
    format.item_separator = pair->items[0].as_text()->view();
    format.key_separator = pair->items[1].as_text()->view();
  }
  return Value(to_json(self, format, interpreter.budget()));
}

// ---- Numbers ----

// int(text, base) and float(text) of Python; none when Python raises ValueError.
std::optional<int64_t> parse_int(std::string_view text, int64_t base) {
  text = strip(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  std::string digits(text);
  if (base < 2 || base > 36 || digits.starts_with('_') || digits.ends_with('_') ||
      digits.find("__") != digits.npos)
    return std::nullopt;
  std::erase(digits, '_');
  const std::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
  if (!prefix.empty() && lower(digits).starts_with(prefix)) digits.erase(0, 2);
  if (digits.empty() || digits[0] == '-' || digits[0] == '+') return std::nullopt;
  if (negative) digits.insert(digits.begin(), '-');
  int64_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, number, static_cast<int>(base));
  if (parsed.ec == std::errc::result_out_of_range)
    fail(ErrorKind::kInvalid, "'{}' does not fit 64 bits", text);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return number;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  std::string digits(text);
  for (size_t i = 0; i < digits.size(); ++i)  // '_' only between digits
    if (digits[i] == '_' &&
        (i == 0 || i + 1 == digits.size() || !std::isdigit(static_cast<unsigned char>(digits[i - 1])) ||
         !std::isdigit(static_cast<unsigned char>(digits[i + 1]))))
      return std::nullopt;
  std::erase(digits, '_');
  if (digits.empty() || digits[0] == '-' || digits.find('(') != digits.npos) return std::nullopt;
  double number = 0;
  const char* end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, number);
  if (parsed.ptr != end || parsed.ec == std::errc::invalid_argument) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) number = std::strtod(digits.c_str(), nullptr);
  return negative ? -number : number;
}

Value truncated(double number) {
  if (!(std::abs(number) < 9.2e18))
    fail(ErrorKind::kInvalid, "{} does not fit a 64-bit integer", format_float(number));
  return static_cast<int64_t>(number);
}

Value as_int(Interpreter&, const Value& self, const Args& args) {
  require_defined(self);
  const Value fallback = args.has(0) ? args[0] : Value(0);
  if (const double* real = self.get_if<double>()) return std::isnan(*real) ? fallback : truncated(*real);
  if (self.is_number()) return to_int(self, "value");
  if (!self.is_string()) return fallback;
  if (const auto number = parse_int(self.as_text()->view(), args.has(1) ? to_int(args[1], "base") : 10))
    return *number;
  const auto real = parse_float(self.as_text()->view());
  return real && std::isfinite(*real) ? truncated(*real) : fallback;
}

Value as_float(Interpreter&, const Value& self, const Args& args) {
  require_defined(self);
  const Value fallback = args.has(0) ? args[0] : Value(0.0);
  if (const double* real = self.get_if<double>()) return *real;
  if (self.is_number()) return static_cast<double>(to_int(self, "value"));
  if (!self.is_string()) return fallback;
  const auto real = parse_float(self.as_text()->view());
  return real ? Value(*real) : fallback;
}

Value absolute(Interpreter&, const Value& self, const Args&) {
  if (const double* real = self.get_if<double>()) return std::abs(*real);
  const int64_t number = to_int(self, "value");
  return number < 0 ? apply(UnaryOp::kNegative, self) : Value(number);
}

// Rounds half to even on the exact decimal value, as Python's round(): the C library prints that way.
Value round_number(Interpreter&, const Value& self, const Args& args) {
  const int64_t precision = args.has(0) ? to_int(args[0], "precision") : 0;
  const std::string_view method = args.has(1) && args[1].is_string() ? args[1].as_text()->view() : "common";
  if (!self.is_number()) fail(ErrorKind::kInvalid, "needs a number, got '{}'", self.type_name());
  if (precision < 0 || precision > 300) fail(ErrorKind::kInvalid, "precision {} is not in 0..300", precision);
  const bool is_real = self.get_if<double>() != nullptr;
  const double number = is_real ? *self.get_if<double>() : static_cast<double>(to_int(self, "value"));
  if (method == "common") {
    if (!is_real) return to_int(self, "value");
    if (!std::isfinite(number)) return number;
    return std::strtod(fmt::format("{:.{}f}", number, precision).c_str(), nullptr);
  }
  if (method != "ceil" && method != "floor")
    fail(ErrorKind::kInvalid, "method must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  return (method == "ceil" ? std::ceil(number * scale) : std::floor(number * scale)) / scale;
}

// ---- Sequences ----

Value as_list(Interpreter& interpreter, const Value& self, const Args&) {
  return Value::list(iterate(self, interpreter.budget()));
}

Value first(Interpreter& interpreter, const Value& self, const Args&) {
  if (self.is_string()) return interpreter.item(self, Value(0));
  const std::vector<Value> items = iterate(self, interpreter.budget());
  return items.empty() ? Value::undefined(Text::of_static("first item of an empty sequence")) : items.front();
}

Value last(Interpreter& interpreter, const Value& self, const Args&) {
  if (self.is_string()) return interpreter.item(self, Value(-1));
  if (const List* list = self.as_list(); list && !list->has_length())
    fail(ErrorKind::kInvalid, "a stream has no last item; use |list|last");
  const std::vector<Value> items = iterate(self, interpreter.budget());
  return items.empty() ? Value::undefined(Text::of_static("last item of an empty sequence")) : items.back();
}

Value reverse(Interpreter& interpreter, const Value& self, const Args&) {
  if (self.is_string()) return slice(self, None{}, None{}, Value(-1), interpreter.budget());
  std::vector<Value> items = iterate(self, interpreter.budget());
  std::reverse(items.begin(), items.end());
  return stream(std::move(items));
}

// The value at a path such as "function.name" or 0; whole numbers in it are indices.
Value at_path(Interpreter& interpreter, const Value& object, const Value& path) {
  if (!path.is_string()) return interpreter.item(object, path);
  Value value = object;
  for (const std::string_view part : split(path.as_text()->view(), ".")) {
    const bool is_index =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    value = interpreter.item(
        value, is_index ? Value(parse_int(part, 10).value_or(0)) : Value(path.as_text()->slice(part)));
  }
  return value;
}

Value join(Interpreter& interpreter, const Value& self, const Args& args) {
  Budget& budget = interpreter.budget();
  const Text separator = args.has(0) ? as_shared_text(args[0], budget) : Text();
  std::string result;
  bool is_first = true;
  for (const Value& item : iterate(self, budget)) {
    const bool by_path = args.has(1) && !args[1].is_none();
    const Text text = as_shared_text(by_path ? at_path(interpreter, item, args[1]) : item, budget);
    budget.build(text.view().size() + separator.view().size());
    if (!std::exchange(is_first, false)) result.append(separator.view());
    result.append(text.view());
  }
  return Value(std::move(result));
}

Value map(Interpreter& interpreter, const Value& self, const Args& args) {
  std::vector<Value> results;
  const auto named = [&](std::string_view name) {
    return std::find_if(args.named.begin(), args.named.end(),
                        [&](const auto& arg) { return arg.first == name; });
  };
  const auto attribute = named("attribute");
  const auto fallback = named("default");
  const bool by_path = args.positional.empty() && attribute != args.named.end();
  if (!by_path && (args.positional.empty() || !args[0].is_string()))
    fail(ErrorKind::kInvalid, "needs the name of a filter or attribute=");
  if (!self.truthy()) return stream({});
  for (const Value& item : iterate(self, interpreter.budget())) {
    if (by_path) {
      Value found = at_path(interpreter, item, attribute->second);
      const bool use_fallback =
          found.is_undefined() && fallback != args.named.end() && !fallback->second.is_none();
      results.push_back(use_fallback ? fallback->second : found);
    } else {
      Args rest{{args.positional.begin() + 1, args.positional.end()}, args.named};
      results.push_back(interpreter.filter(args[0].as_text()->view(), item, std::move(rest)));
    }
  }
  return stream(std::move(results));
}

// select, reject and their attr forms: [attribute] [test [test arguments]].
template <bool keep, bool by_attribute>
Value select(Interpreter& interpreter, const Value& self, const Args& args) {
  constexpr size_t kTest = by_attribute ? 1 : 0;
  if (by_attribute && args.positional.empty()) fail(ErrorKind::kInvalid, "needs an attribute name");
  const bool has_test = args.positional.size() > kTest;
  if (has_test && !args[kTest].is_string()) fail(ErrorKind::kInvalid, "needs the name of a test");
  if (!self.truthy()) return stream({});
  std::vector<Value> kept;
  for (const Value& item : iterate(self, interpreter.budget())) {
    const Value subject = by_attribute ? at_path(interpreter, item, args[0]) : item;
    bool passes = subject.truthy();
    if (has_test) {
      Args rest{{args.positional.begin() + kTest + 1, args.positional.end()}, args.named};
      passes = interpreter.test(args[kTest].as_text()->view(), subject, std::move(rest));
    }
    if (passes == keep) kept.push_back(item);
  }
  return stream(std::move(kept));
}

// What sorting and comparing looks at: an attribute if given, or several ("a,b"), without case unless asked.
Value sort_key(Interpreter& interpreter, const Value& item, const Value& attribute, bool case_sensitive) {
  if (const Text* list = attribute.as_text(); list && list->view().find(',') != std::string_view::npos) {
    std::vector<Value> keys;
    for (const std::string_view one : split(list->view(), ","))
      keys.push_back(sort_key(interpreter, item, Value(list->slice(one)), case_sensitive));
    return Value::list(std::move(keys));
  }
  Value key = attribute.is_undefined() || attribute.is_none() ? item : at_path(interpreter, item, attribute);
  if (case_sensitive || !key.is_string()) return key;
  interpreter.budget().build(key.as_text()->view().size());
  return Value(lower(key.as_text()->view()));
}

using Keyed = std::pair<Value, Value>;  // key, item

void sort_keyed(std::vector<Keyed>& keyed, bool descending, Budget& budget) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    return descending ? compare(b.first, a.first, "<", budget) < 0
                      : compare(a.first, b.first, "<", budget) < 0;
  });
}

Value sort(Interpreter& interpreter, const Value& self, const Args& args) {
  std::vector<Keyed> keyed;
  for (const Value& item : iterate(self, interpreter.budget()))
    keyed.emplace_back(sort_key(interpreter, item, args[2], args[1].truthy()), item);
  sort_keyed(keyed, args[0].truthy(), interpreter.budget());
  std::vector<Value> sorted;
  for (Keyed& entry : keyed) sorted.push_back(std::move(entry.second));
  return Value::list(std::move(sorted));
}

Value dictsort(Interpreter& interpreter, const Value& self, const Args& args) {
  const Dict* dict = self.as_dict();
  if (!dict) fail(ErrorKind::kInvalid, "needs a dict, got '{}'", self.type_name());
  const bool by_value = args.has(1) && args[1].is_string() && args[1].as_text()->view() == "value";
  if (args.has(1) && !by_value && !(args[1].is_string() && args[1].as_text()->view() == "key"))
    fail(ErrorKind::kInvalid, "sorts by 'key' or 'value'");
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : dict->entries())
    keyed.emplace_back(sort_key(interpreter, by_value ? value : key, Value(), args[0].truthy()),
                       Value::list({key, value}, List::Kind::kTuple));
  sort_keyed(keyed, args[2].truthy(), interpreter.budget());
  std::vector<Value> sorted;
  for (Keyed& entry : keyed) sorted.push_back(std::move(entry.second));
  return Value::list(std::move(sorted));
}

template <bool want_max>
Value extreme(Interpreter& interpreter, const Value& self, const Args& args) {
  std::optional<Keyed> best;
  for (const Value& item : iterate(self, interpreter.budget())) {
    Value key = sort_key(interpreter, item, args[1], args[0].truthy());
    const bool better = !best || (want_max ? compare(key, best->first, ">", interpreter.budget()) > 0
                                           : compare(key, best->first, "<", interpreter.budget()) < 0);
    if (better) best = {std::move(key), item};
  }
  return best ? best->second : Value::undefined(Text::of_static("extreme of an empty sequence"));
}

Value unique(Interpreter& interpreter, const Value& self, const Args& args) {
  std::vector<Value> keys;
  std::vector<Value> kept;
  for (const Value& item : iterate(self, interpreter.budget())) {
    Value key = sort_key(interpreter, item, args[1], args[0].truthy());
    const bool seen = std::any_of(keys.begin(), keys.end(),
                                  [&](const Value& old) { return equal(old, key, interpreter.budget()); });
    if (seen) continue;
    keys.push_back(std::move(key));
    kept.push_back(item);
  }
  return stream(std::move(kept));
}

// (key, items) for each key, in the order of keys; the key as the first of its items has it.
Value groupby(Interpreter& interpreter, const Value& self, const Args& args) {
  const auto key_of = [&](const Value& item) {
    Value key = at_path(interpreter, item, args[0]);
    return key.is_undefined() && args.has(1) ? args[1] : key;
  };
  std::vector<Keyed> keyed;
  for (const Value& item : iterate(self, interpreter.budget()))
    keyed.emplace_back(sort_key(interpreter, key_of(item), Value(), args[2].truthy()), item);
  sort_keyed(keyed, /*descending=*/false, interpreter.budget());
  std::vector<Value> groups;
  for (size_t i = 0; i < keyed.size();) {
    std::vector<Value> members;
    const Value& key = keyed[i].first;
    for (; i < keyed.size() && equal(keyed[i].first, key, interpreter.budget()); ++i)
      members.push_back(keyed[i].second);
    List group{.kind = List::Kind::kTuple, .is_group = true};
    group.items = {key_of(members.front()), Value::list(std::move(members))};
    group.depth = 1 + std::max(group.items[0].depth(), group.items[1].depth());
    groups.emplace_back(std::make_shared<const List>(std::move(group)));
  }
  return Value::list(std::move(groups));
}

// Lists of `linecount` items each; `fill_with` makes the last one as long.
Value batch(Interpreter& interpreter, const Value& self, const Args& args) {
  const int64_t size = to_int(args[0], "linecount");
  if (size < 1) fail(ErrorKind::kInvalid, "linecount must be at least 1, got {}", size);
  std::vector<Value> rows;
  std::vector<Value> row;
  for (Value& item : iterate(self, interpreter.budget())) {
    if (std::ssize(row) == size) rows.push_back(Value::list(std::exchange(row, {})));
    row.push_back(std::move(item));
  }
  if (!row.empty() && args.has(1) && !args[1].is_none()) {
    interpreter.budget().build(static_cast<size_t>(size), sizeof(Value));
    row.resize(static_cast<size_t>(size), args[1]);
  }
  if (!row.empty()) rows.push_back(Value::list(std::move(row)));
  return stream(std::move(rows));
}

// `slices` lists, the first ones longer by one; `fill_with` makes up for that.
Value slices(Interpreter& interpreter, const Value& self, const Args& args) {
  const std::vector<Value> items = iterate(self, interpreter.budget());
  const int64_t count = to_int(args[0], "slices");
  if (count < 1) fail(ErrorKind::kInvalid, "slices must be at least 1, got {}", count);
  interpreter.budget().build(static_cast<size_t>(count), sizeof(Value));
  const int64_t longer = std::ssize(items) % count;
  std::vector<Value> columns;
  auto at = items.begin();
  for (int64_t i = 0; i < count; ++i) {
    const auto end = at + std::ssize(items) / count + (i < longer ? 1 : 0);
    std::vector<Value> column(at, end);
    if (i >= longer && args.has(1) && !args[1].is_none()) column.push_back(args[1]);
    columns.push_back(Value::list(std::move(column)));
    at = end;
  }
  return stream(std::move(columns));
}

Value sum(Interpreter& interpreter, const Value& self, const Args& args) {
  Value total = args.has(1) ? args[1] : Value(0);
  for (const Value& item : iterate(self, interpreter.budget())) {
    const bool by_path = args.has(0) && !args[0].is_none();
    total = apply(BinaryOp::kAdd, total, by_path ? at_path(interpreter, item, args[0]) : item,
                  interpreter.budget());
  }
  return total;
}

Value items(Interpreter& interpreter, const Value& self, const Args&) {
  std::vector<Value> pairs;
  if (self.is_undefined()) return stream({});
  const Dict* dict = self.as_dict();
  if (!dict) fail(ErrorKind::kInvalid, "needs a mapping, got '{}'", self.type_name());
  interpreter.budget().build(dict->entries().size(), sizeof(Value));
  for (const auto& [key, value] : dict->entries())
    pairs.push_back(Value::list({key, value}, List::Kind::kTuple));
  return stream(std::move(pairs));
}

Value fallback(Interpreter&, const Value& self, const Args& args) {
  const bool replaces = self.is_undefined() || (args[1].truthy() && !self.truthy());
  if (!replaces) return self;
  return args.has(0) ? args[0] : Value(Text());
}

Value count(Interpreter&, const Value& self, const Args&) { return length(self); }

constexpr Builtin kFilters[] = {
    {"abs", "", absolute},
    {"batch", "linecount fill_with?", batch},
    {"capitalize", "", map_text<capitalize>},
    {"count", "", count},
    {"d", "default_value? boolean?", fallback},
    {"default", "default_value? boolean?", fallback},
    {"dictsort", "case_sensitive? by? reverse?", dictsort},
    {"e", "", map_text<escape_html>},
    {"escape", "", map_text<escape_html>},
    {"first", "", first},
    {"float", "default?", as_float},
    {"groupby", "attribute default? case_sensitive?", groupby},
    {"indent", "width? first? blank?", indent},
    {"int", "default? base?", as_int},
    {"items", "", items},
    {"join", "d? attribute?", join},
    {"last", "", last},
    {"length", "", count},
    {"list", "", as_list},
    {"lower", "", map_text<lower>},
    {"map", "*", map},
    {"max", "case_sensitive? attribute?", extreme<true>},
    {"min", "case_sensitive? attribute?", extreme<false>},
    {"reject", "*", select<false, false>},
    {"rejectattr", "*", select<false, true>},
    {"replace", "old new count?", replace_text},
    {"reverse", "", reverse},
    {"round", "precision? method?", round_number},
    {"safe", "", as_string},  // no auto-escaping: nothing to mark
    {"select", "*", select<true, false>},
    {"selectattr", "*", select<true, true>},
    {"slice", "slices fill_with?", slices},
    {"sort", "reverse? case_sensitive? attribute?", sort},
    {"string", "", as_string},
    {"sum", "attribute? start?", sum},
    {"title", "", map_text<title_filter>},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", tojson},
    {"trim", "chars?", trim},
    {"unique", "case_sensitive? attribute?", unique},
    {"upper", "", map_text<upper>},
};

}  // namespace

const Builtin* find_filter(std::string_view name) {
  const auto at =
      std::find_if(std::begin(kFilters), std::end(kFilters), [&](auto& b) { return b.name == name; });
  return at == std::end(kFilters) ? nullptr : at;
}

}  // namespace longspan::text::jinja
