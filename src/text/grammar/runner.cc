#include "text/grammar/runner.h"

#include <algorithm>

namespace longspan::text {

namespace {

using Kind = Grammar::Kind;

}  // namespace

void ThreadFilter::clear() {
  if (++round_ == 0) *this = {};
}

bool ThreadFilter::add(const Thread& thread) {
  const auto mix = static_cast<uint32_t>(thread.node) * 0x9e3779b1u ^
                   static_cast<uint32_t>(thread.frame) * 0x85ebca6bu ^
                   static_cast<uint32_t>(thread.max_left) * 0xc2b2ae35u;
  size_t at = (mix >> 16) % kSlots;
  for (; rounds_[at] == round_; at = (at + 1) % kSlots)
    if (threads_[at] == thread) return false;
  rounds_[at] = round_;
  threads_[at] = thread;
  return true;
}

void GrammarRunner::begin(ThreadSet& to) {
  to.clear();
  filter_.clear();
  called_.clear();
}

void GrammarRunner::enter(NodeId node, ThreadSet& to) {
  begin(to);
  follow({.node = node, .frame = 0, .min_left = 0, .max_left = 0}, to);
}

void GrammarRunner::step(const ThreadSet& from, uint8_t byte, ThreadSet& to) {
  begin(to);
  for (const Thread& thread : from.threads) step_thread(thread, byte, to);
}

void GrammarRunner::step_literal(const ThreadSet& from, uint8_t byte, ThreadSet& to) {
  begin(to);
  for (const Thread& thread : from.threads)
    if (grammar_.literal(thread.node)) step_thread(thread, byte, to);
}

void GrammarRunner::resume(const std::vector<Thread>& ended, ThreadSet& to) {
  begin(to);
  for (const Thread& thread : ended) return_from(thread, to);
}

void GrammarRunner::return_from(const Thread& thread, ThreadSet& to) {
  const Frame caller = frame(thread.frame);
  if (caller.next == kNoNode)
    to.returned = true;
  else
    follow({caller.next, caller.parent, caller.min_left, caller.max_left}, to);
}

void GrammarRunner::step_thread(const Thread& thread, uint8_t byte, ThreadSet& to) {
  Thread moved = thread;
  moved.node = grammar_.next(thread.node, byte);
  if (moved.node == kNoNode) return;
  if (grammar_.kind(thread.node) == Kind::kCounted) {
    if (byte == '"') {
      if (thread.min_left > 0) return;
    } else {
      if (thread.max_left == 0) return;
      if (moved.min_left > 0) --moved.min_left;
      if (moved.max_left != Grammar::kUnlimited) --moved.max_left;
    }
  }
  follow(moved, to);
}

void GrammarRunner::follow(Thread thread, ThreadSet& to) {
  if (grammar_.height(thread.node) > 0 &&
      frame(thread.frame).depth + grammar_.height(thread.node) > Grammar::kMaxDepth)
    return;
  switch (grammar_.kind(thread.node)) {
    case Kind::kBytes:
    case Kind::kCounted:
      if (to.threads.size() < ThreadSet::kMaxThreads && filter_.add(thread)) to.threads.push_back(thread);
      return;
    case Kind::kSplit:
      for (const NodeId target : grammar_.targets(thread.node))
        follow({target, thread.frame, thread.min_left, thread.max_left}, to);
      return;
    case Kind::kCall:
      call(thread, to);
      return;
    case Kind::kCount:
      if (thread.max_left == 0) return;
      thread.node = grammar_.target(thread.node);
      if (thread.min_left > 0) --thread.min_left;
      if (thread.max_left != Grammar::kUnlimited) --thread.max_left;
      follow(thread, to);
      return;
    case Kind::kEnough:
      if (thread.min_left > 0) return;
      thread.node = grammar_.target(thread.node);
      follow(thread, to);
      return;
    case Kind::kReturn:
      return_from(thread, to);
      return;
  }
}

// The last call of a rule needs no frame: whoever called the rule is returned to. So a chain of rules has the
// depth of one.
void GrammarRunner::call(const Thread& thread, ThreadSet& to) {
  if (std::find(called_.begin(), called_.end(), thread) != called_.end()) return;
  called_.push_back(thread);
  const Grammar::Call& call = grammar_.call(thread.node);
  int32_t callee_frame = thread.frame;
  if (grammar_.kind(call.next) != Kind::kReturn) {
    const int32_t depth = frame(thread.frame).depth + 1;
    callee_frame = static_cast<int32_t>(frames_.size());
    frames_.push_back({call.next, thread.frame, thread.min_left, thread.max_left, depth});
  }
  follow({call.rule, callee_frame, call.min, call.max}, to);
}

void GrammarRunner::compact(ThreadSet& set) {
  std::vector<int32_t> moved(frames_.size(), -1);
  moved[0] = 0;
  for (const Thread& thread : set.threads)
    for (int32_t id = thread.frame; moved[static_cast<size_t>(id)] < 0; id = frame(id).parent)
      moved[static_cast<size_t>(id)] = 0;  // needed
  int32_t size = 1;
  for (size_t id = 1; id < frames_.size(); ++id) {
    if (moved[id] < 0) continue;
    Frame kept = frames_[id];  // parents come first
    kept.parent = moved[static_cast<size_t>(kept.parent)];
    moved[id] = size;
    frames_[static_cast<size_t>(size++)] = kept;
  }
  frames_.resize(static_cast<size_t>(size));
  for (Thread& thread : set.threads) thread.frame = moved[static_cast<size_t>(thread.frame)];
}

bool matches(const Grammar& grammar, std::string_view text) {
  GrammarRunner runner(grammar);
  ThreadSet here;
  ThreadSet after;
  runner.enter(grammar.start(), here);
  for (const char c : text) {
    runner.step(here, static_cast<uint8_t>(c), after);
    std::swap(here, after);
    if (here.threads.empty() && !here.returned) return false;
  }
  return here.returned;
}

}  // namespace longspan::text
