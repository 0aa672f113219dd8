// RegexSplitter: the pre-tokenizer. Cuts text into pieces with the pattern of tokenizer.json; merges never
// cross a piece. Patterns are written for Oniguruma (Ruby syntax) and run by PCRE2: what the two read
// differently is translated or refused by name, never guessed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;

namespace longspan::text {

// The pattern in PCRE2 syntax with the meaning it has in Oniguruma. Throws kUnsupported naming the construct.
//   \s \S   Unicode White_Space in both; PCRE2's own \s would add U+180E
//   \d \D   category Nd
//   \p{Han} the script; PCRE2 would take the script extensions
std::string translate_pattern(std::string_view oniguruma_pattern);

// What becomes of the text between two matches.
enum class Gaps : uint8_t { kKeep, kDrop };

// kOff interprets the pattern: what happens anyway where memory cannot be made executable.
enum class Jit : uint8_t { kOn, kOff };

// Immutable after construction; any number of threads may split at once.
class RegexSplitter final {
 public:
  // Limits on one match, so that no text can make a pattern run away. A megabyte of spaces takes a million
  // steps.
  static constexpr uint32_t kMaxMatchSteps = 20'000'000;
  static constexpr uint32_t kMaxMatchHeapKiB = 256 * 1024;

  // Throws kInvalid (or kUnsupported) with the place in the pattern when it cannot be used.
  explicit RegexSplitter(std::string_view oniguruma_pattern, Gaps gaps = Gaps::kKeep, Jit jit = Jit::kOn);

  // The non-empty pieces of valid UTF-8 text, in order; views into it. Throws kExhausted at a match limit.
  std::vector<std::string_view> split(std::string_view valid_text) const;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  struct FreeContext {
    void operator()(pcre2_real_match_context_8* context) const;
  };

  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
  std::unique_ptr<pcre2_real_match_context_8, FreeContext> limits_;
  Gaps gaps_;
};

}  // namespace longspan::text
