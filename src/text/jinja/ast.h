// The parsed template. Plain data: built by the parser, read by the interpreter, immutable in between.
#pragma once

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/value.h"

namespace longspan::text::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;  // never null unless a comment says so
using ExprList = std::vector<ExprPtr>;

enum class UnaryOp : uint8_t { kNot, kNegative, kPositive };
enum class BinaryOp : uint8_t {
  kAnd,
  kOr,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kConcat
};
enum class CompareOp : uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

struct CallArgs {
  ExprList positional;
  std::vector<std::pair<Text, ExprPtr>> named;
};

// One line per node: the table of contents of the language.
// clang-format off
struct Literal { Value value; };
struct Name { Text name; };
struct ListDisplay { ExprList items; bool is_tuple; };
struct DictDisplay { std::vector<std::pair<ExprPtr, ExprPtr>> entries; };
struct Attribute { ExprPtr object; Text name; };
struct Item { ExprPtr object, key; };
struct Slice { ExprPtr object, start, stop, step; };      // start, stop, step may be null
struct Unary { UnaryOp op; ExprPtr operand; };
struct Binary { BinaryOp op; ExprPtr left, right; };
struct Comparison { ExprPtr first; std::vector<std::pair<CompareOp, ExprPtr>> rest; };  // a < b <= c
struct Conditional { ExprPtr test, then, otherwise; };    // otherwise may be null: undefined
struct Call { ExprPtr callee; CallArgs args; };
struct Filter { ExprPtr input; Text name; CallArgs args; };  // input is null in a filter or set block: its text
struct Test { ExprPtr input; Text name; CallArgs args; bool negated; };
// clang-format on

struct Expr {
  using Node = std::variant<Literal, Name, ListDisplay, DictDisplay, Attribute, Item, Slice, Unary, Binary,
                            Comparison, Conditional, Call, Filter, Test>;
  int line;
  int depth;  // longest path to a leaf; bounded by the parser, so that recursion over the tree is bounded
  Node node;
};

struct Statement;
using Body = std::vector<Statement>;

// Where an assignment goes: a name, `name.attribute`, or a tuple of targets.
struct Target {
  Text name;
  Text attribute;             // empty unless `set ns.x`
  std::vector<Target> items;  // not empty: a tuple
};

// clang-format off
struct Data { Text text; };
struct Print { ExprPtr value; };
struct If { std::vector<std::pair<ExprPtr, Body>> branches; Body otherwise; };
struct For { Target target; ExprPtr iterable, condition; Body body, otherwise; bool recursive; };  // condition may be null
struct Set { Target target; ExprPtr value; };
struct SetBlock { Target target; ExprPtr filter; Body body; };                     // filter may be null
struct MacroUse { bool varargs, kwargs, caller; };  // which of these names the body reads
struct Macro { Text name; std::vector<std::pair<Text, ExprPtr>> parameters; Body body; MacroUse uses; };  // defaults may be null
struct CallBlock { ExprPtr call; Macro caller; };
struct FilterBlock { ExprPtr filter; Body body; };
struct With { std::vector<std::pair<Target, ExprPtr>> bindings; Body body; };      // also {% generation %}
struct Break {};
struct Continue {};
// clang-format on

struct Statement {
  using Node =
      std::variant<Data, Print, If, For, Set, SetBlock, Macro, CallBlock, FilterBlock, With, Break, Continue>;
  int line;
  Node node;
};

}  // namespace longspan::text::jinja
