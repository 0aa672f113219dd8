// parse_regex: recursive descent, one function per level of binding.
#include <algorithm>
#include <optional>

#include "core/error.h"
#include "text/grammar/regex.h"
#include "text/utf8.h"

namespace longspan::text {
namespace {

constexpr char32_t kLastChar = 0x10FFFF;
constexpr int kMaxNesting = 64;
constexpr int32_t kMaxRepeats = 10'000;

using Chars = std::vector<CharRange>;

const Chars kDigits = {{'0', '9'}};
const Chars kWordChars = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Chars kSpaces = {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680},
                       {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                       {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const Chars kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
const Chars kSurrogates = {{0xD800, 0xDFFF}};

Chars normalized(Chars chars) {
  std::sort(chars.begin(), chars.end(), [](CharRange x, CharRange y) { return x.low < y.low; });
  Chars merged;
  for (const CharRange range : chars) {
    if (!merged.empty() && range.low <= merged.back().high + 1)
      merged.back().high = std::max(merged.back().high, range.high);
    else
      merged.push_back(range);
  }
  return merged;
}

Chars complement(Chars chars) {
  Chars rest;
  char32_t begin = 0;
  for (const CharRange range : normalized(std::move(chars))) {
    if (range.low > begin) rest.push_back({begin, range.low - 1});
    begin = range.high + 1;
  }
  if (begin <= kLastChar) rest.push_back({begin, kLastChar});
  return rest;
}

Chars without_surrogates(Chars chars) {
  Chars outside = complement(std::move(chars));
  outside.insert(outside.end(), kSurrogates.begin(), kSurrogates.end());
  return complement(std::move(outside));
}

Regex of_chars(Chars chars) {
  return {.kind = Regex::Kind::kChars, .chars = without_surrogates(std::move(chars))};
}

Regex anything() {
  return {
      .kind = Regex::Kind::kRepeat, .parts = {of_chars(complement({}))}, .min = 0, .max = Regex::kUnlimited};
}

class Parser {
 public:
  explicit Parser(std::string_view pattern) : pattern_(pattern) {}

  Regex parse() {
    Regex choice{.kind = Regex::Kind::kChoice};
    do {
      Regex whole;
      const bool at_start = take('^');
      whole.parts.push_back(sequence());
      const bool at_end = take('$');
      if (!done() && peek() != '|') unexpected();
      if (!at_start) whole.parts.insert(whole.parts.begin(), anything());
      if (!at_end) whole.parts.push_back(anything());
      choice.parts.push_back(std::move(whole));
    } while (take('|'));
    return choice;
  }

 private:
  bool done() const { return at_ == pattern_.size(); }
  char peek() const { return done() ? '\0' : pattern_[at_]; }
  bool take(char c) {
    if (done() || pattern_[at_] != c) return false;
    ++at_;
    return true;
  }
  char32_t next_char() {
    const CodePoint point = code_point_at(pattern_, at_);
    at_ += point.size_bytes;
    return point.value;
  }
  [[noreturn]] void invalid(const char* what) const {
    fail(ErrorKind::kInvalid, "pattern '{}': {} at byte {}", pattern_.substr(0, 80), what, at_);
  }
  [[noreturn]] void unsupported(const char* what) const {
    fail(ErrorKind::kUnsupported, "pattern '{}': {} at byte {} is not supported", pattern_.substr(0, 80),
         what, at_);
  }
  [[noreturn]] void unexpected() const {
    if (peek() == ')') invalid("')' without '('");
    unsupported(peek() == '^' || peek() == '$' ? "'^' or '$' inside of an expression" : "this");
  }

  Regex alternatives() {
    Regex choice{.kind = Regex::Kind::kChoice};
    do choice.parts.push_back(sequence());
    while (take('|'));
    return choice;
  }

  Regex sequence() {
    Regex all;
    while (!done() && peek() != '|' && peek() != ')' && peek() != '$') all.parts.push_back(quantified());
    return all;
  }

  Regex quantified() {
    Regex one = atom();
    while (!done()) {
      const auto bounds = quantifier();
      if (!bounds) break;
      take('?');  // lazy: the same texts
      if (++num_quantifiers_ > kMaxNesting) invalid("too many quantifiers in a row");
      one = Regex{.kind = Regex::Kind::kRepeat,
                  .parts = {std::move(one)},
                  .min = bounds->first,
                  .max = bounds->second};
    }
    num_quantifiers_ = 0;
    return one;
  }

  std::optional<std::pair<int32_t, int32_t>> quantifier() {
    if (take('*')) return {{0, Regex::kUnlimited}};
    if (take('+')) return {{1, Regex::kUnlimited}};
    if (take('?')) return {{0, 1}};
    const size_t begin = at_;
    if (!take('{')) return std::nullopt;
    const auto min = number();
    std::optional<int32_t> max = min;
    if (min && take(',')) max = peek() == '}' ? Regex::kUnlimited : number();
    if (!min || !max || !take('}')) {  // a brace that stands for itself
      at_ = begin;
      return std::nullopt;
    }
    if (*max < *min) invalid("a repetition whose maximum is below its minimum");
    return {{*min, *max}};
  }

  std::optional<int32_t> number() {
    const size_t begin = at_;
    int32_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      value = value * 10 + (peek() - '0');
      if (value > kMaxRepeats) invalid("a repetition of more than 10000");
    }
    return at_ > begin ? std::optional(value) : std::nullopt;
  }

  Regex atom() {
    switch (peek()) {
      case '(':
        return group();
      case '[':
        ++at_;
        return char_class();
      case '.':
        ++at_;
        return of_chars(complement(kLineEnds));
      case '\\':
        return of_chars(escape(/*in_class=*/false));
      case '*':
      case '+':
      case '?':
        invalid("a quantifier without anything to repeat");
      case '^':
        unexpected();
      default: {
        const char32_t c = next_char();
        return of_chars({{c, c}});
      }
    }
  }

  Regex group() {
    ++at_;
    if (take('?') && !take(':')) unsupported("look-around or a named group");
    if (++nesting_ > kMaxNesting) invalid("groups nested deeper than 64");
    Regex inner = alternatives();
    --nesting_;
    if (peek() == '$') unexpected();
    if (!take(')')) invalid("a '(' without ')'");
    return inner;
  }

  Regex char_class() {
    const bool negated = take('^');
    Chars chars;
    while (!take(']')) {
      if (done()) invalid("a '[' without ']'");
      const Chars low = class_atom();
      const bool is_char = low.size() == 1 && low[0].low == low[0].high;
      if (is_char && peek() == '-' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']') {
        ++at_;
        const Chars high = class_atom();
        if (high.size() != 1 || high[0].low != high[0].high || high[0].low < low[0].low)
          invalid("a range whose end is below its start");
        chars.push_back({low[0].low, high[0].low});
      } else {
        chars.insert(chars.end(), low.begin(), low.end());
      }
    }
    return of_chars(negated ? complement(std::move(chars)) : std::move(chars));
  }

  Chars class_atom() {
    if (done()) invalid("a '[' without ']'");
    if (peek() == '\\') return escape(/*in_class=*/true);
    const char32_t c = next_char();
    return {{c, c}};
  }

  Chars escape(bool in_class) {
    ++at_;
    if (done()) invalid("a '\\' at the end");
    const char32_t c = next_char();
    const auto one = [](char32_t value) { return Chars{{value, value}}; };
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return complement(kDigits);
      case 'w':
        return kWordChars;
      case 'W':
        return complement(kWordChars);
      case 's':
        return kSpaces;
      case 'S':
        return complement(kSpaces);
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':
        return one(hex(2));
      case 'u':
        return one(hex(4));
      case 'b':
        if (in_class) return one('\b');
        unsupported("a word boundary");
      default:
        break;
    }
    const bool is_word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (is_word) unsupported("this escape");
    return one(c);
  }

  char32_t hex(int num_digits) {
    char32_t value = 0;
    for (int i = 0; i < num_digits; ++i, ++at_) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) invalid("a hexadecimal escape that is too short");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  }

  std::string_view pattern_;
  size_t at_ = 0;
  int nesting_ = 0;
  int num_quantifiers_ = 0;
};

}  // namespace

Regex parse_regex(std::string_view pattern) {
  validate_utf8(pattern, "pattern");
  return Parser(pattern).parse();
}

}  // namespace longspan::text
