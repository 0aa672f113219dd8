// Methods of strings, dicts, lists and loops.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"
#include "text/utf8.h"

namespace longspan::text::jinja {
namespace {

std::string_view view(const Value& self) { return self.as_text()->view(); }

std::string_view string_argument(const Value& value, std::string_view what) {
  if (!value.is_string()) fail(ErrorKind::kInvalid, "{} must be a string, got '{}'", what, value.type_name());
  return view(value);
}

// ---- str ----

template <Side side>
Value str_strip(Interpreter&, const Value& self, const Args& args) {
  const Text& text = *self.as_text();
  if (!args.has(0) || args[0].is_none()) return Value(text.slice(strip(text.view(), side)));
  return Value(text.slice(strip_chars(text.view(), string_argument(args[0], "chars"), side)));
}

template <std::string (*map)(std::string_view)>
Value str_map(Interpreter& interpreter, const Value& self, const Args&) {
  interpreter.budget().build(view(self).size());
  return Value(map(view(self)));
}

Value pieces(Interpreter& interpreter, const Text& text, const std::vector<std::string_view>& parts) {
  interpreter.budget().build(parts.size(), sizeof(Value));
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.emplace_back(text.slice(part));
  return Value::list(std::move(items));
}

using Splitter = std::vector<std::string_view> (*)(std::string_view, std::string_view, int64_t);

template <Splitter splitter>
Value str_split(Interpreter& interpreter, const Value& self, const Args& args) {
  const bool at_spaces = !args.has(0) || args[0].is_none();
  const std::string_view separator = at_spaces ? std::string_view() : string_argument(args[0], "sep");
  if (!at_spaces && separator.empty()) fail(ErrorKind::kInvalid, "empty separator");
  const int64_t max_splits = args.has(1) ? to_int(args[1], "maxsplit") : -1;
  return pieces(interpreter, *self.as_text(), splitter(view(self), separator, max_splits));
}

Value str_splitlines(Interpreter& interpreter, const Value& self, const Args& args) {
  return pieces(interpreter, *self.as_text(), split_lines(view(self), args[0].truthy()));
}

template <bool from_right>
Value str_partition(Interpreter&, const Value& self, const Args& args) {
  const Text& text = *self.as_text();
  const std::string_view separator = string_argument(args[0], "sep");
  if (separator.empty()) fail(ErrorKind::kInvalid, "empty separator");
  const size_t at = from_right ? text.view().rfind(separator) : text.view().find(separator);
  const Value none(Text{});
  if (at == std::string_view::npos) {
    if (from_right) return Value::list({none, none, self}, List::Kind::kTuple);
    return Value::list({self, none, none}, List::Kind::kTuple);
  }
  return Value::list({Value(text.slice(text.view().substr(0, at))), args[0],
                      Value(text.slice(text.view().substr(at + separator.size())))},
                     List::Kind::kTuple);
}

// self[start:end], the further arguments of the methods that search: a part of the text, and the code points
// in front of it. None: start lies behind the end.
struct Part {
  std::string_view text;
  int64_t start;
};
std::optional<Part> part_of(const Value& self, const Args& args) {
  const std::string_view whole = view(self);
  if (!args.has(1) && !args.has(2)) return Part{whole, 0};
  const int64_t size = count_code_points(whole);
  const auto bound = [&](size_t i, int64_t otherwise) {
    if (!args.has(i) || args[i].is_none()) return otherwise;
    const int64_t at = to_int(args[i], i == 1 ? "start" : "end");
    return at < 0 ? std::max<int64_t>(at + size, 0) : at;
  };
  const int64_t start = bound(1, 0);
  const int64_t end = std::min(bound(2, size), size);
  if (start > end) return std::nullopt;
  const std::string_view rest = whole.substr(offset_of(whole, start));
  return Part{rest.substr(0, offset_of(rest, end - start)), start};
}

// str.startswith and str.endswith take a string or a tuple of them.
template <bool at_start>
Value str_has_affix(Interpreter&, const Value& self, const Args& args) {
  const std::optional<Part> part = part_of(self, args);
  const auto matches = [&](const Value& affix) {
    const std::string_view wanted = string_argument(affix, at_start ? "prefix" : "suffix");
    return part && (at_start ? part->text.starts_with(wanted) : part->text.ends_with(wanted));
  };
  if (const List* list = args[0].as_list(); list && list->kind == List::Kind::kTuple)
    return std::any_of(list->items.begin(), list->items.end(), matches);
  return matches(args[0]);
}

template <bool at_start>
Value str_remove_affix(Interpreter&, const Value& self, const Args& args) {
  const std::string_view affix = string_argument(args[0], at_start ? "prefix" : "suffix");
  std::string_view text = view(self);
  if (at_start && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!at_start && text.ends_with(affix)) text.remove_suffix(affix.size());
  return Value(self.as_text()->slice(text));
}

Value str_replace(Interpreter& interpreter, const Value& self, const Args& args) {
  return interpreter.filter(
      "replace", self, {{args[0], Value(Text(std::string(string_argument(args[1], "new")))), args[2]}, {}});
}

template <bool from_right>
Value str_find(Interpreter&, const Value& self, const Args& args) {
  const std::string_view needle = string_argument(args[0], "sub");
  const std::optional<Part> part = part_of(self, args);
  if (!part) return -1;
  const size_t at = from_right ? part->text.rfind(needle) : part->text.find(needle);
  return at == std::string_view::npos ? -1 : part->start + count_code_points(part->text.substr(0, at));
}

template <bool from_right>
Value str_index(Interpreter& interpreter, const Value& self, const Args& args) {
  const Value at = str_find<from_right>(interpreter, self, args);
  if (*at.as_int() < 0) fail(ErrorKind::kInvalid, "substring not found");
  return at;
}

Value str_count(Interpreter&, const Value& self, const Args& args) {
  const std::string_view needle = string_argument(args[0], "sub");
  const std::optional<Part> part = part_of(self, args);
  return part ? count_occurrences(part->text, needle) : 0;
}

enum class Align : uint8_t { kLeft, kRight, kCenter };

// ljust, rjust and center.
template <Align align>
Value str_justify(Interpreter& interpreter, const Value& self, const Args& args) {
  const std::string_view fill = args.has(1) ? string_argument(args[1], "fillchar") : " ";
  if (count_code_points(fill) != 1) fail(ErrorKind::kInvalid, "fillchar must be one character");
  const int64_t width = to_int(args[0], "width");
  const int64_t room = std::max<int64_t>(width - count_code_points(view(self)), 0);
  // Of an odd room, center gives one more to the left where the width is odd, too.
  const int64_t left = align == Align::kLeft    ? 0
                       : align == Align::kRight ? room
                                                : room / 2 + (room & width & 1);
  interpreter.budget().build(static_cast<size_t>(room), fill.size());
  std::string result;
  for (int64_t i = 0; i < left; ++i) result += fill;
  result += view(self);
  for (int64_t i = left; i < room; ++i) result += fill;
  return Value(std::move(result));
}

Value str_zfill(Interpreter& interpreter, const Value& self, const Args& args) {
  std::string text(view(self));
  const int64_t room = to_int(args[0], "width") - count_code_points(text);
  interpreter.budget().build(static_cast<size_t>(std::max<int64_t>(room, 0)));
  if (room > 0)
    text.insert(text.starts_with('-') || text.starts_with('+') ? 1 : 0, static_cast<size_t>(room), '0');
  return Value(std::move(text));
}

Value str_join(Interpreter& interpreter, const Value& self, const Args& args) {
  std::vector<Value> items = iterate(args[0], interpreter.budget());
  for (const Value& item : items) string_argument(item, "each element");
  return interpreter.filter("join", Value::list(std::move(items)), {{self}, {}});
}

template <class Predicate>
bool all_code_points(std::string_view text, Predicate predicate) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (!predicate(c.value)) return false;
    at += c.size_bytes;
  }
  return !text.empty();
}

