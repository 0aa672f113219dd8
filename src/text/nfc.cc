#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/error.h"
#include "text/utf8.h"

namespace longspan::text {
namespace {

// STABLE makes utf8proc honour the composition exclusions.
constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
constexpr size_t kMaxDecomposition = 4;  // of one character, canonical (Unicode UAX 15)

std::vector<utf8proc_int32_t> decompose(std::string_view valid_text) {
  std::vector<utf8proc_int32_t> points;
  points.reserve(valid_text.size());
  for (size_t offset = 0; offset < valid_text.size();) {
    const CodePoint point = code_point_at(valid_text, offset);
    offset += point.size_bytes;
    std::array<utf8proc_int32_t, kMaxDecomposition> parts;
    int bound_class = 0;
    const auto num_parts = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(point.value), parts.data(),
                                                   parts.size(), kCompose, &bound_class);
    CHECK(num_parts >= 0 && num_parts <= static_cast<utf8proc_ssize_t>(parts.size()));
    points.insert(points.end(), parts.begin(), parts.begin() + num_parts);
  }
  return points;
}

int combining_class(utf8proc_int32_t point) { return utf8proc_get_property(point)->combining_class; }

// Canonical ordering. utf8proc's own is quadratic in the length of a run of marks, so a request could stall
// on it.
void order_marks(std::vector<utf8proc_int32_t>& points) {
  const auto is_starter = [](utf8proc_int32_t point) { return combining_class(point) == 0; };
  for (auto it = points.begin(); it != points.end();) {
    const auto begin = std::find_if_not(it, points.end(), is_starter);
    const auto end = std::find_if(begin, points.end(), is_starter);
    if (end - begin > 1) {
      std::stable_sort(begin, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    }
    it = end;
  }
}

}  // namespace

bool is_certainly_nfc(std::string_view valid_text) {
  // Everything below U+0300 (first byte 0xCC) is its own NFC and combines with nothing before it.
  return std::all_of(valid_text.begin(), valid_text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0xCC; });
}

std::string to_nfc(std::string_view valid_text) {
  if (is_certainly_nfc(valid_text)) return std::string(valid_text);
  std::vector<utf8proc_int32_t> points = decompose(valid_text);
  order_marks(points);
  const auto num_points =
      utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), kCompose);
  CHECK(num_points >= 0);
  std::string result;
  result.reserve(valid_text.size());
  for (utf8proc_ssize_t i = 0; i < num_points; ++i)
    append_utf8(static_cast<char32_t>(points[static_cast<size_t>(i)]), result);
  return result;
}

}  // namespace longspan::text
