#include "text/grammar/token_masks.h"

#include <algorithm>

namespace longspan::text {
namespace {

void set_bits(std::span<const int32_t> tokens, TokenMask& mask) {
  for (const int32_t token : tokens) mask[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
}

// Walks parts of the trie with a runner, which is left as it was.
class Walker {
 public:
  Walker(GrammarRunner& runner, const TokenTrie& trie) : runner_(runner), trie_(trie), levels_(1) {}

  // Nodes [begin, end): all of those below the node, or the root, at which `threads` stand. on_node(node,
  // set) hears of each one that some reading reaches.
  template <class OnNode>
  void walk(const ThreadSet& threads, int32_t begin, int32_t end, OnNode&& on_node) {
    if (begin >= end || threads.threads.empty()) return;
    const std::span<const TokenTrie::Node> nodes = trie_.nodes();
    const size_t mark = runner_.mark();
    levels_[0].threads = threads;
    levels_[0].mark = mark;
    const int base = nodes[static_cast<size_t>(begin)].depth;
    for (int32_t i = begin; i < end;) {
      const TokenTrie::Node& node = nodes[static_cast<size_t>(i)];
      const auto level = static_cast<size_t>(node.depth - base);
      if (levels_.size() < level + 2) levels_.resize(level + 2);
      const Level& above = levels_[level];
      Level& here = levels_[level + 1];
      here.mark = above.mark;
      if (!runner_.step_alone(above.threads, node.byte, here.threads)) {
        runner_.rewind(above.mark);
        runner_.step(above.threads, node.byte, here.threads);
        here.mark = runner_.mark();
      }
      if (!here.threads.empty()) on_node(i, here.threads);
      i = here.threads.threads.empty() ? node.end : i + 1;
    }
    runner_.rewind(mark);
  }
  template <class OnNode>
  void walk_all(const ThreadSet& threads, OnNode&& on_node) {
    walk(threads, 0, static_cast<int32_t>(trie_.nodes().size()), on_node);
  }
  template <class OnNode>
  void walk_below(const ThreadSet& threads, int32_t node, OnNode&& on_node) {
    walk(threads, node + 1, trie_.nodes()[static_cast<size_t>(node)].end, on_node);
  }

 private:
  struct Level {
    ThreadSet threads;
    size_t mark = 0;  // of the runner, when they were made
  };

  GrammarRunner& runner_;
  const TokenTrie& trie_;
  std::vector<Level> levels_;  // by depth below the start
};

}  // namespace

TokenMasks::TokenMasks(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie)
    : grammar_(std::move(grammar)), trie_(std::move(trie)) {
  constexpr size_t kMaxAhead = 16;
  const std::vector<NodeId> common = grammar_->common_nodes();
  for (size_t i = 0; i < std::min(common.size(), kMaxAhead); ++i)
    inside({.node = common[i], .frame = 0, .min_left = 0, .max_left = Grammar::kUnlimited});
}

TokenMasks::Inside TokenMasks::make_inside(const Thread& thread) const {
  Inside inside{.tokens = TokenMask((static_cast<size_t>(trie_->vocab_size()) + 63) / 64)};
  GrammarRunner runner(*grammar_);
  ThreadSet start;
  start.threads = {thread};
  start.threads[0].frame = 0;
  Walker(runner, *trie_).walk_all(start, [&](int32_t node, const ThreadSet& here) {
    if (!here.threads.empty()) set_bits(trie_->tokens_at(node), inside.tokens);
    if (here.returned) inside.exits.push_back(node);
  });
  return inside;
}

std::shared_ptr<const TokenMasks::Inside> TokenMasks::inside(const Thread& thread) {
  // More repetitions than a token has bytes are as good as any number.
  const int32_t enough = trie_->max_token_bytes() + 1;
  const bool unlimited = thread.max_left > enough;
  const Thread seen{.node = thread.node,
                    .frame = 0,
                    .min_left = std::min(thread.min_left, enough),
                    .max_left = unlimited ? Grammar::kUnlimited : thread.max_left};
  const Key key{seen.node, seen.min_left, seen.max_left};
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = kept_.find(key); found != kept_.end()) return found->second;
  }
  auto made = std::make_shared<const Inside>(make_inside(seen));
  const std::lock_guard lock(mutex_);
  if (kept_.size() < kMaxKept) kept_.emplace(key, made);
  return made;
}

void TokenMasks::add(GrammarRunner& runner, const ThreadSet& threads, TokenMask& mask) {
  const size_t mark = runner.mark();
  ThreadSet others;  // threads that are not in free text
  std::map<const Inside*, std::vector<Thread>> texts;
  std::vector<std::shared_ptr<const Inside>> alive;
  for (const Thread& thread : threads.threads) {
    if (!grammar_->free_text(thread.node)) {
      others.threads.push_back(thread);
      continue;
    }
    alive.push_back(inside(thread));
    texts[alive.back().get()].push_back(thread);
  }
  const auto on_node = [&](int32_t node, const ThreadSet&) { set_bits(trie_->tokens_at(node), mask); };
  Walker walker(runner, *trie_);
  walker.walk_all(others, on_node);
  ThreadSet after;
  for (const auto& [text, inside_it] : texts) {
    for (size_t i = 0; i < text->tokens.size(); ++i) mask[i] |= text->tokens[i];
    runner.resume(inside_it, after);
    if (after.empty()) continue;
    for (const int32_t exit : text->exits) {
      set_bits(trie_->tokens_at(exit), mask);
      walker.walk_below(after, exit, on_node);
    }
    runner.rewind(mark);
  }
  // Markup stands only where the grammar spells it out.
  for (const TokenTrie::Markup& markup : trie_->markup()) {
    ThreadSet here = threads;
    for (const char c : markup.bytes) {
      runner.step_literal(here, static_cast<uint8_t>(c), after);
      std::swap(here, after);
      if (here.empty()) break;
    }
    if (!here.empty()) set_bits({&markup.token, 1}, mask);
    runner.rewind(mark);
  }
}

void TokenMasks::add_below(GrammarRunner& runner, const ThreadSet& threads, int32_t node,
                           TokenMask& mask) const {
  Walker(runner, *trie_).walk_below(threads, node, [&](int32_t below, const ThreadSet&) {
    set_bits(trie_->tokens_at(below), mask);
  });
}

}  // namespace longspan::text
