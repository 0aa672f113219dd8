// Random texts of a grammar: at each step a byte that fits, with the end taken as soon as it may come or
// later.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "text/grammar/runner.h"
#include "text/grammar/text_rules.h"

namespace longspan::testing {

using Random = std::mt19937_64;

// How much of the end tag of a parameter the text ends with.
inline size_t begun_end_tag(const std::string& text) {
  size_t size = text::kParameterEnd.size() - 1;
  while (!text.ends_with(text::kParameterEnd.substr(0, size))) --size;
  return size;
}

// Favours the bytes that close something once the text has `size` bytes, so that it comes to an end; none
// when it does not within 64 times that.
inline std::string random_text(const text::Grammar& grammar, Random& random, size_t size) {
  text::GrammarRunner runner(grammar);
  text::ThreadSet here;
  text::ThreadSet after;
  runner.enter(grammar.start(), here);
  std::string out;
  while (true) {
    std::vector<char> fitting;
    for (int byte = 0; byte < 256; ++byte) {
      runner.step(here, static_cast<uint8_t>(byte), after);
      if (!after.empty()) fitting.push_back(static_cast<char>(byte));
    }
    if (here.returned && (fitting.empty() || out.size() >= size || random() % 4 == 0)) return out;
    if (fitting.empty() || out.size() > 64 * size + 4096) return "";
    char chosen = fitting[random() % fitting.size()];
    for (const char closing : {']', '}', '"'})
      if (out.size() >= size && std::find(fitting.begin(), fitting.end(), closing) != fitting.end())
        chosen = closing;
    const char end_tag = text::kParameterEnd[begun_end_tag(out)];
    if (out.size() >= size && std::find(fitting.begin(), fitting.end(), end_tag) != fitting.end())
      chosen = end_tag;
    runner.step(here, static_cast<uint8_t>(chosen), after);
    std::swap(here, after);
    out += chosen;
  }
}

// One byte or two changed, left out, doubled or put in.
inline std::string mutated(std::string text, Random& random) {
  constexpr std::string_view kBytes = "\"\\{}[]:,.-+eE0123456789 \n\t<>/abtrufalsn\x80\xC3\xFF";
  for (size_t i = 1 + random() % 2; i-- > 0;) {
    const size_t at = text.empty() ? 0 : random() % text.size();
    const char byte = kBytes[random() % kBytes.size()];
    if (text.empty() || random() % 3 == 0)
      text.insert(at, 1, byte);
    else if (random() % 2 == 0)
      text[at] = byte;
    else
      text.erase(at, 1);
  }
  return text;
}

}  // namespace longspan::testing
