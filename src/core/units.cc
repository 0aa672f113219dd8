#include "core/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace longspan {
namespace {

struct Quantity {
  double value = 0;
  std::string_view unit;
};

Quantity split(std::string_view text, std::string_view what) {
  const char* end = text.data() + text.size();
  Quantity quantity;
  const auto [rest, status] = std::from_chars(text.data(), end, quantity.value);
  if (status != std::errc() || !(quantity.value >= 0) || !std::isfinite(quantity.value))
    fail(ErrorKind::kInvalid, "'{}' is not a {}", text, what);
  quantity.unit = text.substr(static_cast<size_t>(rest - text.data()));
  while (!quantity.unit.empty() && quantity.unit.front() == ' ') quantity.unit.remove_prefix(1);
  return quantity;
}

using Unit = std::pair<std::string_view, double>;

template <size_t N>
double scaled(std::string_view text, std::string_view what, const std::array<Unit, N>& units) {
  const Quantity quantity = split(text, what);
  for (const auto& [name, factor] : units)
    if (quantity.unit == name) return quantity.value * factor;
  fail(ErrorKind::kInvalid, "'{}' is not a {}: unknown unit '{}'", text, what, quantity.unit);
}

}  // namespace

size_t parse_bytes(std::string_view text) {
  static constexpr std::array<Unit, 14> kUnits = {
      Unit{"", 1},   {"B", 1},        {"K", 0x1p10},   {"KiB", 0x1p10}, {"KB", 1e3},
      {"M", 0x1p20}, {"MiB", 0x1p20}, {"MB", 1e6},     {"G", 0x1p30},   {"GiB", 0x1p30},
      {"GB", 1e9},   {"T", 0x1p40},   {"TiB", 0x1p40}, {"TB", 1e12}};
  const double bytes = scaled(text, "size", kUnits);
  if (bytes > 0x1p60) fail(ErrorKind::kInvalid, "'{}' is too large a size", text);
  return static_cast<size_t>(bytes);
}

double parse_seconds(std::string_view text) {
  static constexpr std::array<Unit, 6> kUnits = {Unit{"", 1}, {"s", 1},    {"ms", 1e-3},
                                                 {"m", 60},   {"min", 60}, {"h", 3600}};
  return scaled(text, "duration", kUnits);
}

std::string format_bytes(size_t bytes) {
  static constexpr std::array kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{:.{}f} {}", value,
                                 value < 10    ? 2
                                 : value < 100 ? 1
                                               : 0,
                                 kNames[unit]);
}

std::string format_count(size_t count) {
  std::string text = std::to_string(count);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string format_seconds(double seconds) {
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.2f} s", seconds);
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

}  // namespace longspan
