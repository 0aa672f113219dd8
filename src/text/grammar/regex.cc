#include "text/grammar/regex.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "core/error.h"
#include "text/utf8.h"

namespace longspan::text {
namespace {

constexpr size_t kMaxStates = size_t{1} << 16;  // before determinisation
constexpr size_t kMaxNodes = size_t{1} << 14;   // after it
constexpr size_t kMaxWork = size_t{4} << 20;    // edges looked at while determinising
constexpr std::string_view kShortEscapes = "\b\t\n\f\r\"\\";
constexpr std::string_view kEscapeLetters = "btnfr\"\\";

[[noreturn]] void too_large() { fail(ErrorKind::kInvalid, "pattern: the expression is too large"); }

// An automaton over bytes that may stand in several states at once (Thompson).
class Nfa {
 public:
  struct Edge {
    uint8_t low;
    uint8_t high;
    int next;
  };
  struct State {
    std::vector<Edge> edges;
    std::vector<int> jumps;  // without reading
  };

  explicit Nfa(Spelling spelling) : spelling_(spelling) { add({}); }
  static constexpr int kEnd = 0;
  const State& operator[](int state) const { return states_[static_cast<size_t>(state)]; }
  size_t size() const { return states_.size(); }

  int text(std::string_view bytes, int next) {
    for (size_t i = bytes.size(); i-- > 0;) {
      const auto byte = static_cast<uint8_t>(bytes[i]);
      next = add({.edges = {{byte, byte, next}}});
    }
    return next;
  }

  // The state from which the expression and then `next` is read.
  int build(const Regex& regex, int next) {
    if (++num_built_ > kMaxStates) too_large();
    switch (regex.kind) {
      case Regex::Kind::kSequence:
        for (size_t i = regex.parts.size(); i-- > 0;) next = build(regex.parts[i], next);
        return next;
      case Regex::Kind::kChoice: {
        State choice;
        for (const Regex& part : regex.parts) choice.jumps.push_back(build(part, next));
        return add(std::move(choice));
      }
      case Regex::Kind::kChars:
        return chars(regex.chars, next);
      case Regex::Kind::kRepeat:
        return repeat(regex, next);
    }
    return next;
  }

 private:
  int add(State state) {
    if (states_.size() >= kMaxStates) too_large();
    states_.push_back(std::move(state));
    return static_cast<int>(states_.size()) - 1;
  }

  int repeat(const Regex& regex, int next) {
    const Regex& body = regex.parts[0];
    if (regex.max == Regex::kUnlimited) {
      const int loop = add({});
      const int again = build(body, loop);
      states_[static_cast<size_t>(loop)].jumps = {again, next};
      next = loop;
    } else {
      const int end = next;
      for (int i = regex.min; i < regex.max; ++i) next = add({.jumps = {build(body, next), end}});
    }
    for (int i = 0; i < regex.min; ++i) next = build(body, next);
    return next;
  }

  int chars(const std::vector<CharRange>& ranges, int next) {
    const int start = add({});
    for (const CharRange& range : ranges) {
      char32_t low = range.low;
      for (; low <= range.high && low < 0x80; ++low) ascii(start, static_cast<char>(low), next);
      if (low <= range.high) utf8(start, low, range.high, next);
    }
    return start;
  }

  void ascii(int start, char c, int next) {
    const auto byte = static_cast<uint8_t>(c);
    const size_t escape = kShortEscapes.find(c);
    const bool is_json = spelling_ == Spelling::kJsonString || spelling_ == Spelling::kJsonInCall;
    const bool in_call = spelling_ == Spelling::kJsonInCall || spelling_ == Spelling::kBareInCall;
    const bool control = byte < 0x20;
    if (is_json && escape != kShortEscapes.npos) {
      edge(start, '\\', '\\', text(kEscapeLetters.substr(escape, 1), next));
    } else if (spelling_ == Spelling::kPlain ||
               (!(in_call && c == '<') && (!control || (!is_json && (c == '\n' || c == '\t'))))) {
      edge(start, byte, byte, next);
    }
  }

  // Characters of `low` to `high`, none of them ASCII: cut into ranges whose bytes vary independently.
  void utf8(int start, char32_t low, char32_t high, int next) {
    for (const char32_t last : {char32_t{0x7FF}, char32_t{0xFFFF}})
      if (low <= last && high > last) {
        utf8(start, low, last, next);
        utf8(start, last + 1, high, next);
        return;
      }
    const int num_tail = high <= 0x7FF ? 1 : high <= 0xFFFF ? 2 : 3;
    for (int i = 1; i <= num_tail; ++i) {
      const char32_t mask = (char32_t{1} << (6 * i)) - 1;
      if ((low & ~mask) == (high & ~mask)) continue;
      if ((low & mask) != 0) {
        utf8(start, low, low | mask, next);
        utf8(start, (low | mask) + 1, high, next);
        return;
      }
      if ((high & mask) != mask) {
        utf8(start, low, (high & ~mask) - 1, next);
        utf8(start, high & ~mask, high, next);
        return;
      }
    }
    std::string first;
    std::string last;
    append_utf8(low, first);
    append_utf8(high, last);
    for (size_t i = first.size(); i-- > 1;) {
      const int state = add({});
      edge(state, static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i]), next);
      next = state;
    }
    edge(start, static_cast<uint8_t>(first[0]), static_cast<uint8_t>(last[0]), next);
  }

