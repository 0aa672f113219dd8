// Values of the template language, with the Python semantics that chat templates observe. Containers and
// strings are immutable and shared: copying a value, slicing or trimming a string copies no text.
#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/budget.h"

namespace longspan::text::jinja {

// An immutable slice of a shared string. Valid UTF-8; slices are cut at code points.
class Text {
 public:
  Text() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a string is a text
  Text(std::string text) : owner_(std::make_shared<const std::string>(std::move(text))), view_(*owner_) {}
  static Text of_static(std::string_view text) { return Text(nullptr, text); }  // text lives forever

  std::string_view view() const { return view_; }
  // `part` must lie within view().
  Text slice(std::string_view part) const { return Text(owner_, part); }

 private:
  Text(std::shared_ptr<const std::string> owner, std::string_view view)
      : owner_(std::move(owner)), view_(view) {}

  std::shared_ptr<const std::string> owner_;
  std::string_view view_;
};

class Value;
class Interpreter;
struct Args;

// A name or attribute that is not there. Renders as "", iterates as empty, is false; other uses are errors.
struct Undefined {
  Text name;
};
struct None {};

// A Python sequence. The kind decides how it prints and what it allows: a view (dict.items()) has a length
// but no index, a stream (the result of map, select, items...) can only be iterated and is always true.
struct List {
  enum class Kind : uint8_t { kList, kTuple, kRange, kKeys, kValues, kItems, kStream };
  std::vector<Value> items;
  Kind kind = Kind::kList;
  int depth = 1;          // nesting, bounded so that recursion over values is bounded
  bool is_group = false;  // a tuple of groupby: has the attributes grouper and list

  bool has_length() const { return kind != Kind::kStream; }
  bool has_index() const { return kind <= Kind::kRange; }
};

// Keys in order of insertion. Large dicts have an index, so that lookups do not become quadratic.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;
  explicit Dict(std::vector<Entry> entries);  // a repeated key keeps its place and takes the last value

  const std::vector<Entry>& entries() const { return entries_; }
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  int depth() const { return depth_; }

 private:
  Value* locate(const Value& key);

  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, size_t> index_;  // of the string keys; empty for small dicts
  int depth_ = 1;
};

// namespace(...): the one mutable thing. Owned by the interpreter, which breaks reference cycles at the end.
struct Namespace {
  std::vector<std::pair<Text, Value>> fields;
  Value* find(std::string_view name);
  void set(const Text& name, Value value);
};

// The `loop` variable of one running for statement.
struct Loop {
  std::vector<Value> items;
  size_t index = 0;
  int64_t depth0 = 0;  // of loops in each other through loop(...)
  // loop(items) of a recursive loop: the text that its body makes of them. Empty: the loop is not recursive.
  std::function<Value(Interpreter&, const Args&)> recurse = {};
  std::optional<std::vector<Value>> last_seen;  // by loop.changed(...); "= {}" would want a whole Value here
};

struct Function {
  Text name;
  std::function<Value(Interpreter&, const Args&)> call;
};

using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using NamespacePtr = std::shared_ptr<Namespace>;
using LoopPtr = std::shared_ptr<Loop>;
using FunctionPtr = std::shared_ptr<const Function>;

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, int64_t, double, Text, ListPtr, DictPtr, NamespacePtr,
                            LoopPtr, FunctionPtr>;

  Value() = default;  // undefined
  // NOLINTBEGIN(google-explicit-constructor): whatever the language can hold is a value
  Value(None) : data_(None{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(std::same_as<bool> auto value) : data_(value) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) Value(T value) : data_(static_cast<int64_t>(value)) {}
  Value(double value) : data_(value) {}
  Value(Text text) : data_(std::move(text)) {}
  Value(std::string text) : data_(Text(std::move(text))) {}
  Value(ListPtr list) : data_(std::move(list)) {}
  Value(DictPtr dict) : data_(std::move(dict)) {}
  Value(NamespacePtr fields) : data_(std::move(fields)) {}
  Value(LoopPtr loop) : data_(std::move(loop)) {}
  Value(FunctionPtr function) : data_(std::move(function)) {}
  // NOLINTEND(google-explicit-constructor)

  // Throw Error when the nesting is deeper than kMaxValueDepth.
  static Value list(std::vector<Value> items, List::Kind kind = List::Kind::kList);
  static Value dict(std::vector<Dict::Entry> entries);
  static Value undefined(Text name) { return Value(Undefined{std::move(name)}); }

  const Data& data() const { return data_; }
  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }
  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_number() const { return as_int() != nullptr || get_if<double>() || is_bool(); }
  bool is_string() const { return std::holds_alternative<Text>(data_); }
  const int64_t* as_int() const { return get_if<int64_t>(); }
  const Text* as_text() const { return get_if<Text>(); }
  const List* as_list() const;
  const Dict* as_dict() const;

  bool truthy() const;
  int depth() const;
  std::string_view type_name() const;  // Python's name, for messages: "str", "NoneType", "dict"

 private:
  Data data_;
};

inline constexpr int kMaxValueDepth = 200;

// Arguments of a call, evaluated.
struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;

  // The i-th positional argument; undefined when it was not given.
  const Value& operator[](size_t i) const;
  bool has(size_t i) const { return !(*this)[i].is_undefined(); }
};

// Python's str() and repr().
std::string to_text(const Value& value, Budget& budget);
std::string repr(const Value& value, Budget& budget);
std::string format_float(double value);
// str(), without a copy when the value is a string already.
Text as_shared_text(const Value& value, Budget& budget);

bool equal(const Value& a, const Value& b, Budget& budget);
// <, > between numbers, strings, lists; throws Error for anything else. `op` is for the message.
std::partial_ordering compare(const Value& a, const Value& b, std::string_view op, Budget& budget);

// len(); throws Error when the value has no length.
int64_t length(const Value& value);
bool has_length(const Value& value);
// The elements in order: list items, dict keys, code points of a string, nothing for undefined. Throws
// otherwise.
std::vector<Value> iterate(const Value& value, Budget& budget);
bool is_iterable(const Value& value);

}  // namespace longspan::text::jinja
