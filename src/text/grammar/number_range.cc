#include "text/grammar/number_range.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"

namespace longspan::text {
namespace {

constexpr uint64_t kMaxMagnitude = 999'999'999'999'999'999;  // 18 digits
constexpr const char* kNothing = "[]";                       // a class without characters
constexpr const char* kZeroFraction = R"((\.0)?)";
constexpr size_t kDoubleDigits = 15;  // that a double always tells apart

// `count` digits, of which the last `decimals` stand behind a point.
std::string any_digits(size_t count, size_t decimals = 0) {
  if (decimals > 0 && count >= decimals) return any_digits(count - decimals) + "\\." + any_digits(decimals);
  return count == 0 ? "" : fmt::format("[0-9]{{{}}}", count);
}

// Numbers from `low` to `high`, both with the same number of digits, the last `decimals` behind a point.
std::string same_length(const std::string& low, const std::string& high, size_t decimals) {
  if (low.empty()) return "";
  if (decimals > 0 && low.size() == decimals) return "\\." + same_length(low, high, 0);
  const size_t rest = low.size() - 1;
  const std::string low_rest = low.substr(1);
  const std::string high_rest = high.substr(1);
  if (low[0] == high[0]) return low[0] + same_length(low_rest, high_rest, decimals);
  std::vector<std::string> parts;
  char first = low[0];
  char last = high[0];
  if (low.find_first_not_of('0', 1) != std::string::npos)
    parts.push_back(first++ + same_length(low_rest, std::string(rest, '9'), decimals));
  const bool high_is_full = high.find_first_not_of('9', 1) == std::string::npos;
  if (!high_is_full) --last;
  if (first <= last) parts.push_back(fmt::format("[{}-{}]{}", first, last, any_digits(rest, decimals)));
  if (!high_is_full) parts.push_back(high[0] + same_length(std::string(rest, '0'), high_rest, decimals));
  return fmt::format("({})", fmt::join(parts, "|"));
}

// Numbers without a sign, from `low` to `high`, both in units of the last of `decimals` digits.
std::string magnitudes(uint64_t low, uint64_t high, size_t decimals = 0) {
  if (low > high) return kNothing;
  std::vector<std::string> parts;
  while (true) {
    std::string first = std::to_string(low);
    std::string end = std::to_string(high);
    for (std::string* text : {&first, &end})  // at least a zero in front of the point
      if (text->size() <= decimals) text->insert(0, decimals + 1 - text->size(), '0');
    if (first.size() == end.size()) {
      parts.push_back(same_length(first, end, decimals));
      break;
    }
    const std::string last(first.size(), '9');
    parts.push_back(same_length(first, last, decimals));
    low = std::stoull(last) + 1;
  }
  return fmt::format("({})", fmt::join(parts, "|"));
}

uint64_t magnitude(int64_t value) {
  return value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

// The part of a range that lies on one side of zero, by magnitude.
template <class Number>
struct Side {
  std::optional<Number> near = {};  // none: 0
  std::optional<Number> far = {};   // none: no bound
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

std::string side_regex(const Side<uint64_t>& side) {
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

uint64_t power_of_ten(int exponent) {
  uint64_t power = 1;
  while (exponent-- > 0) power *= 10;
  return power;
}

// The same with bounds that have a fraction, or for numbers with at most so many decimals. In units of the
// last of `decimals` digits, which both bounds have.
class ScaledSide {
 public:
  ScaledSide(const Side<uint64_t>& side, int decimals) : side_(side), decimals_(decimals) {
    far_ = side.far.value_or(power_of_ten(static_cast<int>(kDoubleDigits)) - 1);
  }

  std::string regex(std::optional<int> max_decimals) const {
    std::vector<std::string> parts;
    const int last = max_decimals ? *max_decimals : decimals_ - 1;
    for (int k = 0; k <= last; ++k) parts.push_back(exactly(k));
    if (!max_decimals) add_long_fractions(parts);
    std::erase_if(parts, [](const std::string& part) { return part.find(kNothing) != part.npos; });
    return parts.empty() ? kNothing : fmt::format("({})", fmt::join(parts, "|"));
  }

 private:
  uint64_t near() const { return side_.near.value_or(0); }

  // Numbers with k digits behind the point.
  std::string exactly(int k) const {
    uint64_t low = near();
    uint64_t high = far_;
    if (k >= decimals_) {
      const uint64_t finer = power_of_ten(k - decimals_);
      low *= finer;
      high = side_.far ? high * finer : high;
      if (side_.above_near) ++low;
      if (side_.below_far && side_.far) {
        if (high == 0) return kNothing;
        --high;
      }
      return magnitudes(low, high, static_cast<size_t>(k));
    }
    const uint64_t coarser = power_of_ten(decimals_ - k);
    const bool low_is_exact = low % coarser == 0;
    const bool high_is_exact = high % coarser == 0;
    low = low / coarser + (low_is_exact && !side_.above_near ? 0 : 1);
    high /= coarser;
    if (high_is_exact && side_.below_far && side_.far) {
      if (high == 0) return kNothing;
      --high;
    }
    return magnitudes(low, high, static_cast<size_t>(k));
  }

  // Numbers with decimals_ digits behind the point, and perhaps more.
  void add_long_fractions(std::vector<std::string>& parts) const {
    const auto decimals = static_cast<size_t>(decimals_);
    const size_t digits = side_.far ? std::to_string(far_).size() : decimals;
    const size_t more = digits < kDoubleDigits ? kDoubleDigits - digits : 0;
    const uint64_t first = near() + (side_.above_near ? 1 : 0);
    if (side_.above_near && near() < far_ && more > 0)
      parts.push_back(fmt::format("{}[0-9]{{0,{}}}[1-9]", magnitudes(near(), near(), decimals), more - 1));
    if (first < far_)
      parts.push_back(fmt::format("{}[0-9]{{0,{}}}", magnitudes(first, far_ - 1, decimals), more));
    if (first <= far_ && !(side_.below_far && side_.far)) parts.push_back(magnitudes(far_, far_, decimals));
  }

  Side<uint64_t> side_;
  int decimals_;
  uint64_t far_;
};

// What of the range lies on either side of zero: calls side(Side of magnitudes, sign).
template <class Visit>
std::vector<std::string> both_sides(const NumberRange& range, Visit&& visit) {
  std::vector<std::string> parts;
  if (!range.max || *range.max >= 0) {
    Side<double> side;
    if (range.min && *range.min >= 0) side = {.near = *range.min, .above_near = range.above_min};
    if (range.max) {
      side.far = *range.max;
      side.below_far = range.below_max;
    }
    parts.push_back(visit(side));
  }
  if (!range.min || *range.min < 0) {
    Side<double> side{.near = 0, .above_near = true};  // zero has no sign
    if (range.max && *range.max < 0) side = {.near = -*range.max, .above_near = range.below_max};
    if (range.min) {
      side.far = -*range.min;
      side.below_far = range.above_min;
    }
    parts.push_back("-" + visit(side));
  }
  return parts;
}

Side<uint64_t> in_units(const Side<double>& side, uint64_t units) {
  const auto scaled = [&](std::optional<double> bound) -> std::optional<uint64_t> {
    if (!bound) return std::nullopt;
    return static_cast<uint64_t>(std::llround(*bound * static_cast<double>(units)));
  };
  return {.near = scaled(side.near),
          .far = scaled(side.far),
          .above_near = side.above_near,
          .below_far = side.below_far};
}

}  // namespace

std::optional<int> decimals_of(double value) {
  const double size = std::abs(value);
  for (int decimals = 0; decimals <= kMaxDecimals; ++decimals) {
    const auto units = static_cast<double>(power_of_ten(decimals));
    const double digits = std::round(size * units);
    if (digits < 1e15 && digits / units == size) return decimals;
  }
  return std::nullopt;
}

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
  if (!range.min && !range.max) {
    if (!range.max_decimals) return R"(^-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?([eE][+-]?[0-9]{1,2})?$)";
    const auto decimals = static_cast<size_t>(*range.max_decimals);
    return fmt::format(R"(^-?(0|[1-9][0-9]{{0,{}}}){}$)", kDoubleDigits - 1 - decimals,
                       any_fraction(decimals));
  }
  int decimals = 0;
  for (const std::optional<double>& bound : {range.min, range.max})
    if (bound) decimals = std::max(decimals, decimals_of(*bound).value_or(0));
  const std::vector<std::string> parts = both_sides(range, [&](const Side<double>& side) {
    if (decimals == 0 && !range.max_decimals) return side_regex(in_units(side, 1));
    return ScaledSide(in_units(side, power_of_ten(decimals)), decimals).regex(range.max_decimals);
  });
  if (parts.empty()) return fmt::format("^{}$", kNothing);
  return fmt::format("^({})$", fmt::join(parts, "|"));
}

}  // namespace longspan::text
