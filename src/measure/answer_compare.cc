#include "measure/answer_compare.h"

#include <algorithm>
#include <cmath>

#include "text/utf8.h"

namespace longspan::measure {
namespace {

const std::string kEnd;  // an answer that is over has the empty token

// Servers list tokens differently. llama.cpp gives the end an entry without text, and of a character made of
// several tokens the last one alone, with the text of all and candidates that are the last piece. Here the
// end has no entry, and such a character has one: its text whole, its log probability that of the last token.
std::vector<ScoredToken> by_character(const std::vector<ScoredToken>& tokens) {
  std::vector<ScoredToken> entries;
  std::string begun;  // bytes of a character that the next token goes on with
  for (const ScoredToken& token : tokens) {
    if (token.text.empty()) continue;
    const std::string text = begun + token.text;
    begun = text::incomplete_utf8_suffix(text) > 0 ? text : "";
    if (!begun.empty()) continue;
    ScoredToken& entry = entries.emplace_back(token);
    std::string missing = text.substr(0, text.size() - token.text.size());
    const std::string best = token.top.empty() ? "" : token.top.front().first;
    if (missing.empty() && !best.empty() && text.size() > best.size() && text.ends_with(best) &&
        text::find_invalid_utf8(best))
      missing = text.substr(0, text.size() - best.size());
    entry.text = text;
    for (auto& candidate : entry.top) candidate.first.insert(0, missing);
  }
  if (!begun.empty()) entries.push_back({.text = begun});  // the answer breaks off inside a character
  return entries;
}

// By how much the best token is better than `token`.
std::optional<double> gap_to(const ScoredToken& chosen, const std::string& token) {
  for (const auto& [text, logprob] : chosen.top)
    if (text == token) return chosen.logprob - logprob;
  return std::nullopt;
}

std::string quoted(const std::string& token) {
  if (token.empty()) return "the end";
  return nlohmann::json(token).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string gap_text(const std::optional<double>& gap) {
  return gap ? fmt::format("{:.3g} behind", *gap) : "not among its best";
}

}  // namespace

AnswerComparison compare_answers(const std::vector<ScoredToken>& tokens_of_one,
                                 const std::vector<ScoredToken>& tokens_of_other) {
  const std::vector<ScoredToken> one = by_character(tokens_of_one), other = by_character(tokens_of_other);
  AnswerComparison comparison{.num_tokens = std::max(one.size(), other.size())};
  for (size_t i = 0; i < comparison.num_tokens; ++i) {
    const std::string& a = i < one.size() ? one[i].text : kEnd;
    const std::string& b = i < other.size() ? other[i].text : kEnd;
    if (a != b) {
      Divergence& divergence = comparison.divergence.emplace();
      divergence = {.position = i, .one = a, .other = b};
      if (i < one.size()) divergence.gap_of_one = gap_to(one[i], b);
      if (i < other.size()) divergence.gap_of_other = gap_to(other[i], a);
      break;
    }
    ++comparison.num_equal;
    comparison.largest_difference =
        std::max(comparison.largest_difference, std::abs(one[i].logprob - other[i].logprob));
  }
  return comparison;
}

Findings compare_servers(ChatAnswerer& one, ChatAnswerer& other, const std::vector<Task>& prompts,
                         const std::function<void(size_t, size_t)>& on_answer) {
  Findings findings;
  size_t num_equal = 0, num_ties = 0, num_tokens = 0;
  double largest = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const AnswerComparison comparison =
        compare_answers(one.scored_answer(prompts[i]), other.scored_answer(prompts[i]));
    if (on_answer) on_answer(i + 1, prompts.size());
    num_tokens += comparison.num_equal;
    largest = std::max(largest, comparison.largest_difference);
    if (!comparison.divergence) {
      ++num_equal;
      continue;
    }
    const Divergence& first = *comparison.divergence;
    if (first.is_tie()) ++num_ties;
    findings.push_back(
        {"divergence", first.is_tie() ? Verdict::kOk : Verdict::kFail,
         fmt::format(
             "prompt {} ({}): {} tokens equal (log probabilities within {:.2g}), then {} has {} ({} {}), "
             "{} has {} ({} {}): {}",
             i + 1, prompts[i].kind, comparison.num_equal, comparison.largest_difference, one.name(),
             quoted(first.one), quoted(first.other), gap_text(first.gap_of_one), other.name(),
             quoted(first.other), quoted(first.one), gap_text(first.gap_of_other),
             first.is_tie() ? "a tie within rounding" : "a real difference"),
         first.is_tie() ? "" : "one of the two computes something else: run verify with --model for each"});
  }
  constexpr double kFarApart = 0.5;
  const bool far = largest > kFarApart;
  const size_t num_real = prompts.size() - num_equal - num_ties;
  findings.insert(
      findings.begin(),
      {"against", far || num_real > 0 ? Verdict::kFail : Verdict::kOk,
       fmt::format("{} against {}: {} of {} answers equal, {} part at a tie, {} for another reason; log "
                   "probabilities of {} equal tokens within {:.2g}",
                   one.name(), other.name(), num_equal, prompts.size(), num_ties, num_real, num_tokens,
                   largest),
       far ? fmt::format("log probabilities may differ by {} at most: another dtype, template or model?",
                         kFarApart)
           : ""});
  return findings;
}

}  // namespace longspan::measure
