#include "text/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/jinja/strings.h"
#include "text/utf8.h"

namespace longspan::text::jinja {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

std::optional<int64_t> as_integer(const Value& value) {
  if (const int64_t* number = value.as_int()) return *number;
  if (const bool* flag = value.get_if<bool>()) return *flag ? 1 : 0;
  return std::nullopt;
}

double as_real(const Value& value) {
  const double* real = value.get_if<double>();
  return real ? *real : static_cast<double>(*as_integer(value));
}

std::string_view symbol(BinaryOp op) {
  static constexpr std::string_view kSymbols[] = {"and", "or", "+", "-", "*", "/", "//", "%", "**", "~"};
  return kSymbols[static_cast<size_t>(op)];
}

[[noreturn]] void overflow(BinaryOp op) {
  fail(ErrorKind::kInvalid, "the result of '{}' does not fit a 64-bit integer", symbol(op));
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) overflow(BinaryOp::kPower);
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) overflow(BinaryOp::kPower);
  }
  return result;
}

// Floor division and modulo: the remainder has the sign of the divisor.
int64_t integer_quotient(BinaryOp op, int64_t a, int64_t b) {
  if (b == 0) fail(ErrorKind::kInvalid, "division by zero in '{}'", symbol(op));
  if (a == kMin && b == -1) {
    if (op == BinaryOp::kModulo) return 0;
    overflow(op);
  }
  const bool adjust = a % b != 0 && (a % b < 0) != (b < 0);
  if (op == BinaryOp::kModulo) return a % b + (adjust ? b : 0);
  return a / b - (adjust ? 1 : 0);
}

Value real_arithmetic(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return a + b;
    case BinaryOp::kSubtract:
      return a - b;
    case BinaryOp::kMultiply:
      return a * b;
    case BinaryOp::kPower:
      if (a == 0 && b < 0) fail(ErrorKind::kInvalid, "0.0 cannot be raised to a negative power");
      if (a < 0 && b != std::floor(b)) fail(ErrorKind::kInvalid, "a root of a negative number is not real");
      return std::pow(a, b);
    default:
      break;
  }
  if (b == 0) fail(ErrorKind::kInvalid, "division by zero in '{}'", symbol(op));
  if (op == BinaryOp::kDivide) return a / b;
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  if (op == BinaryOp::kModulo) return remainder == 0 ? std::copysign(0.0, b) : remainder;
  const double quotient = (a - remainder) / b;
  return quotient == 0 ? std::copysign(0.0, a / b) : std::round(quotient);
}

Value arithmetic(BinaryOp op, const Value& a, const Value& b) {
  const auto left = as_integer(a);
  const auto right = as_integer(b);
  if (!left || !right || op == BinaryOp::kDivide || (op == BinaryOp::kPower && *right < 0))
    return real_arithmetic(op, as_real(a), as_real(b));
  int64_t result = 0;
  bool overflows = false;
  switch (op) {
    case BinaryOp::kAdd:
      overflows = __builtin_add_overflow(*left, *right, &result);
      break;
    case BinaryOp::kSubtract:
      overflows = __builtin_sub_overflow(*left, *right, &result);
      break;
    case BinaryOp::kMultiply:
      overflows = __builtin_mul_overflow(*left, *right, &result);
      break;
    case BinaryOp::kPower:
      result = integer_power(*left, *right);
      break;
    default:
      result = integer_quotient(op, *left, *right);
      break;
  }
  if (overflows) overflow(op);
  return result;
}

std::optional<Value> concatenate(const Value& a, const Value& b, Budget& budget) {
  if (a.is_string() && b.is_string()) {
    const std::string_view left = a.as_text()->view();
    const std::string_view right = b.as_text()->view();
    budget.build(left.size() + right.size());
    std::string joined;
    joined.reserve(left.size() + right.size());
    return Value(joined.append(left).append(right));
  }
  const List* left = a.as_list();
  const List* right = b.as_list();
  if (!left || !right || left->kind != right->kind || left->kind > List::Kind::kTuple) return std::nullopt;
  budget.build(left->items.size() + right->items.size(), sizeof(Value));
  std::vector<Value> items = left->items;
  items.insert(items.end(), right->items.begin(), right->items.end());
  return Value::list(std::move(items), left->kind);
}

