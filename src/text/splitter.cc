#include "text/splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "core/error.h"
#include "text/utf8.h"

namespace longspan::text {
namespace {

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> message{};
  pcre2_get_error_message(code, message.data(), message.size());
  return reinterpret_cast<const char*>(message.data());
}

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

// One search. JIT code has a stack of 32 KiB; a pattern that needs more goes on in the interpreter, whose
// backtracking lives on the heap.
int match(const pcre2_code* code, std::string_view text, size_t offset, pcre2_match_data* data,
          pcre2_match_context* limits) {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int result = pcre2_match(code, subject, text.size(), offset, PCRE2_NO_UTF_CHECK, data, limits);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
    result = pcre2_match(code, subject, text.size(), offset, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, limits);
  }
  return result;
}

}  // namespace

void RegexSplitter::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }
void RegexSplitter::FreeContext::operator()(pcre2_real_match_context_8* context) const {
  pcre2_match_context_free(context);
}

RegexSplitter::RegexSplitter(std::string_view oniguruma_pattern, Gaps gaps, Jit jit) : gaps_(gaps) {
  const std::string pattern = translate_pattern(oniguruma_pattern);
  // Ruby's ^ and $ are always those of lines, and its only line end is LF.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  limits_.reset(pcre2_match_context_create(nullptr));
  CHECK(context && limits_);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);

  int error = 0;
  PCRE2_SIZE error_offset = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error,
                            &error_offset, context.get()));
  if (!code_) {
    fail(ErrorKind::kInvalid, "pattern: got '{}' at offset {} of '{}', need a valid regular expression",
         error_text(error), error_offset, pattern);
  }
  if (jit == Jit::kOn)
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // a failure leaves the interpreter
  pcre2_set_match_limit(limits_.get(), kMaxMatchSteps);
  pcre2_set_heap_limit(limits_.get(), kMaxMatchHeapKiB);
}

std::vector<std::string_view> RegexSplitter::split(std::string_view valid_text) const {
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(pcre2_match_data_create(1, nullptr));
  CHECK(data);
  std::vector<std::string_view> pieces;
  size_t piece_begin = 0;  // end of the last match
  for (size_t offset = 0; offset < valid_text.size();) {
    const int result = match(code_.get(), valid_text, offset, data.get(), limits_.get());
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      fail(ErrorKind::kExhausted,
           "pre-tokenizer: got '{}' at byte {} of the text, need a match within {} steps", error_text(result),
           offset, kMaxMatchSteps);
    }
    const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(data.get());
    const size_t begin = ends[0];
    const size_t end = ends[1];
    if (begin == end) {  // an empty match cuts nothing; search on after the next character
      if (end == valid_text.size()) break;
      offset = end + code_point_at(valid_text, end).size_bytes;
      continue;
    }
    if (begin > piece_begin && gaps_ == Gaps::kKeep)
      pieces.push_back(valid_text.substr(piece_begin, begin - piece_begin));
    pieces.push_back(valid_text.substr(begin, end - begin));
    piece_begin = offset = end;
  }
  if (piece_begin < valid_text.size() && gaps_ == Gaps::kKeep)
    pieces.push_back(valid_text.substr(piece_begin));
  return pieces;
}

}  // namespace longspan::text
