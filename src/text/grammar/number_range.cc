#include "text/grammar/number_range.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace longspan::text {
namespace {

constexpr uint64_t kMaxMagnitude = 999'999'999'999'999'999;  // 18 digits
constexpr const char* kNothing = "[]";                       // a class without characters
constexpr const char* kZeroFraction = R"((\.0)?)";
constexpr size_t kDoubleDigits = 15;  // that a double always tells apart

std::string any_digits(size_t count) { return count == 0 ? "" : fmt::format("[0-9]{{{}}}", count); }

// Numbers from `low` to `high`, both with the same number of digits.
std::string same_length(const std::string& low, const std::string& high) {
  if (low == high) return low;
  const size_t rest = low.size() - 1;
  if (low[0] == high[0]) return low[0] + same_length(low.substr(1), high.substr(1));
  std::vector<std::string> parts;
  char first = low[0];
  char last = high[0];
  if (low.find_first_not_of('0', 1) != std::string::npos)
    parts.push_back(first++ + same_length(low.substr(1), std::string(rest, '9')));
  const bool high_is_full = high.find_first_not_of('9', 1) == std::string::npos;
  if (!high_is_full) --last;
  if (first <= last) parts.push_back(fmt::format("[{}-{}]{}", first, last, any_digits(rest)));
  if (!high_is_full) parts.push_back(high[0] + same_length(std::string(rest, '0'), high.substr(1)));
  return fmt::format("({})", fmt::join(parts, "|"));
}

// Numbers without a sign, from `low` to `high`.
std::string magnitudes(uint64_t low, uint64_t high) {
  if (low > high) return kNothing;
  std::vector<std::string> parts;
  while (true) {
    const std::string first = std::to_string(low);
    const std::string end = std::to_string(high);
    if (first.size() == end.size()) {
      parts.push_back(same_length(first, end));
      break;
    }
    const std::string last(first.size(), '9');
    parts.push_back(same_length(first, last));
    low = std::stoull(last) + 1;
  }
  return fmt::format("({})", fmt::join(parts, "|"));
}

uint64_t magnitude(int64_t value) {
  return value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

// The part of a range that lies on one side of zero, by magnitude.
struct Side {
  std::optional<uint64_t> near;  // none: 0
  std::optional<uint64_t> far;   // none: no bound
  bool above_near = false;
  bool below_far = false;
};

// Digits behind the point of a number near `value`, such that rounding to a double does not reach a bound.
size_t fraction_digits(uint64_t value) {
  const size_t whole = std::to_string(value).size();
  return whole < kDoubleDigits ? kDoubleDigits - whole : 0;
}

std::string any_fraction(size_t digits) {
  return digits == 0 ? "" : fmt::format(R"((\.[0-9]{{1,{}}})?)", digits);
}

std::string side_regex(const Side& side) {
  const uint64_t near = side.near.value_or(0);
  const uint64_t far = side.far.value_or(kMaxMagnitude);
  if (near > far) return kNothing;
  std::vector<std::string> parts;
  const uint64_t first = near + (side.above_near ? 1 : 0);
  const size_t near_digits = fraction_digits(near);
  if (side.above_near && near < far && near_digits > 0)
    parts.push_back(fmt::format(R"({}\.[0-9]{{0,{}}}[1-9])", near, near_digits - 1));
  if (first < far)
    parts.push_back(magnitudes(first, far - 1) +
                    any_fraction(side.far ? fraction_digits(far) : kDoubleDigits));
  if (first <= far && !side.below_far) parts.push_back(std::to_string(far) + kZeroFraction);
  return parts.empty() ? kNothing : fmt::format("({})", fmt::join(parts, "|"));
}

}  // namespace

std::string integer_regex(const IntegerRange& range) {
  if (!range.min && !range.max) return "^-?(0|[1-9][0-9]{0,17})$";
  const auto limit = static_cast<int64_t>(kMaxMagnitude);
  const int64_t min = range.min.value_or(std::min(-limit, range.max.value_or(0)));
  const int64_t max = range.max.value_or(std::max(limit, range.min.value_or(0)));
  std::vector<std::string> parts;
  if (max >= 0) parts.push_back(magnitudes(static_cast<uint64_t>(std::max<int64_t>(min, 0)), magnitude(max)));
  if (min < 0) parts.push_back("-" + magnitudes(max < 0 ? magnitude(max) : 1, magnitude(min)));
  if (min > max) parts = {kNothing};
  return fmt::format("^({})$", fmt::join(parts, "|"));
}

std::string number_regex(const NumberRange& range) {
  if (!range.min && !range.max) return R"(^-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?([eE][+-]?[0-9]{1,2})?$)";
  std::vector<std::string> parts;
  if (!range.max || *range.max >= 0) {
    Side side;
    if (range.min && *range.min >= 0) side = {.near = magnitude(*range.min), .above_near = range.above_min};
    if (range.max) {
      side.far = magnitude(*range.max);
      side.below_far = range.below_max;
    }
    parts.push_back(side_regex(side));
  }
  if (!range.min || *range.min < 0) {
    Side side{.near = 0, .above_near = true};  // zero has no sign
    if (range.max && *range.max < 0) side = {.near = magnitude(*range.max), .above_near = range.below_max};
    if (range.min) {
      side.far = magnitude(*range.min);
      side.below_far = range.above_min;
    }
    parts.push_back("-" + side_regex(side));
  }
  return fmt::format("^({})$", fmt::join(parts, "|"));
}

}  // namespace longspan::text
