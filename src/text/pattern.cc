// Translation of a pre-tokenizer pattern from Oniguruma (Ruby syntax) to PCRE2. See splitter.h.
#include <algorithm>
#include <array>
#include <cctype>

#include "core/error.h"
#include "text/splitter.h"

namespace longspan::text {
namespace {

bool is_hex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// One pass over the pattern; `pos_` is the next character to read.
class Translator final {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string translate() {
    while (pos_ < pattern_.size()) {
      switch (pattern_[pos_]) {
        case '\\':
          escape();
          break;
        case '[':
          character_class();
          break;
        case '(':
          group();
          break;
        case '{':
          repeat_count();
          break;
        default:
          copy(1);
      }
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    fail(ErrorKind::kUnsupported,
         "pattern: got {} at offset {} of '{}', need syntax that Oniguruma and PCRE2 share", construct, pos_,
         pattern_);
  }
  std::string_view rest() const { return pattern_.substr(pos_); }
  void copy(size_t count) {
    result_ += pattern_.substr(pos_, count);
    pos_ += count;
  }
  void replace(size_t count, std::string_view by) {
    result_ += by;
    pos_ += count;
  }

  void escape() {
    if (pos_ + 1 == pattern_.size()) refuse("a backslash at the end");
    const char c = pattern_[pos_ + 1];
    switch (c) {
      case 's':
        return replace(2, "\\p{White_Space}");
      case 'S':
        return replace(2, "\\P{White_Space}");
      case 'd':
        return replace(2, "\\p{Nd}");
      case 'D':
        return replace(2, "\\P{Nd}");
      case 'r':
      case 'n':
      case 't':
      case 'f':
        return copy(2);
      case 'p':
      case 'P':
        return property();
      case 'u':
      case 'x':
        return hex_escape();
      default:
        if (!std::ispunct(static_cast<unsigned char>(c))) refuse(fmt::format("escape '\\{}'", c));
        copy(2);
    }
  }

  // \p{L}, \p{^L}, \P{Lu}: general categories as they are. Longer names are scripts.
  void property() {
    const size_t close = pattern_.find('}', pos_);
    if (pos_ + 2 >= pattern_.size() || pattern_[pos_ + 2] != '{' || close == pattern_.npos) {
      refuse("a property without {NAME}");
    }
    std::string_view name = pattern_.substr(pos_ + 3, close - pos_ - 3);
    const bool is_negated = name.starts_with('^');
    if (is_negated) name.remove_prefix(1);
    const bool is_word = std::all_of(name.begin(), name.end(),
                                     [](char c) { return std::isalpha(static_cast<unsigned char>(c)); });
    if (name.empty() || !is_word) refuse(fmt::format("property '{}'", name));
    result_ += fmt::format("\\{}{{{}{}{}}}", pattern_[pos_ + 1], is_negated ? "^" : "",
                           name.size() > 2 ? "sc:" : "", name);
    pos_ = close + 1;
  }

  // \xHH, \x{H...}, \uHHHH.
  void hex_escape() {
    std::string_view digits = rest().substr(2);
    size_t size = pattern_[pos_ + 1] == 'u' ? 4 : 2;
    const bool is_braced = pattern_[pos_ + 1] == 'x' && digits.starts_with('{');
    if (is_braced) {
      digits.remove_prefix(1);
      size = std::min(digits.find('}'), digits.size());
    }
    digits = digits.substr(0, size);
    if (digits.size() != size || digits.empty() || !std::all_of(digits.begin(), digits.end(), is_hex)) {
      refuse("a malformed hexadecimal escape");
    }
    replace(2 + size + (is_braced ? 2 : 0), fmt::format("\\x{{{}}}", digits));
  }

  void character_class() {
    copy(1);
    if (rest().starts_with('^')) copy(1);
    if (rest().starts_with(']')) refuse("an empty class");
    while (pos_ < pattern_.size() && pattern_[pos_] != ']') {
      if (pattern_[pos_] == '[') refuse("a class within a class");
      if (rest().starts_with("&&")) refuse("an intersection '&&'");
      if (pattern_[pos_] == '\\') {
        escape();
      } else {
        copy(1);
      }
    }
    if (pos_ == pattern_.size()) refuse("a class without ']'");
    copy(1);
  }

  void group() {
    static constexpr std::array<std::string_view, 7> kShared = {"(?:",  "(?i:", "(?=", "(?!",
                                                                "(?<=", "(?<!", "(?>"};
    for (const std::string_view opening : kShared) {
      if (rest().starts_with(opening)) return copy(opening.size());
    }
    if (rest().starts_with("(?") || rest().starts_with("(*"))
      refuse(fmt::format("group '{}'", rest().substr(0, 4)));
    copy(1);
  }

  // {n}, {n,}, {n,m}. Ruby reads {,m} as a count and a '+' behind a count as a second repeat; PCRE2 does not.
  void repeat_count() {
    size_t size = 1;
    while (size < rest().size() && is_digit(rest()[size])) ++size;
    const bool has_minimum = size > 1;
    const bool has_comma = size < rest().size() && rest()[size] == ',';
    if (has_comma) ++size;
    while (has_comma && size < rest().size() && is_digit(rest()[size])) ++size;
    if (!has_minimum || size == rest().size() || rest()[size] != '}')
      refuse("'{' that begins no {n}, {n,} or {n,m}");
    copy(size + 1);
    if (rest().starts_with('+')) refuse("'+' behind a count");
    if (rest().starts_with('?') && !has_comma) refuse("'?' behind {n}");
  }

  std::string_view pattern_;
  size_t pos_ = 0;
  std::string result_;
};

}  // namespace

std::string translate_pattern(std::string_view oniguruma_pattern) {
  return Translator(oniguruma_pattern).translate();
}

}  // namespace longspan::text
