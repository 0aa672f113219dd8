#include "text/jinja/strings.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace longspan::text::jinja {
namespace {

// Calls visit(code_point, offset, size) for each code point; visit returns false to stop.
template <class Visit>
void for_each_code_point(std::string_view text, Visit visit) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (!visit(c.value, at, c.size_bytes)) return;
    at += c.size_bytes;
  }
}

template <class Map>
std::string map_code_points(std::string_view text, Map map) {
  std::string result;
  result.reserve(text.size());
  for_each_code_point(text, [&](char32_t c, size_t, size_t) {
    const char32_t mapped = map(c);
    if (c == 0xDF && mapped != c)
      result += "SS";  // utf8proc gives U+1E9E
    else
      append_utf8(mapped, result);
    return true;
  });
  return result;
}

char32_t upper_of(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}
char32_t lower_of(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}
char32_t title_of(char32_t c) {
  return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool is_cased(char32_t c) {
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL || kind == UTF8PROC_CATEGORY_LT;
}

// Offset of the last code point of a non-empty text.
size_t last_offset(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

template <class Drop>
std::string_view strip_if(std::string_view text, Side side, Drop drop) {
  const auto has = [side](Side one) { return (static_cast<int>(side) & static_cast<int>(one)) != 0; };
  while (has(Side::kLeft) && !text.empty()) {
    const CodePoint c = code_point_at(text, 0);
    if (!drop(c.value)) break;
    text.remove_prefix(c.size_bytes);
  }
  while (has(Side::kRight) && !text.empty()) {
    const size_t at = last_offset(text);
    if (!drop(code_point_at(text, at).value)) break;
    text.remove_suffix(text.size() - at);
  }
  return text;
}

std::vector<std::string_view> split_at_spaces(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> parts;
  text = strip(text, Side::kLeft);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.push_back(text);  // its other end keeps its spaces
      break;
    }
    size_t end = text.size();
    for_each_code_point(text, [&](char32_t c, size_t at, size_t) {
      if (is_space(c)) end = at;
      return end == text.size();
    });
    parts.push_back(text.substr(0, end));
    text = strip(text.substr(end), Side::kLeft);
  }
  return parts;
}

std::vector<std::string_view> rsplit_at_spaces(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> parts;
  text = strip(text, Side::kRight);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.push_back(text);
      break;
    }
    size_t begin = text.size();
    while (begin > 0) {
      const size_t at = last_offset(text.substr(0, begin));
      if (is_space(code_point_at(text, at).value)) break;
      begin = at;
    }
    parts.push_back(text.substr(begin));
    text = strip(text.substr(0, begin), Side::kRight);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || category(c) == UTF8PROC_CATEGORY_ZS || c == 0x2028 || c == 0x2029;
}

bool is_letter(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_printable(char32_t c) {
  if (c < 0x80) return c >= 0x20 && c < 0x7F;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

int64_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

size_t offset_of(std::string_view text, int64_t index) {
  size_t offset = 0;
  for (; index > 0 && offset < text.size(); --index) {
    ++offset;
    while (offset < text.size() && (static_cast<unsigned char>(text[offset]) & 0xC0) == 0x80) ++offset;
  }
  return offset;
}

std::string_view strip(std::string_view text, Side side) { return strip_if(text, side, is_space); }

std::string_view strip_chars(std::string_view text, std::string_view chars, Side side) {
  std::u32string set;
  for_each_code_point(chars, [&](char32_t c, size_t, size_t) {
    set.push_back(c);
    return true;
  });
  return strip_if(text, side, [&](char32_t c) { return set.find(c) != set.npos; });
}

std::string upper(std::string_view text) { return map_code_points(text, upper_of); }
std::string lower(std::string_view text) { return map_code_points(text, lower_of); }

std::string capitalize(std::string_view text) {
  bool first = true;
  return map_code_points(text,
                         [&](char32_t c) { return std::exchange(first, false) ? title_of(c) : lower_of(c); });
}

std::string title(std::string_view text) {
  bool in_word = false;
  return map_code_points(
      text, [&](char32_t c) { return std::exchange(in_word, is_cased(c)) ? lower_of(c) : title_of(c); });
}

std::string title_filter(std::string_view text) {
  bool in_word = false;
  return map_code_points(text, [&](char32_t c) {
    const bool breaks = is_space(c) || (c < 0x80 && std::string_view("-({[<").find(static_cast<char>(c)) !=
                                                        std::string_view::npos);
    return std::exchange(in_word, !breaks) ? lower_of(c) : upper_of(c);
  });
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator, int64_t max_splits) {
  if (separator.empty()) return split_at_spaces(text, max_splits);
  std::vector<std::string_view> parts;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t at = text.find(separator);
    if (at == text.npos) break;
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  parts.push_back(text);
  return parts;
}

std::vector<std::string_view> rsplit(std::string_view text, std::string_view separator, int64_t max_splits) {
  if (separator.empty()) return rsplit_at_spaces(text, max_splits);
  std::vector<std::string_view> parts;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t at = text.rfind(separator);
    if (at == text.npos) break;
    parts.push_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  size_t skip_to = 0;  // past the '\n' of "\r\n"
  for_each_code_point(text, [&](char32_t c, size_t at, size_t size) {
    if (at < skip_to || !is_line_end(c)) return true;
    const size_t end = at + size + (text.substr(at, 2) == "\r\n" ? 1 : 0);
    lines.push_back(text.substr(begin, (keep_ends ? end : at) - begin));
    begin = skip_to = end;
    return true;
  });
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

int64_t count_occurrences(std::string_view text, std::string_view needle) {
  if (needle.empty()) return count_code_points(text) + 1;
  int64_t count = 0;
  for (size_t at = text.find(needle); at != text.npos; at = text.find(needle, at + needle.size())) ++count;
  return count;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to, int64_t max_count) {
  std::string result;
  size_t copied = 0;  // bytes of text that are in the result
  size_t at = 0;
  for (int64_t count = 0; max_count < 0 || count < max_count; ++count) {
    if (from.empty()) {
      if (count > 0) at = copied + (copied < text.size() ? code_point_at(text, copied).size_bytes : 1);
    } else {
      at = text.find(from, copied);
    }
    if (at > text.size()) break;  // npos, or past the end for an empty needle
    result.append(text.substr(copied, at - copied)).append(to);
    copied = at + from.size();
  }
  return result.append(text.substr(copied));
}

std::string quote(std::string_view text) {
  const bool has_single = text.find('\'') != text.npos;
  const char mark = has_single && text.find('"') == text.npos ? '"' : '\'';
  std::string result(1, mark);
  for_each_code_point(text, [&](char32_t c, size_t at, size_t size) {
    if (c == '\n') {
      result += "\\n";
    } else if (c == '\r') {
      result += "\\r";
    } else if (c == '\t') {
      result += "\\t";
    } else if (c == '\\' || c == static_cast<char32_t>(mark)) {
      result += '\\';
      result += static_cast<char>(c);
    } else if (is_printable(c)) {
      result.append(text.substr(at, size));
    } else if (c < 0x100) {
      result += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      result += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      result += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
    return true;
  });
  return result += mark;
}

}  // namespace longspan::text::jinja
