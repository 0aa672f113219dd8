// Grammar: which texts an answer may be, as a pushdown automaton over bytes. Rules call rules; a counted rule
// knows how many repetitions may still come. It knows no schema, no tokenizer and no model.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longspan::text {

using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

// Immutable; may be shared by threads. From every node that can be reached an end can be reached, within
// kMaxDepth nested calls.
class Grammar final {
 public:
  static constexpr int kMaxDepth = 64;                  // of calls that are not the last of their rule
  static constexpr size_t kMaxNodes = size_t{1} << 18;  // more are refused
  static constexpr int32_t kUnlimited = INT32_MAX;

  enum class Kind : uint8_t {
    kBytes,    // reads one byte
    kCounted,  // the same, and every byte but `"` counts: it needs room, `"` needs enough
    kSplit,    // goes on at every target, without reading
    kCall,     // runs another rule, then goes on
    kCount,    // goes on if there is room for one more, and counts it
    kEnough,   // goes on if there are enough
    kReturn,   // the end of a rule
  };
  // What a byte from `low` to `high` leads to.
  struct Edge {
    uint8_t low;
    uint8_t high;
    NodeId next;
  };
  struct Call {
    NodeId rule;
    NodeId next;
    int32_t min;  // repetitions in the rule
    int32_t max;
  };

  NodeId start() const { return start_; }
  // The same behind at most two line ends, as models put them behind their reasoning.
  NodeId start_of_line() const { return start_of_line_; }
  size_t num_nodes() const { return nodes_.size(); }
  Kind kind(NodeId node) const { return at(node).kind; }
  // The node's one byte was written in the grammar, not chosen from a class.
  bool literal(NodeId node) const { return at(node).literal; }
  // Reads many different bytes, and no rule is called before it returns.
  bool free_text(NodeId node) const { return at(node).free_text; }
  // Nested calls that the shortest way to the end of the rule needs.
  int height(NodeId node) const { return at(node).height; }
  // Of kBytes and kCounted; kNoNode where the byte does not fit.
  NodeId next(NodeId node, uint8_t byte) const {
    const Node& from = at(node);
    if (from.table >= 0) return tables_[static_cast<size_t>(from.table)][byte];
    for (const Edge& edge : std::span(edges_).subspan(from.first, from.count))
      if (byte >= edge.low && byte <= edge.high) return edge.next;
    return kNoNode;
  }
  std::span<const NodeId> targets(NodeId node) const {  // of kSplit
    return std::span(targets_).subspan(at(node).first, at(node).count);
  }
  const Call& call(NodeId node) const { return calls_[at(node).first]; }  // of kCall
  NodeId target(NodeId node) const { return targets_[at(node).first]; }   // of kCount and kEnough
  // The nodes of free text that a text is likely to stay in.
  std::vector<NodeId> common_nodes() const;

 private:
  friend class GrammarBuilder;
  struct Node {
    Kind kind;
    bool literal;
    bool free_text;
    uint16_t height;
    int32_t table;   // into tables_, or -1
    uint32_t first;  // into edges_, targets_ or calls_
    uint32_t count;
  };
  const Node& at(NodeId node) const { return nodes_[static_cast<size_t>(node)]; }

  NodeId start_ = kNoNode;
  NodeId start_of_line_ = kNoNode;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<NodeId> targets_;
  std::vector<Call> calls_;
  std::vector<std::array<NodeId, 256>> tables_;
};

// Builds from the end to the start: every piece is told where it leads. Every function throws kInvalid when
// the grammar grows beyond kMaxNodes.
class GrammarBuilder final {
 public:
  using Ending = std::pair<std::string, NodeId>;  // a text and where it leads

  GrammarBuilder();

  NodeId end_of_rule() const { return 0; }
  NodeId literal(std::string_view text, NodeId next);
  // One of the texts, each with what follows it. Equal beginnings are shared.
  NodeId one_of(std::vector<Ending> texts);
  NodeId bytes(std::vector<Grammar::Edge> edges, Grammar::Kind kind = Grammar::Kind::kBytes);
  NodeId split(std::vector<NodeId> targets);
  NodeId call(NodeId rule, NodeId next, int32_t min = 0, int32_t max = Grammar::kUnlimited);
  NodeId count(NodeId next);
  NodeId enough(NodeId next);
  // A node to refer to before it is known; then set with exactly one of the others.
  NodeId reserve();
  void set_split(NodeId node, std::vector<NodeId> targets);
  void set_bytes(NodeId node, std::vector<Grammar::Edge> edges, Grammar::Kind kind = Grammar::Kind::kBytes);

  // Throws kInvalid when no text fits, or none within kMaxDepth.
  Grammar build(NodeId start);

 private:
  struct Draft {
    Grammar::Kind kind = Grammar::Kind::kSplit;
    bool literal = false;
    std::vector<Grammar::Edge> edges;  // ranges do not overlap
    std::vector<NodeId> targets;
    Grammar::Call call{kNoNode, kNoNode, 0, 0};
  };
  NodeId add(Draft draft);
  NodeId one_of(std::span<const Ending> texts, size_t begin);
  std::vector<uint16_t> heights() const;
  std::vector<bool> reach_calls() const;
  template <class Visit>
  void for_each_successor(const Draft& draft, Visit&& visit) const;
  std::vector<std::vector<NodeId>> predecessors() const;

  std::vector<Draft> drafts_;
};

}  // namespace longspan::text