std::optional<Value> repeat(const Value& a, const Value& b, Budget& budget) {
  if (as_integer(a)) return as_integer(b) ? std::nullopt : repeat(b, a, budget);
  const auto times = as_integer(b);
  if (!times) return std::nullopt;
  const size_t count = static_cast<size_t>(std::max<int64_t>(*times, 0));
  if (const Text* text = a.as_text()) {
    budget.build(count, text->view().size());
    std::string result;
    if (!text->view().empty())
      for (size_t i = 0; i < count; ++i) result.append(text->view());
    return Value(std::move(result));
  }
  const List* list = a.as_list();
  if (!list || list->kind > List::Kind::kTuple) return std::nullopt;
  budget.build(count, list->items.size() * sizeof(Value));
  std::vector<Value> items;
  if (!list->items.empty())
    for (size_t i = 0; i < count; ++i) items.insert(items.end(), list->items.begin(), list->items.end());
  return Value::list(std::move(items), list->kind);
}

// Python's rules for slice bounds: the indices that start:stop:step selects from `size` elements.
struct Range {
  int64_t start, step, count;
};
Range resolve_slice(const Value& start, const Value& stop, const Value& step, int64_t size) {
  const int64_t stride = step.is_none() ? 1 : std::max(to_int(step, "slice step"), -INT64_MAX);
  if (stride == 0) fail(ErrorKind::kInvalid, "slice step cannot be zero");
  const int64_t low = stride < 0 ? -1 : 0;
  const int64_t high = stride < 0 ? size - 1 : size;
  const auto clamp = [&](const Value& bound, int64_t otherwise) {
    if (bound.is_none()) return otherwise;
    const int64_t index = to_int(bound, "slice bound");
    return std::clamp(index < 0 ? index + size : index, low, high);
  };
  const int64_t first = clamp(start, stride < 0 ? high : low);
  const int64_t last = clamp(stop, stride < 0 ? low : high);
  const int64_t span = stride < 0 ? first - last : last - first;
  const int64_t count = span <= 0 ? 0 : (span - 1) / (stride < 0 ? -stride : stride) + 1;
  return {first, stride, count};
}

Value slice_text(const Text& text, const Range& range) {
  const std::string_view view = text.view();
  if (range.step == 1) {
    const size_t begin = offset_of(view, range.start);
    const size_t size = offset_of(view.substr(begin), range.count);
    return Value(text.slice(view.substr(begin, size)));
  }
  std::vector<size_t> offsets;  // of each code point
  for (size_t at = 0; at < view.size(); at += code_point_at(view, at).size_bytes) offsets.push_back(at);
  std::string result;
  for (int64_t i = 0; i < range.count; ++i) {
    const size_t at = offsets[static_cast<size_t>(range.start + i * range.step)];
    result.append(view.substr(at, code_point_at(view, at).size_bytes));
  }
  return Value(std::move(result));
}

}  // namespace

void require_defined(const Value& value) {
  if (const Undefined* missing = value.get_if<Undefined>())
    fail(ErrorKind::kInvalid, "'{}' is undefined", missing->name.view());
}

int64_t to_int(const Value& value, std::string_view what) {
  const auto integer = as_integer(value);
  if (!integer) fail(ErrorKind::kInvalid, "{} must be an integer, got '{}'", what, value.type_name());
  return *integer;
}

Value apply(BinaryOp op, const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (op == BinaryOp::kConcat) {
    const Text left = as_shared_text(a, budget);
    const Text right = as_shared_text(b, budget);
    return *concatenate(Value(left), Value(right), budget);
  }
  if (a.is_number() && b.is_number()) return arithmetic(op, a, b);
  require_defined(a);
  require_defined(b);
  std::optional<Value> result;
  if (op == BinaryOp::kAdd) result = concatenate(a, b, budget);
  if (op == BinaryOp::kMultiply) result = repeat(a, b, budget);
  if (!result)
    fail(ErrorKind::kInvalid, "unsupported operands of '{}': '{}' and '{}'", symbol(op), a.type_name(),
         b.type_name());
  return *std::move(result);
}

