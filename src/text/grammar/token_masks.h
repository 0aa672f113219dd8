// TokenMasks: which tokens fit where an answer stands in its grammar.
//
// The vocabulary's tree is walked together with the grammar; a byte that does not fit cuts off everything
// below it. Where almost every byte fits (inside of strings) the walk is long, but does not depend on who
// called the rule: its result is kept, with the places at which the rule ended, and only from those the walk
// goes on.
//
// Cost with 248,000 tokens (843,000 nodes), processor time of one Xeon core, as text_test shows it: 0.01
// to 0.5 ms in the median, up to 4 ms where a rule ends in many tokens; 10 to 19 ms where free text is met
// first.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "text/grammar/runner.h"
#include "text/grammar/token_trie.h"

namespace longspan::text {

// Bits by token id, [ceil(vocabulary / 64)].
using TokenMask = std::vector<uint64_t>;

// For one grammar and one vocabulary. Thread-safe; shared by every answer of the grammar.
class TokenMasks final {
 public:
  static constexpr size_t kMaxKept = 128;  // masks of free text; further ones are made again each time

  // Makes the masks of the likeliest free text at once: a few milliseconds each, which the one who steps an
  // answer then does not spend.
  TokenMasks(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie);

  const Grammar& grammar() const { return *grammar_; }
  const TokenTrie& trie() const { return *trie_; }
  // Adds the tokens whose bytes fit behind `threads` to the mask, which has room for all of them. The runner
  // is left as it was.
  void add(GrammarRunner& runner, const ThreadSet& threads, TokenMask& mask);
  // The same for the tokens below a node of the trie, whose bytes are behind that node's.
  void add_below(GrammarRunner& runner, const ThreadSet& threads, int32_t node, TokenMask& mask) const;

 private:
  // Of free text, as if its rule had no caller.
  struct Inside {
    TokenMask tokens;            // that end inside of the rule
    std::vector<int32_t> exits;  // nodes of the trie whose byte ends the rule
  };
  using Key = std::tuple<NodeId, int32_t, int32_t>;  // node, min_left, max_left

  std::shared_ptr<const Inside> inside(const Thread& thread);
  Inside make_inside(const Thread& thread) const;

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const Inside>> kept_;  // guarded by mutex_
};

}  // namespace longspan::text
