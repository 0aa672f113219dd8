// Tests: what may stand after `is`.
#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"

namespace longspan::text::jinja {
namespace {

bool has_case(Interpreter& interpreter, const Value& self, std::string (*map)(std::string_view)) {
  const Text text = as_shared_text(self, interpreter.budget());
  return map(text.view()) == text.view() && upper(text.view()) != lower(text.view());
}

template <CompareOp op>
Value compares(Interpreter& interpreter, const Value& self, const Args& args) {
  return apply(op, self, args[0], interpreter.budget());
}

// self % divisor == remainder, the divisor given or 2.
Value has_remainder(Interpreter& interpreter, const Value& self, const Value& divisor, int64_t remainder) {
  const Value rest = apply(BinaryOp::kModulo, self, divisor, interpreter.budget());
  return equal(rest, Value(remainder), interpreter.budget());
}

bool is_sequence(const Value& self) {
  const List* list = self.as_list();
  return list ? list->has_index() : self.is_string() || self.as_dict() || self.is_undefined();
}

// Python's identity, as far as values have one.
bool is_same(const Value& a, const Value& b, Budget& budget) {
  if (a.data().index() != b.data().index()) return false;
  if (a.as_list()) return a.as_list() == b.as_list();
  if (a.as_dict()) return a.as_dict() == b.as_dict();
  return equal(a, b, budget);
}

constexpr Builtin kTests[] = {
    {"defined", "", [](Interpreter&, const Value& v, const Args&) { return Value(!v.is_undefined()); }},
    {"undefined", "", [](Interpreter&, const Value& v, const Args&) { return Value(v.is_undefined()); }},
    {"none", "", [](Interpreter&, const Value& v, const Args&) { return Value(v.is_none()); }},
    {"boolean", "", [](Interpreter&, const Value& v, const Args&) { return Value(v.is_bool()); }},
    {"true", "", [](Interpreter&, const Value& v, const Args&) { return Value(v.is_bool() && v.truthy()); }},
    {"false", "",
     [](Interpreter&, const Value& v, const Args&) { return Value(v.is_bool() && !v.truthy()); }},
    {"integer", "", [](Interpreter&, const Value& v, const Args&) { return Value(v.as_int() != nullptr); }},
    {"float", "",
     [](Interpreter&, const Value& v, const Args&) { return Value(v.get_if<double>() != nullptr); }},
    {"number", "", [](Interpreter&, const Value& v, const Args&) { return Value(v.is_number()); }},
    {"string", "", [](Interpreter&, const Value& v, const Args&) { return Value(v.is_string()); }},
    {"mapping", "", [](Interpreter&, const Value& v, const Args&) { return Value(v.as_dict() != nullptr); }},
    {"sequence", "", [](Interpreter&, const Value& v, const Args&) { return Value(is_sequence(v)); }},
    {"iterable", "", [](Interpreter&, const Value& v, const Args&) { return Value(is_iterable(v)); }},
    {"callable", "",
     [](Interpreter&, const Value& v, const Args&) {
       return Value(v.get_if<FunctionPtr>() != nullptr || v.is_undefined());
     }},
    {"sameas", "other",
     [](Interpreter& in, const Value& v, const Args& a) { return Value(is_same(v, a[0], in.budget())); }},
    {"divisibleby", "num",
     [](Interpreter& in, const Value& v, const Args& a) { return has_remainder(in, v, a[0], 0); }},
    {"even", "",
     [](Interpreter& in, const Value& v, const Args&) { return has_remainder(in, v, Value(2), 0); }},
    {"odd", "",
     [](Interpreter& in, const Value& v, const Args&) { return has_remainder(in, v, Value(2), 1); }},
    {"lower", "", [](Interpreter& in, const Value& v, const Args&) { return Value(has_case(in, v, lower)); }},
    {"upper", "", [](Interpreter& in, const Value& v, const Args&) { return Value(has_case(in, v, upper)); }},
    {"filter", "",
     [](Interpreter&, const Value& v, const Args&) {
       return Value(v.is_string() && find_filter(v.as_text()->view()) != nullptr);
     }},
    {"test", "",
     [](Interpreter&, const Value& v, const Args&) {
       return Value(v.is_string() && find_test(v.as_text()->view()) != nullptr);
     }},
    {"in", "seq", compares<CompareOp::kIn>},
    {"==", "other", compares<CompareOp::kEqual>},
    {"eq", "other", compares<CompareOp::kEqual>},
    {"equalto", "other", compares<CompareOp::kEqual>},
    {"!=", "other", compares<CompareOp::kNotEqual>},
    {"ne", "other", compares<CompareOp::kNotEqual>},
    {"<", "other", compares<CompareOp::kLess>},
    {"lt", "other", compares<CompareOp::kLess>},
    {"lessthan", "other", compares<CompareOp::kLess>},
    {"<=", "other", compares<CompareOp::kLessEqual>},
    {"le", "other", compares<CompareOp::kLessEqual>},
    {">", "other", compares<CompareOp::kGreater>},
    {"gt", "other", compares<CompareOp::kGreater>},
    {"greaterthan", "other", compares<CompareOp::kGreater>},
    {">=", "other", compares<CompareOp::kGreaterEqual>},
    {"ge", "other", compares<CompareOp::kGreaterEqual>},
};

}  // namespace

const Builtin* find_test(std::string_view name) {
  const auto at = std::find_if(std::begin(kTests), std::end(kTests), [&](auto& b) { return b.name == name; });
  return at == std::end(kTests) ? nullptr : at;
}

}  // namespace longspan::text::jinja
