#include "text/grammar/grammar.h"

#include <algorithm>
#include <deque>
#include <map>

#include "core/error.h"

namespace longspan::text {
namespace {

using Kind = Grammar::Kind;
using Edge = Grammar::Edge;

constexpr uint16_t kNever = UINT16_MAX;  // height of a node from which no end is reached
constexpr uint32_t kTableEdges = 4;      // more edges than that get a table
constexpr int kFreeTextBytes = 64;       // reads at least that many different ones

int num_bytes(const std::vector<Edge>& edges) {
  int count = 0;
  for (const Edge& edge : edges) count += edge.high - edge.low + 1;
  return count;
}

}  // namespace

std::vector<NodeId> Grammar::common_nodes() const {
  std::vector<NodeId> common;
  for (NodeId id = 0; id < static_cast<NodeId>(nodes_.size()); ++id) {
    const Node& node = at(id);
    if (!node.free_text || node.kind != Kind::kBytes || node.table < 0) continue;
    if (next(id, 'e') == id) common.push_back(id);
  }
  return common;
}

GrammarBuilder::GrammarBuilder() { add({.kind = Kind::kReturn}); }

NodeId GrammarBuilder::add(Draft draft) {
  if (drafts_.size() >= Grammar::kMaxNodes)
    fail(ErrorKind::kInvalid, "the grammar is too large: need at most {} nodes", Grammar::kMaxNodes);
  drafts_.push_back(std::move(draft));
  return static_cast<NodeId>(drafts_.size()) - 1;
}

NodeId GrammarBuilder::literal(std::string_view text, NodeId next) {
  for (size_t i = text.size(); i-- > 0;) {
    const auto byte = static_cast<uint8_t>(text[i]);
    next = add({.kind = Kind::kBytes, .literal = true, .edges = {{byte, byte, next}}});
  }
  return next;
}

NodeId GrammarBuilder::one_of(std::vector<Ending> texts) {
  if (texts.empty()) return reserve();  // leads nowhere
  std::stable_sort(texts.begin(), texts.end(),
                   [](const auto& x, const auto& y) { return x.first < y.first; });
  return one_of(texts, 0);
}

// `texts` are sorted and equal up to `begin`.
NodeId GrammarBuilder::one_of(std::span<const Ending> texts, size_t begin) {
  const std::string& front = texts.front().first;
  const std::string& back = texts.back().first;
  const auto common = std::mismatch(front.begin(), front.end(), back.begin(), back.end()).first;
  const auto end = static_cast<size_t>(common - front.begin());
  std::vector<NodeId> branches;
  while (!texts.empty() && texts.front().first.size() == end) {
    branches.push_back(texts.front().second);
    texts = texts.subspan(1);
  }
  Draft draft{.kind = Kind::kBytes, .literal = true};
  while (!texts.empty()) {
    const char first = texts.front().first[end];
    const auto other =
        std::find_if(texts.begin(), texts.end(), [&](const Ending& t) { return t.first[end] != first; });
    const auto size = static_cast<size_t>(other - texts.begin());
    const auto byte = static_cast<uint8_t>(first);
    draft.edges.push_back({byte, byte, one_of(texts.first(size), end + 1)});
    texts = texts.subspan(size);
  }
  if (!draft.edges.empty()) branches.push_back(add(std::move(draft)));
  return literal(std::string_view(front).substr(begin, end - begin), split(std::move(branches)));
}

NodeId GrammarBuilder::bytes(std::vector<Edge> edges, Kind kind) {
  const NodeId node = reserve();
  set_bytes(node, std::move(edges), kind);
  return node;
}

NodeId GrammarBuilder::split(std::vector<NodeId> targets) {
  if (targets.size() == 1) return targets[0];
  return add({.kind = Kind::kSplit, .targets = std::move(targets)});
}

NodeId GrammarBuilder::call(NodeId rule, NodeId next, int32_t min, int32_t max) {
  return add({.kind = Kind::kCall, .call = {rule, next, min, max}});
}

NodeId GrammarBuilder::count(NodeId next) { return add({.kind = Kind::kCount, .targets = {next}}); }
NodeId GrammarBuilder::enough(NodeId next) { return add({.kind = Kind::kEnough, .targets = {next}}); }
NodeId GrammarBuilder::reserve() { return add({}); }

void GrammarBuilder::set_split(NodeId node, std::vector<NodeId> targets) {
  drafts_[static_cast<size_t>(node)] = {.kind = Kind::kSplit, .targets = std::move(targets)};
}

void GrammarBuilder::set_bytes(NodeId node, std::vector<Edge> edges, Kind kind) {
  drafts_[static_cast<size_t>(node)] = {.kind = kind, .edges = std::move(edges)};
}

template <class Visit>
void GrammarBuilder::for_each_successor(const Draft& draft, Visit&& visit) const {
  for (const Edge& edge : draft.edges) visit(edge.next);
  for (const NodeId target : draft.targets) visit(target);
  if (draft.kind != Kind::kCall) return;
  visit(draft.call.rule);
  visit(draft.call.next);
}

std::vector<std::vector<NodeId>> GrammarBuilder::predecessors() const {
  std::vector<std::vector<NodeId>> all(drafts_.size());
  for (size_t i = 0; i < drafts_.size(); ++i)
    for_each_successor(drafts_[i], [&](NodeId next) {
      auto& list = all[static_cast<size_t>(next)];
      if (list.empty() || list.back() != static_cast<NodeId>(i)) list.push_back(static_cast<NodeId>(i));
    });
  return all;
}

// The least solution of: 0 at the end of a rule; the best successor elsewhere; a call needs both its rule,
// one level deeper unless it is the last of its own rule, and what follows.
std::vector<uint16_t> GrammarBuilder::heights() const {
  const auto before = predecessors();
  std::vector<uint16_t> height(drafts_.size(), kNever);
  std::deque<NodeId> work = {end_of_rule()};
  height[0] = 0;
  const auto of = [&](NodeId node) { return height[static_cast<size_t>(node)]; };
  const auto compute = [&](const Draft& draft) -> uint16_t {
    if (draft.kind == Kind::kCall) {
      const uint16_t inner = of(draft.call.rule);
      if (draft.call.next == end_of_rule() || inner == kNever) return inner;
      return std::max(static_cast<uint16_t>(inner + 1), of(draft.call.next));
    }
    uint16_t best = kNever;
    for_each_successor(draft, [&](NodeId next) { best = std::min(best, of(next)); });
    return best;
  };
  while (!work.empty()) {
    const NodeId changed = work.front();
    work.pop_front();
    for (const NodeId id : before[static_cast<size_t>(changed)]) {
      const uint16_t now = compute(drafts_[static_cast<size_t>(id)]);
      if (now >= of(id)) continue;
      height[static_cast<size_t>(id)] = now;
      work.push_back(id);
    }
  }
  return height;
}

std::vector<bool> GrammarBuilder::reach_calls() const {
  const auto before = predecessors();
  std::vector<bool> reach(drafts_.size());
  std::vector<NodeId> work;
  for (size_t i = 0; i < drafts_.size(); ++i) {
    reach[i] = drafts_[i].kind == Kind::kCall;
    if (reach[i]) work.push_back(static_cast<NodeId>(i));
  }
  while (!work.empty()) {
    const NodeId id = work.back();
    work.pop_back();
    for (const NodeId from : before[static_cast<size_t>(id)]) {
      if (reach[static_cast<size_t>(from)]) continue;
      reach[static_cast<size_t>(from)] = true;
      work.push_back(from);
    }
  }
  return reach;
}

Grammar GrammarBuilder::build(NodeId start) {
  const NodeId start_of_line = split({start, literal("\n", split({start, literal("\n", start)}))});
  const std::vector<uint16_t> height = heights();
  const std::vector<bool> calls = reach_calls();
  const auto dead = [&](NodeId id) { return height[static_cast<size_t>(id)] > Grammar::kMaxDepth; };
  if (dead(start))
    fail(ErrorKind::kInvalid, "no text fits, or only one that nests deeper than {}", Grammar::kMaxDepth);
  Grammar grammar;
  grammar.start_ = start;
  grammar.start_of_line_ = start_of_line;
  for (size_t i = 0; i < drafts_.size(); ++i) {
    const Draft& draft = drafts_[i];
    Grammar::Node node{.kind = draft.kind, .literal = draft.literal, .height = height[i], .table = -1};
    if (draft.kind == Kind::kCall) {
      node.first = static_cast<uint32_t>(grammar.calls_.size());
      grammar.calls_.push_back(draft.call);
    } else if (draft.kind == Kind::kBytes || draft.kind == Kind::kCounted) {
      node.first = static_cast<uint32_t>(grammar.edges_.size());
      for (const Edge& edge : draft.edges)
        if (!dead(edge.next)) grammar.edges_.push_back(edge);
      node.count = static_cast<uint32_t>(grammar.edges_.size()) - node.first;
      node.free_text = num_bytes(draft.edges) >= kFreeTextBytes && !calls[i];
      if (node.count > kTableEdges) {
        node.table = static_cast<int32_t>(grammar.tables_.size());
        auto& table = grammar.tables_.emplace_back();
        table.fill(kNoNode);
        for (const Edge& edge : std::span(grammar.edges_).subspan(node.first))
          for (int byte = edge.low; byte <= edge.high; ++byte) table[static_cast<size_t>(byte)] = edge.next;
        grammar.edges_.resize(node.first);
        node.count = 0;
      }
    } else {
      node.first = static_cast<uint32_t>(grammar.targets_.size());
      for (const NodeId target : draft.targets)
        if (!dead(target)) grammar.targets_.push_back(target);
      node.count = static_cast<uint32_t>(grammar.targets_.size()) - node.first;
    }
    grammar.nodes_.push_back(node);
  }
  return grammar;
}

}  // namespace longspan::text
