// GrammarRunner: runs a grammar over bytes, all readings of an ambiguous text at once. A set of threads is
// where those readings stand.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/grammar/grammar.h"

namespace longspan::text {

struct Thread {
  NodeId node;       // that reads a byte
  int32_t frame;     // who called its rule
  int32_t min_left;  // repetitions of its rule
  int32_t max_left;

  bool operator==(const Thread&) const = default;
};

struct ThreadSet {
  // Of more readings than that the later ones are given up: what is left is still a part of the grammar, and
  // each of them can be completed.
  static constexpr size_t kMaxThreads = 256;

  std::vector<Thread> threads;
  bool returned = false;  // some reading has ended the rule that the runner began with

  bool empty() const { return threads.empty() && !returned; }
  void clear() {
    threads.clear();
    returned = false;
  }
};

// Which threads a set has already.
class ThreadFilter final {
 public:
  void clear();
  bool add(const Thread& thread);  // false: it was there. At most kMaxThreads of them

 private:
  static constexpr size_t kSlots = 4 * ThreadSet::kMaxThreads;

  uint32_t round_ = 1;  // slots of other rounds are free
  std::array<uint32_t, kSlots> rounds_{};
  std::array<Thread, kSlots> threads_{};
};

// Not thread-safe. Borrows the grammar. The frames of a set live in the runner that made it, up to rewind().
class GrammarRunner final {
 public:
  explicit GrammarRunner(const Grammar& grammar) : grammar_(grammar) { frames_.push_back({}); }

  const Grammar& grammar() const { return grammar_; }
  void enter(NodeId node, ThreadSet& to);  // of the grammar's starts
  // Replaces `to` by what `from` becomes through the byte.
  void step(const ThreadSet& from, uint8_t byte, ThreadSet& to);
  // The same for the commonest case, in which one thread reads a byte and waits for the next; false: it is
  // not that case, and nothing happened.
  bool step_alone(const ThreadSet& from, uint8_t byte, ThreadSet& to) const {
    if (from.threads.size() != 1) return false;
    const Thread& thread = from.threads.front();
    if (grammar_.kind(thread.node) != Grammar::Kind::kBytes) return false;
    const NodeId next = grammar_.next(thread.node, byte);
    if (next == kNoNode) {
      to.clear();
      return true;
    }
    if (grammar_.kind(next) != Grammar::Kind::kBytes || grammar_.height(next) != 0) return false;
    to.threads.assign(1, {next, thread.frame, thread.min_left, thread.max_left});
    to.returned = false;
    return true;
  }
  // step(), along bytes that the grammar spells out.
  void step_literal(const ThreadSet& from, uint8_t byte, ThreadSet& to);
  // Replaces `to` by what follows when the rules of these threads have ended.
  void resume(const std::vector<Thread>& ended, ThreadSet& to);

  // Frames made since the mark are forgotten.
  size_t mark() const { return frames_.size(); }
  void rewind(size_t mark) { frames_.resize(mark); }
  // Forgets every frame that the set does not need.
  void compact(ThreadSet& set);

 private:
  struct Frame {
    NodeId next = kNoNode;  // where the caller goes on; kNoNode: nobody called
    int32_t parent = 0;
    int32_t min_left = 0;
    int32_t max_left = 0;
    int32_t depth = 0;
  };

  void begin(ThreadSet& to);
  void step_thread(const Thread& thread, uint8_t byte, ThreadSet& to);
  void follow(Thread thread, ThreadSet& to);
  void return_from(const Thread& thread, ThreadSet& to);
  void call(const Thread& thread, ThreadSet& to);
  const Frame& frame(int32_t id) const { return frames_[static_cast<size_t>(id)]; }

  const Grammar& grammar_;
  std::vector<Frame> frames_;   // [0] is that of the first rule
  ThreadFilter filter_;         // of the set that the step under way makes
  std::vector<Thread> called_;  // calls of the step under way: a rule that calls itself ends there
};

// Whether the whole text fits. For tests and tools.
bool matches(const Grammar& grammar, std::string_view text);

}  // namespace longspan::text
