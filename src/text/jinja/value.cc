#include "text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/strings.h"
#include "text/utf8.h"

namespace longspan::text::jinja {
namespace {

constexpr size_t kIndexFrom = 16;  // entries from which a dict gets an index

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;  // clang 14 does not deduce aggregates

int checked_depth(int depth) {
  if (depth > kMaxValueDepth) fail(ErrorKind::kInvalid, "value nested deeper than {} levels", kMaxValueDepth);
  return depth;
}

std::string joined(const std::vector<Value>& items, Budget& budget) {
  std::string result;
  for (const Value& item : items) {
    if (!result.empty()) result += ", ";
    result += repr(item, budget);
  }
  return result;
}

std::string repr_list(const List& list, Budget& budget) {
  const std::string inner = joined(list.items, budget);
  switch (list.kind) {
    case List::Kind::kTuple:
      return list.items.size() == 1 ? "(" + inner + ",)" : "(" + inner + ")";
    case List::Kind::kKeys:
      return "dict_keys([" + inner + "])";
    case List::Kind::kValues:
      return "dict_values([" + inner + "])";
    case List::Kind::kItems:
      return "dict_items([" + inner + "])";
    default:
      return "[" + inner + "]";
  }
}

std::string repr_dict(const Dict& dict, Budget& budget) {
  std::string result = "{";
  for (const auto& [key, value] : dict.entries()) {
    if (result.size() > 1) result += ", ";
    result += repr(key, budget) + ": " + repr(value, budget);
  }
  return result + "}";
}

double as_double(const Value& value) {
  if (const bool* b = value.get_if<bool>()) return *b ? 1 : 0;
  if (const int64_t* i = value.as_int()) return static_cast<double>(*i);
  return *value.get_if<double>();
}

std::partial_ordering compare_numbers(const Value& a, const Value& b) {
  const auto integer = [](const Value& v) -> std::pair<bool, int64_t> {
    if (const bool* flag = v.get_if<bool>()) return {true, *flag};
    if (const int64_t* i = v.as_int()) return {true, *i};
    return {false, 0};
  };
  const auto [a_is_int, a_int] = integer(a);
  const auto [b_is_int, b_int] = integer(b);
  if (a_is_int && b_is_int) return a_int <=> b_int;
  return as_double(a) <=> as_double(b);
}

bool equal_lists(const List& a, const List& b, Budget& budget) {
  if (a.kind != b.kind || a.kind == List::Kind::kStream || a.items.size() != b.items.size()) return &a == &b;
  for (size_t i = 0; i < a.items.size(); ++i)
    if (!equal(a.items[i], b.items[i], budget)) return false;
  return true;
}

bool equal_dicts(const Dict& a, const Dict& b, Budget& budget) {
  if (a.entries().size() != b.entries().size()) return false;
  return std::all_of(a.entries().begin(), a.entries().end(), [&](const Dict::Entry& entry) {
    const Value* other = b.find(entry.first);
    return other && equal(entry.second, *other, budget);
  });
}

}  // namespace

Dict::Dict(std::vector<Entry> entries) {
  entries_.reserve(entries.size());
  for (Entry& entry : entries) {
    depth_ = std::max(depth_, 1 + std::max(entry.first.depth(), entry.second.depth()));
    if (Value* old = locate(entry.first)) {
      *old = std::move(entry.second);
      continue;
    }
    entries_.push_back(std::move(entry));
    const size_t last = entries_.size() - 1;
    if (entries_.size() == kIndexFrom) {
      for (size_t i = 0; i < last; ++i)
        if (const Text* key = entries_[i].first.as_text()) index_.emplace(key->view(), i);
    }
    if (entries_.size() >= kIndexFrom)
      if (const Text* key = entries_[last].first.as_text()) index_.emplace(key->view(), last);
  }
  checked_depth(depth_);
}

Value* Dict::locate(const Value& key) { return const_cast<Value*>(std::as_const(*this).find(key)); }

const Value* Dict::find(std::string_view key) const {
  if (entries_.size() >= kIndexFrom) {
    const auto found = index_.find(key);
    return found == index_.end() ? nullptr : &entries_[found->second].second;
  }
  for (const auto& [name, value] : entries_)
    if (const Text* text = name.as_text(); text && text->view() == key) return &value;
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (const Text* text = key.as_text()) return find(text->view());
  Budget budget{Limits{}};  // keys are scalars or tuples of them: the cost is bounded by the entries
  for (const auto& [name, value] : entries_)
    if (!name.is_string() && equal(name, key, budget)) return &value;
  return nullptr;
}

Value* Namespace::find(std::string_view name) {
  const auto at = std::find_if(fields.begin(), fields.end(), [&](auto& f) { return f.first.view() == name; });
  return at == fields.end() ? nullptr : &at->second;
}

void Namespace::set(const Text& name, Value value) {
  if (Value* old = find(name.view())) {
    *old = std::move(value);
  } else {
    fields.emplace_back(name, std::move(value));
  }
}

Value Value::list(std::vector<Value> items, List::Kind kind) {
  int depth = 1;
  for (const Value& item : items) depth = std::max(depth, 1 + item.depth());
  return Value(std::make_shared<const List>(List{std::move(items), kind, checked_depth(depth)}));
}

Value Value::dict(std::vector<Dict::Entry> entries) {
  return Value(std::make_shared<const Dict>(std::move(entries)));
}

const List* Value::as_list() const {
  const ListPtr* list = get_if<ListPtr>();
  return list ? list->get() : nullptr;
}

const Dict* Value::as_dict() const {
  const DictPtr* dict = get_if<DictPtr>();
  return dict ? dict->get() : nullptr;
}

int Value::depth() const {
  if (const List* list = as_list()) return list->depth;
  if (const Dict* dict = as_dict()) return dict->depth();
  return 0;
}

bool Value::truthy() const {
  return std::visit(
      Overloaded{
          [](const Undefined&) { return false; }, [](None) { return false; },
          [](bool value) { return value; }, [](int64_t value) { return value != 0; },
          [](double value) { return value != 0; }, [](const Text& text) { return !text.view().empty(); },
          [](const ListPtr& list) { return !list->has_length() || !list->items.empty(); },
          [](const DictPtr& dict) { return !dict->entries().empty(); },
          [](const NamespacePtr&) { return true; }, [](const LoopPtr& loop) { return !loop->items.empty(); },
          [](const FunctionPtr&) { return true; }},
      data_);
}

std::string_view Value::type_name() const {
  if (const List* list = as_list()) {
    static constexpr std::string_view kNames[] = {"list",        "tuple",      "range",    "dict_keys",
                                                  "dict_values", "dict_items", "generator"};
    return kNames[static_cast<size_t>(list->kind)];
  }
  static constexpr std::string_view kNames[] = {"Undefined", "NoneType",    "bool",    "int",
                                                "float",     "str",         "list",    "dict",
                                                "Namespace", "LoopContext", "function"};
  return kNames[data_.index()];
}

const Value& Args::operator[](size_t i) const {
  static const Value kAbsent;
  return i < positional.size() ? positional[i] : kAbsent;
}

// Shortest digits that read back as the same double, laid out as Python does: exponent below 1e-4 and from
// 1e16.
std::string format_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view shortest(buffer, static_cast<size_t>(end - buffer));
  const size_t e = shortest.find('e');
  int exponent = 0;
  const char* digits = shortest.data() + e + (shortest[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits, end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string fixed(buffer, fixed_end);
  if (fixed.find('.') == fixed.npos) fixed += ".0";
  return fixed;
}

std::string repr(const Value& value, Budget& budget) {
  std::string text = std::visit(
      Overloaded{
          [](const Undefined&) { return std::string("Undefined"); }, [](None) { return std::string("None"); },
          [](bool flag) { return std::string(flag ? "True" : "False"); },
          [](int64_t number) { return std::to_string(number); },
          [](double number) { return format_float(number); },
          [](const Text& string) { return quote(string.view()); },
          [&](const ListPtr& list) { return repr_list(*list, budget); },
          [&](const DictPtr& dict) { return repr_dict(*dict, budget); },
          [](const NamespacePtr&) { return std::string("<Namespace>"); },
          [](const LoopPtr& loop) {
            return fmt::format("<LoopContext {}/{}>", loop->index + 1, loop->items.size());
          },
          [](const FunctionPtr& function) { return fmt::format("<function {}>", function->name.view()); }},
      value.data());
  budget.step();
  budget.build(text.size());
  return text;
}

std::string to_text(const Value& value, Budget& budget) {
  if (const Text* text = value.as_text()) {
    budget.build(text->view().size());
    return std::string(text->view());
  }
  return value.is_undefined() ? std::string() : repr(value, budget);
}

Text as_shared_text(const Value& value, Budget& budget) {
  const Text* text = value.as_text();
  return text ? *text : Text(to_text(value, budget));
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.data().index() != b.data().index()) return false;
  return std::visit(Overloaded{[&](const Text& text) { return text.view() == b.as_text()->view(); },
                               [&](const ListPtr& list) { return equal_lists(*list, *b.as_list(), budget); },
                               [&](const DictPtr& dict) { return equal_dicts(*dict, *b.as_dict(), budget); },
                               [&]<class T>(const std::shared_ptr<T>& object) {
                                 return object == *b.get_if<std::shared_ptr<T>>();  // identity
                               },
                               [](const auto&) { return true; }},  // undefined, none
                    a.data());
}

std::partial_ordering compare(const Value& a, const Value& b, std::string_view op, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is_string() && b.is_string()) return a.as_text()->view() <=> b.as_text()->view();
  const List* left = a.as_list();
  const List* right = b.as_list();
  if (left && right && left->kind == right->kind && left->kind <= List::Kind::kTuple) {
    const size_t common = std::min(left->items.size(), right->items.size());
    for (size_t i = 0; i < common; ++i)
      if (!equal(left->items[i], right->items[i], budget))
        return compare(left->items[i], right->items[i], op, budget);
    return left->items.size() <=> right->items.size();
  }
  for (const Value* value : {&a, &b})
    if (const Undefined* missing = value->get_if<Undefined>())
      fail(ErrorKind::kInvalid, "'{}' is undefined", missing->name.view());
  fail(ErrorKind::kInvalid, "'{}' not supported between '{}' and '{}'", op, a.type_name(), b.type_name());
}