  void edge(int from, uint8_t low, uint8_t high, int next) {
    auto& edges = states_[static_cast<size_t>(from)].edges;
    if (!edges.empty() && edges.back().next == next && edges.back().high + 1 == low)
      edges.back().high = high;
    else
      edges.push_back({low, high, next});
  }

  Spelling spelling_;
  std::vector<State> states_;
  size_t num_built_ = 0;
};

// The subset construction, straight into the builder.
class Determinizer {
 public:
  Determinizer(const Nfa& nfa, GrammarBuilder& builder, NodeId next)
      : nfa_(nfa), builder_(builder), next_(next), seen_(nfa.size()) {}

  NodeId run(int start) {
    const NodeId first = node_of({start});
    while (!work_.empty()) {
      const auto item = work_.back();  // map nodes stay where they are
      work_.pop_back();
      define(item->first, item->second);
    }
    return first;
  }

 private:
  using Set = std::vector<int>;  // sorted

  NodeId node_of(const Set& states) {
    const auto [at, is_new] = nodes_.try_emplace(closure(states), kNoNode);
    if (is_new) {
      if (nodes_.size() > kMaxNodes) too_large();
      at->second = builder_.reserve();
      work_.push_back(at);
    }
    return at->second;
  }

  // With everything that is reached without reading; of those only the states that read, and the end.
  Set closure(const Set& states) {
    ++stamp_;
    Set reading;
    std::vector<int> open;
    const auto visit = [&](int state) {
      if (std::exchange(seen_[static_cast<size_t>(state)], stamp_) != stamp_) open.push_back(state);
    };
    for (const int state : states) visit(state);
    while (!open.empty()) {
      const int state = open.back();
      open.pop_back();
      if (++num_looked_at_ > kMaxWork) too_large();
      if (!nfa_[state].edges.empty() || state == Nfa::kEnd) reading.push_back(state);
      for (const int jump : nfa_[state].jumps) visit(jump);
    }
    std::sort(reading.begin(), reading.end());
    return reading;
  }

  void define(const Set& states, NodeId node) {
    std::vector<int> starts;  // bytes at which the set of edges changes
    for (const int state : states)
      for (const Nfa::Edge& edge : nfa_[state].edges) {
        starts.push_back(edge.low);
        starts.push_back(edge.high + 1);
        if (++num_looked_at_ > kMaxWork) too_large();
      }
    std::sort(starts.begin(), starts.end());
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    std::vector<Grammar::Edge> edges;
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      Set targets;
      for (const int state : states)
        for (const Nfa::Edge& edge : nfa_[state].edges) {
          if (edge.low <= starts[i] && starts[i] <= edge.high) targets.push_back(edge.next);
          if (++num_looked_at_ > kMaxWork) too_large();
        }
      if (targets.empty()) continue;
      const auto low = static_cast<uint8_t>(starts[i]);
      const auto high = static_cast<uint8_t>(starts[i + 1] - 1);
      const NodeId next = node_of(targets);
      if (!edges.empty() && edges.back().next == next && edges.back().high + 1 == low)
        edges.back().high = high;
      else
        edges.push_back({low, high, next});
    }
    if (states.empty() || states.front() != Nfa::kEnd) {  // the end is state 0, the smallest
      builder_.set_bytes(node, std::move(edges));
    } else if (edges.empty()) {
      builder_.set_split(node, {next_});
    } else {
      builder_.set_split(node, {builder_.bytes(std::move(edges)), next_});
    }
  }

  const Nfa& nfa_;
  GrammarBuilder& builder_;
  NodeId next_;
  std::map<Set, NodeId> nodes_;
  std::vector<std::map<Set, NodeId>::iterator> work_;
  std::vector<int> seen_;  // [states] the last closure that met it
  int stamp_ = 0;
  size_t num_looked_at_ = 0;
};

}  // namespace

NodeId add_regex(GrammarBuilder& builder, const Regex& regex, Spelling spelling, std::string_view terminator,
                 NodeId next) {
  Nfa nfa(spelling);
  const int start = nfa.build(regex, nfa.text(terminator, Nfa::kEnd));
  return Determinizer(nfa, builder, next).run(start);
}

}  // namespace longspan::text
