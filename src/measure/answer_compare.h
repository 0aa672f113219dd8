// AnswerCompare: two servers' answers to one prompt, token by token, and what their first difference means.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "measure/chat_answerer.h"
#include "measure/finding.h"

namespace longspan::measure {

// Greedy decoding takes the better of two tokens by however little. In bfloat16 logits of 16 to 32 are
// multiples of 1/8: two roundings may swap tokens that lie this far apart.
inline constexpr double kTieGap = 0.25;  // nats

struct Divergence {
  size_t position = 0;  // tokens that are equal before it
  std::string one, other;
  // How much each prefers its own token to the other's; none where the other's is not among its best.
  std::optional<double> gap_of_one, gap_of_other;

  bool is_tie() const {
    return gap_of_one && gap_of_other && *gap_of_one <= kTieGap && *gap_of_other <= kTieGap;
  }
};

struct AnswerComparison {
  size_t num_equal = 0;           // tokens, from the first on
  size_t num_tokens = 0;          // of the longer one
  double largest_difference = 0;  // of log probabilities of equal tokens
  std::optional<Divergence> divergence;
};

// A character that several tokens make up counts as one token, and tokens without text (the end) as none:
// that is where servers list them differently.
AnswerComparison compare_answers(const std::vector<ScoredToken>& one, const std::vector<ScoredToken>& other);

// One finding a prompt that diverges, and one for all. kFail: a difference that rounding does not explain.
Findings compare_servers(ChatAnswerer& one, ChatAnswerer& other, const std::vector<Task>& prompts,
                         const std::function<void(size_t done, size_t total)>& on_answer);

}  // namespace longspan::measure