bool has_length(const Value& value) {
  const List* list = value.as_list();
  return (list && list->has_length()) || value.is_string() || value.as_dict() || value.is_undefined() ||
         value.get_if<LoopPtr>();
}

int64_t length(const Value& value) {
  if (const Text* text = value.as_text()) return count_code_points(text->view());
  if (const List* list = value.as_list(); list && list->has_length()) return std::ssize(list->items);
  if (const Dict* dict = value.as_dict()) return std::ssize(dict->entries());
  if (const LoopPtr* loop = value.get_if<LoopPtr>()) return std::ssize((*loop)->items);
  if (value.is_undefined()) return 0;
  fail(ErrorKind::kInvalid, "a value of type '{}' has no length", value.type_name());
}

bool is_iterable(const Value& value) {
  return value.is_string() || value.as_list() || value.as_dict() || value.is_undefined() ||
         value.get_if<LoopPtr>();
}

std::vector<Value> iterate(const Value& value, Budget& budget) {
  if (!is_iterable(value))
    fail(ErrorKind::kInvalid, "a value of type '{}' is not iterable", value.type_name());
  std::vector<Value> items;
  if (const List* list = value.as_list()) {
    budget.build(list->items.size(), sizeof(Value));
    return list->items;
  }
  if (const Dict* dict = value.as_dict()) {
    budget.build(dict->entries().size(), sizeof(Value));
    for (const auto& entry : dict->entries()) items.push_back(entry.first);
  } else if (const Text* text = value.as_text()) {
    const std::string_view view = text->view();
    budget.build(view.size(), sizeof(Value));
    for (size_t at = 0; at < view.size();) {
      const size_t size = code_point_at(view, at).size_bytes;
      items.emplace_back(text->slice(view.substr(at, size)));
      at += size;
    }
  }
  return items;
}

}  // namespace longspan::text::jinja