Value str_isspace(Interpreter&, const Value& self, const Args&) {
  return all_code_points(view(self), is_space);
}
Value str_isdigit(Interpreter&, const Value& self, const Args&) {
  return all_code_points(view(self), [](char32_t c) { return c >= '0' && c <= '9'; });
}
Value str_isalpha(Interpreter&, const Value& self, const Args&) {
  return all_code_points(view(self), is_letter);
}
Value str_isalnum(Interpreter&, const Value& self, const Args&) {
  return all_code_points(view(self), [](char32_t c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

template <std::string (*map)(std::string_view)>
Value str_is_case(Interpreter&, const Value& self, const Args&) {
  return map(view(self)) == view(self) && upper(view(self)) != lower(view(self));
}

constexpr Builtin kStringMethods[] = {
    {"strip", "chars?", str_strip<Side::kBoth>},
    {"lstrip", "chars?", str_strip<Side::kLeft>},
    {"rstrip", "chars?", str_strip<Side::kRight>},
    {"upper", "", str_map<upper>},
    {"lower", "", str_map<lower>},
    {"title", "", str_map<title>},
    {"capitalize", "", str_map<capitalize>},
    {"split", "sep? maxsplit?", str_split<split>},
    {"rsplit", "sep? maxsplit?", str_split<rsplit>},
    {"splitlines", "keepends?", str_splitlines},
    {"partition", "sep", str_partition<false>},
    {"rpartition", "sep", str_partition<true>},
    {"startswith", "prefix start? end?", str_has_affix<true>},
    {"endswith", "suffix start? end?", str_has_affix<false>},
    {"removeprefix", "prefix", str_remove_affix<true>},
    {"removesuffix", "suffix", str_remove_affix<false>},
    {"replace", "old new count?", str_replace},
    {"find", "sub start? end?", str_find<false>},
    {"rfind", "sub start? end?", str_find<true>},
    {"index", "sub start? end?", str_index<false>},
    {"rindex", "sub start? end?", str_index<true>},
    {"count", "sub start? end?", str_count},
    {"ljust", "width fillchar?", str_justify<Align::kLeft>},
    {"rjust", "width fillchar?", str_justify<Align::kRight>},
    {"center", "width fillchar?", str_justify<Align::kCenter>},
    {"zfill", "width", str_zfill},
    {"join", "iterable", str_join},
    {"isspace", "", str_isspace},
    {"isdigit", "", str_isdigit},
    {"isnumeric", "", str_isdigit},
    {"isdecimal", "", str_isdigit},
    {"isalpha", "", str_isalpha},
    {"isalnum", "", str_isalnum},
    {"isupper", "", str_is_case<upper>},
    {"islower", "", str_is_case<lower>},
};

// ---- dict ----

template <List::Kind kind>
Value dict_view(Interpreter& interpreter, const Value& self, const Args&) {
  const auto& entries = self.as_dict()->entries();
  interpreter.budget().build(entries.size(), sizeof(Value));
  std::vector<Value> items;
  items.reserve(entries.size());
  for (const auto& [key, value] : entries)
    items.push_back(kind == List::Kind::kKeys     ? key
                    : kind == List::Kind::kValues ? value
                                                  : Value::list({key, value}, List::Kind::kTuple));
  return Value::list(std::move(items), kind);
}

Value dict_get(Interpreter&, const Value& self, const Args& args) {
  if (const Value* found = self.as_dict()->find(args[0])) return *found;
  return args.has(1) ? args[1] : Value(None{});
}

constexpr Builtin kDictMethods[] = {
    {"items", "", dict_view<List::Kind::kItems>},
    {"keys", "", dict_view<List::Kind::kKeys>},
    {"values", "", dict_view<List::Kind::kValues>},
    {"get", "key default?", dict_get},
    {"copy", "", [](Interpreter&, const Value& self, const Args&) { return self; }},
};

// ---- list, tuple ----

Value list_index(Interpreter& interpreter, const Value& self, const Args& args) {
  const auto& items = self.as_list()->items;
  for (size_t i = 0; i < items.size(); ++i)
    if (equal(items[i], args[0], interpreter.budget())) return static_cast<int64_t>(i);
  fail(ErrorKind::kInvalid, "the value is not in the list");
}

Value list_count(Interpreter& interpreter, const Value& self, const Args& args) {
  const auto& items = self.as_list()->items;
  return std::count_if(items.begin(), items.end(),
                       [&](const Value& item) { return equal(item, args[0], interpreter.budget()); });
}

constexpr Builtin kListMethods[] = {
    {"index", "value", list_index},
    {"count", "value", list_count},
    {"copy", "", [](Interpreter&, const Value& self, const Args&) { return self; }},
};

// ---- loop ----

Value loop_cycle(Interpreter&, const Value& self, const Args& args) {
  if (args.positional.empty()) fail(ErrorKind::kInvalid, "needs at least one value");
  return args.positional[(*self.get_if<LoopPtr>())->index % args.positional.size()];
}

// Whether the values differ from those of the call before.
Value loop_changed(Interpreter& interpreter, const Value& self, const Args& args) {
  Loop& loop = **self.get_if<LoopPtr>();
  if (!loop.last_seen) interpreter.clear_at_end(*self.get_if<LoopPtr>());
  const auto same = [&](const Value& a, const Value& b) { return equal(a, b, interpreter.budget()); };
  const bool changed = !loop.last_seen || !std::equal(args.positional.begin(), args.positional.end(),
                                                      loop.last_seen->begin(), loop.last_seen->end(), same);
  if (changed) loop.last_seen = args.positional;
  return changed;
}

constexpr Builtin kLoopMethods[] = {{"changed", "*", loop_changed}, {"cycle", "*", loop_cycle}};

template <size_t n>
const Builtin* find_in(const Builtin (&table)[n], std::string_view name) {
  const auto at = std::find_if(std::begin(table), std::end(table), [&](auto& b) { return b.name == name; });
  return at == std::end(table) ? nullptr : at;
}

}  // namespace

const Builtin* find_method(const Value& self, std::string_view name) {
  if (self.is_string()) return find_in(kStringMethods, name);
  if (self.as_dict()) return find_in(kDictMethods, name);
  if (const List* list = self.as_list(); list && list->has_index()) return find_in(kListMethods, name);
  if (self.get_if<LoopPtr>()) return find_in(kLoopMethods, name);
  return nullptr;
}

bool is_mutating_method(const Value& self, std::string_view name) {
  static constexpr std::string_view kOfDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  return self.as_dict() && std::find(std::begin(kOfDict), std::end(kOfDict), name) != std::end(kOfDict);
}

}  // namespace longspan::text::jinja
