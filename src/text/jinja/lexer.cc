#include "text/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/strings.h"
#include "text/utf8.h"

namespace longspan::text::jinja {
namespace {

using Kind = Token::Kind;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_name_char(char c) { return is_name_start(c) || is_digit(c); }

class Lexer {
 public:
  explicit Lexer(const Text& source) : source_(source), text_(source.view()) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) lex_data();
    push(Kind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  template <class... A>
  [[noreturn]] void error(fmt::format_string<A...> format, A&&... args) const {
    fail(ErrorKind::kInvalid, "line {}: {}", line_, fmt::format(format, std::forward<A>(args)...));
  }

  std::string_view rest() const { return text_.substr(at_); }
  bool next_is(std::string_view prefix) const { return rest().starts_with(prefix); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  void advance(size_t size) {
    line_ += static_cast<int>(std::count(text_.begin() + at_, text_.begin() + at_ + size, '\n'));
    at_ += size;
  }
  void skip_spaces() { advance(rest().size() - strip(rest(), Side::kLeft).size()); }

  void push(Kind kind, std::string_view spelling) {
    tokens_.push_back({kind, line_, source_.slice(spelling)});
  }

  // Literal text up to the next tag, then that tag.
  void lex_data() {
    size_t open = text_.find('{', at_);
    while (open < text_.size() && (open + 1 == text_.size() || !is_tag_mark(text_[open + 1])))
      open = text_.find('{', open + 1);
    if (open >= text_.size()) {
      push_data(rest());
      return advance(rest().size());
    }
    const std::string_view data = text_.substr(at_, open - at_);
    const char mark = text_[open + 1];
    const char sign = open + 2 < text_.size() ? text_[open + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    push_data(left_trimmed(data, sign, /*is_print=*/mark == '{'));
    advance(data.size() + 2 + (has_sign ? 1 : 0));
    if (mark == '#') return lex_comment();
    if (mark == '%' && lex_raw()) return;
    push(mark == '{' ? Kind::kPrintBegin : Kind::kBlockBegin, {});
    lex_expression(/*is_print=*/mark == '{');
  }

  static bool is_tag_mark(char c) { return c == '{' || c == '%' || c == '#'; }

  void push_data(std::string_view data) {
    if (!data.empty()) push(Kind::kData, data);
  }

  // lstrip_blocks: white space between the start of a line and a block or comment goes away.
  std::string_view left_trimmed(std::string_view data, char sign, bool is_print) const {
    if (sign == '-') return strip(data, Side::kRight);
    if (sign == '+' || is_print) return data;
    const size_t line_begin = data.rfind('\n') + 1;  // npos + 1 == 0
    if (line_begin == 0 && !at_line_start_) return data;
    return strip(data.substr(line_begin)).empty() ? data.substr(0, line_begin) : data;
  }

  // After the closing mark of a tag: `-` eats all white space, trim_blocks eats one newline.
  void close_tag(size_t mark_size, char sign, bool is_print) {
    const size_t begin = at_;
    advance(mark_size);
    if (sign == '-') {
      skip_spaces();
    } else if (sign != '+' && !is_print && peek() == '\n') {
      advance(1);
    }
    at_line_start_ = at_ > begin && text_[at_ - 1] == '\n';
  }

  void lex_comment() {
    const size_t end = text_.find("#}", at_);
    if (end == text_.npos) error("missing end of comment '#}}'");
    const char sign = end > at_ ? text_[end - 1] : '\0';
    advance(end - at_);
    close_tag(2, sign, /*is_print=*/false);
  }

  // `{% raw %} ... {% endraw %}`: everything between is data. False when the tag is not `raw`.
  bool lex_raw() {
    std::string_view tag = strip(rest(), Side::kLeft);
    if (!tag.starts_with("raw")) return false;
    tag = strip(tag.substr(3), Side::kLeft);
    const bool strips = tag.starts_with("-%}");
    if (!strips && !tag.starts_with("%}")) return false;
    advance(rest().size() - tag.size() + (strips ? 3 : 2));
    if (strips) skip_spaces();
    at_line_start_ = text_[at_ - 1] == '\n';
    for (size_t open = text_.find("{%", at_); open != text_.npos; open = text_.find("{%", open + 2)) {
      std::string_view end = text_.substr(open + 2);
      const char sign = end.empty() ? '\0' : end[0];
      if (sign == '-' || sign == '+') end.remove_prefix(1);
      end = strip(end, Side::kLeft);
      if (!end.starts_with("endraw")) continue;
      end = strip(end.substr(6), Side::kLeft);
      const char end_sign = end.empty() ? '\0' : end[0];
      if (end_sign == '-' || end_sign == '+') end.remove_prefix(1);
      if (!end.starts_with("%}")) continue;
      push_data(left_trimmed(text_.substr(at_, open - at_), sign, /*is_print=*/false));
      advance(rest().size() - end.size());
      close_tag(2, end_sign, /*is_print=*/false);
      return true;
    }
    error("missing end of raw block");
  }

  // The tokens of one tag, through its closing mark. Closing marks inside brackets do not count.
  void lex_expression(bool is_print) {
    const std::string_view close = is_print ? "}}" : "%}";
    std::vector<char> brackets;
    while (true) {
      skip_spaces();
      if (at_ == text_.size()) error("missing '{}'", close);
      const char sign = peek();
      const bool signed_close =
          (sign == '-' || (sign == '+' && !is_print)) && rest().substr(1).starts_with(close);
      if (brackets.empty() && (signed_close || next_is(close))) {
        push(is_print ? Kind::kPrintEnd : Kind::kBlockEnd, {});
        return close_tag(signed_close ? 3 : 2, sign, is_print);
      }
      if (is_digit(sign)) {
        lex_number();
      } else if (is_name_start(sign)) {
        size_t size = 1;
        while (is_name_char(peek(size))) ++size;
        push(Kind::kName, rest().substr(0, size));
        advance(size);
      } else if (sign == '\'' || sign == '"') {
        lex_string(sign);
      } else {
        lex_operator(brackets);
      }
    }
  }

  void lex_operator(std::vector<char>& brackets) {
    static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "/",
                                                      "*",  "%",  "~",  "<",  ">",  "=",  ".", ":", "|",
                                                      ",",  ";",  "(",  ")",  "[",  "]",  "{", "}"};
    const auto op = std::find_if(std::begin(kOperators), std::end(kOperators),
                                 [this](std::string_view candidate) { return next_is(candidate); });
    if (op == std::end(kOperators)) {
      const size_t size = code_point_at(text_, at_).size_bytes;
      error("unexpected character '{}'", rest().substr(0, size));
    }
    const char c = (*op)[0];
    if (c == '(' || c == '[' || c == '{') brackets.push_back(c);
    if (c == ')' || c == ']' || c == '}') {
      const char open = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (brackets.empty() || brackets.back() != open) error("unexpected '{}'", c);
      brackets.pop_back();
    }
    push(Kind::kOperator, rest().substr(0, op->size()));
    advance(op->size());
  }

  // Digits with single '_' between them; empty when the text does not start with one.
  static size_t digits_size(std::string_view text, bool (*is_valid)(char)) {
    size_t size = 0;
    while (size < text.size() &&
           (is_valid(text[size]) || (text[size] == '_' && size > 0 && text[size - 1] != '_')))
      ++size;
    while (size > 0 && text[size - 1] == '_') --size;
    return size;
  }

  void lex_number() {
    if (peek() == '0' && lex_based_integer()) return;
    size_t size = digits_size(rest(), is_digit);
    bool is_float = false;
    if (peek(size) == '.') {
      // A number after a dot is an item name ("x.0.1"), never a fraction.
      const size_t fraction = digits_size(rest().substr(size + 1), is_digit);
      is_float = fraction > 0 && !(at_ > 0 && text_[at_ - 1] == '.');
      if (is_float) size += 1 + fraction;
    }
    if (peek(size) == 'e' || peek(size) == 'E') {
      const size_t sign = peek(size + 1) == '+' || peek(size + 1) == '-' ? 1 : 0;
      const size_t exponent = digits_size(rest().substr(std::min(size + 1 + sign, rest().size())), is_digit);
      if (exponent > 0) size += 1 + sign + exponent;
      is_float = is_float || exponent > 0;
    }
    push_number(rest().substr(0, size), 10, is_float);
    advance(size);
  }

  // 0x1F, 0o17, 0b101.
  bool lex_based_integer() {
    const char kind = static_cast<char>(peek(1) | 0x20);
    const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (base == 0) return false;
    const size_t size = digits_size(rest().substr(2), [](char c) { return is_digit(c) || is_name_start(c); });
    if (size == 0) return false;
    push_number(rest().substr(2, size), base, /*is_float=*/false);
    advance(2 + size);
    return true;
  }

  void push_number(std::string_view spelling, int base, bool is_float) {
    std::string digits(spelling);
    std::erase(digits, '_');
    push(is_float ? Kind::kFloat : Kind::kInteger, spelling);
    Token& token = tokens_.back();
    const char* end = digits.data() + digits.size();
    const auto result = is_float ? std::from_chars(digits.data(), end, token.real)
                                 : std::from_chars(digits.data(), end, token.integer, base);
    if (result.ec == std::errc::result_out_of_range && is_float) {
      token.real = digits.find("e-") == digits.npos && digits.find("E-") == digits.npos ? HUGE_VAL : 0.0;
    } else if (result.ec != std::errc() || result.ptr != end) {
      error("number '{}' is malformed or does not fit 64 bits", spelling);
    }
  }

  void lex_string(char mark) {
    size_t end = 1;
    while (peek(end) != mark) {
      end += peek(end) == '\\' ? 2 : 1;
      if (at_ + end >= text_.size()) error("missing end of string {}", mark);
    }
    const std::string_view body = rest().substr(1, end - 1);
    if (body.find('\\') == body.npos) {
      push(Kind::kString, body);
    } else {
      tokens_.push_back({Kind::kString, line_, Text(unescape(body))});
    }
    advance(end + 1);
  }

  // Python's escapes. An unknown one keeps its backslash; a surrogate becomes U+FFFD.
  std::string unescape(std::string_view body) const {
    std::string result;
    for (size_t i = 0; i < body.size(); ++i) {
      if (body[i] != '\\') {
        result += body[i];
        continue;
      }
      const char c = body[++i];  // lex_string took both characters of an escape
      static constexpr std::string_view kFrom = "\\'\"abfnrtv";
      static constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t at = kFrom.find(c); at != kFrom.npos) {
        result += kTo[at];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t size = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_code_point(body.substr(i + 1, size), 16, size, result);
        i += size;
      } else if (c >= '0' && c <= '7') {
        size_t size = 1;
        while (size < 3 && i + size < body.size() && body[i + size] >= '0' && body[i + size] <= '7') ++size;
        append_code_point(body.substr(i, size), 8, size, result);
        i += size - 1;
      } else if (c != '\n') {  // a backslash at the end of a line joins the lines
        result += '\\';
        result += c;
      }
    }
    return result;
  }

  void append_code_point(std::string_view digits, int base, size_t need, std::string& result) const {
    uint32_t value = 0;
    const char* end = digits.data() + digits.size();
    const auto parsed = std::from_chars(digits.data(), end, value, base);
    if (digits.size() != need || parsed.ptr != end || parsed.ec != std::errc() || value > 0x10FFFF)
      error("malformed escape in a string: '{}'", digits);
    if (value >= 0xD800 && value <= 0xDFFF) {
      result += kReplacementCharacter;
    } else {
      append_utf8(value, result);
    }
  }

  Text source_;
  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;  // the last tag ended a line (or there was none)
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> lex(const Text& source) { return Lexer(source).run(); }

std::string normalize_source(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return replace_invalid_utf8(text);
}

}  // namespace longspan::text::jinja
