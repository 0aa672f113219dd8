// Regular expressions for the numbers between two bounds, as JSON writes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longspan::text {

// Bounds that a number may reach. Without one: 18 digits, so that every integer fits into 64 bits.
struct IntegerRange {
  std::optional<int64_t> min;
  std::optional<int64_t> max;
};

// Bounds of numbers that need not be whole; both have decimals_of() or are whole.
struct NumberRange {
  std::optional<double> min;
  std::optional<double> max;
  bool above_min = false;  // min itself is left out
  bool below_max = false;
  std::optional<int> max_decimals = {};  // digits behind the point; none: as many as a double keeps
};

// Digits behind the point of a bound, as people write it: 0.25 has two. None: more than kMaxDecimals, or more
// than 15 digits in all.
inline constexpr int kMaxDecimals = 6;
std::optional<int> decimals_of(double value);

// Exactly the integers of the range, without leading zeros; -0 only where there are no bounds. An empty
// range gives an expression that nothing matches.
std::string integer_regex(const IntegerRange& range);

// Numbers of the range with at most 15 digits in all where they have a fraction; exponents only where there
// are no bounds.
// A part of the range, as no text can hold all of it.
std::string number_regex(const NumberRange& range);

}  // namespace longspan::text