Value apply(UnaryOp op, const Value& a) {
  if (op == UnaryOp::kNot) return !a.truthy();
  require_defined(a);
  if (const double* real = a.get_if<double>()) return op == UnaryOp::kNegative ? -*real : *real;
  const auto integer = as_integer(a);
  if (!integer) fail(ErrorKind::kInvalid, "a sign needs a number, got '{}'", a.type_name());
  if (op == UnaryOp::kPositive) return *integer;
  if (*integer == kMin) overflow(BinaryOp::kSubtract);
  return -*integer;
}

bool apply(CompareOp op, const Value& a, const Value& b, Budget& budget) {
  switch (op) {
    case CompareOp::kEqual:
      return equal(a, b, budget);
    case CompareOp::kNotEqual:
      return !equal(a, b, budget);
    case CompareOp::kLess:
      return compare(a, b, "<", budget) < 0;
    case CompareOp::kLessEqual:
      return compare(a, b, "<=", budget) <= 0;
    case CompareOp::kGreater:
      return compare(a, b, ">", budget) > 0;
    case CompareOp::kGreaterEqual:
      return compare(a, b, ">=", budget) >= 0;
    case CompareOp::kIn:
      return contains(b, a, budget);
    case CompareOp::kNotIn:
      return !contains(b, a, budget);
  }
  return false;
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  budget.step();
  if (const Text* text = container.as_text()) {
    if (!item.is_string())
      fail(ErrorKind::kInvalid, "'in' on a string needs a string on the left, got '{}'", item.type_name());
    return text->view().find(item.as_text()->view()) != std::string_view::npos;
  }
  if (const Dict* dict = container.as_dict()) return dict->find(item) != nullptr;
  if (const List* list = container.as_list())
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& candidate) { return equal(candidate, item, budget); });
  if (container.is_undefined()) return false;
  fail(ErrorKind::kInvalid, "'in' needs a container on the right, got '{}'", container.type_name());
}

std::optional<Value> find_item(const Value& object, const Value& key) {
  if (const Dict* dict = object.as_dict()) {
    const Value* found = dict->find(key);
    return found ? std::optional(*found) : std::nullopt;
  }
  const auto index = as_integer(key);
  if (!index) return std::nullopt;
  if (const List* list = object.as_list(); list && list->has_index()) {
    const int64_t size = std::ssize(list->items);
    const int64_t at = *index < 0 ? *index + size : *index;
    if (at >= 0 && at < size) return list->items[static_cast<size_t>(at)];
  } else if (const Text* text = object.as_text()) {
    const int64_t at = *index < 0 ? *index + count_code_points(text->view()) : *index;
    if (at < 0) return std::nullopt;
    const size_t offset = offset_of(text->view(), at);
    if (offset < text->view().size())
      return Value(text->slice(text->view().substr(offset, code_point_at(text->view(), offset).size_bytes)));
  }
  return std::nullopt;
}

Value slice(const Value& object, const Value& start, const Value& stop, const Value& step, Budget& budget) {
  if (const Text* text = object.as_text()) {
    budget.build(text->view().size());
    return slice_text(*text, resolve_slice(start, stop, step, count_code_points(text->view())));
  }
  const List* list = object.as_list();
  if (!list || !list->has_index())
    fail(ErrorKind::kInvalid, "cannot slice a value of type '{}'", object.type_name());
  const Range range = resolve_slice(start, stop, step, std::ssize(list->items));
  budget.build(static_cast<size_t>(range.count), sizeof(Value));
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(range.count));
  for (int64_t i = 0; i < range.count; ++i)
    items.push_back(list->items[static_cast<size_t>(range.start + i * range.step)]);
  return Value::list(std::move(items), list->kind);
}

}  // namespace longspan::text::jinja
