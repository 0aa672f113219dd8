#include "text/grammar/multiples.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace longspan::text {
namespace {

constexpr uint64_t kMost = 999'999'999'999'999'999;  // 18 digits

class MultipleNodes {
 public:
  MultipleNodes(GrammarBuilder& builder, int64_t divisor, NodeId next)
      : builder_(builder), divisor_(divisor), next_(next) {}

  // Ways into the numbers without a sign from `low` to `high`, one for each number of digits.
  void add_ways(uint64_t low, uint64_t high, std::vector<NodeId>& ways) {
    if (low > high) return;
    for (uint64_t at = low;;) {
      const std::string first = std::to_string(at);
      const std::string last = std::min(std::to_string(high), std::string(first.size(), '9'), shorter);
      if (const NodeId way = between(first, last, 0); way != kNoNode) ways.push_back(way);
      const uint64_t end = std::stoull(last);
      if (end >= high) return;
      at = end + 1;
    }
  }

 private:
  static bool shorter(const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  }

  // The digits from `low` to `high`, both of one length, behind digits that leave `remainder`; kNoNode: none
  // of the numbers is a multiple.
  NodeId between(const std::string& low, const std::string& high, int64_t remainder) {
    if (low.empty()) return remainder == 0 ? next_ : kNoNode;
    const bool low_is_free = low.find_first_not_of('0') == low.npos;
    const bool high_is_free = high.find_first_not_of('9') == high.npos;
    if (low_is_free && high_is_free) return any(low.size(), remainder);
    const std::string zeros(low.size() - 1, '0');
    const std::string nines(low.size() - 1, '9');
    std::vector<Grammar::Edge> edges;
    for (char digit = low[0]; digit <= high[0]; ++digit) {
      const NodeId node = between(digit == low[0] ? low.substr(1) : zeros,
                                  digit == high[0] ? high.substr(1) : nines, after(remainder, digit));
      add_edge(edges, digit, node);
    }
    return edges.empty() ? kNoNode : builder_.bytes(std::move(edges));
  }

  // Any `count` digits; made once for each remainder.
  NodeId any(size_t count, int64_t remainder) {
    if (count == 0) return remainder == 0 ? next_ : kNoNode;
    const auto [at, is_new] = any_.try_emplace({count, remainder}, kNoNode);
    if (!is_new) return at->second;
    std::vector<Grammar::Edge> edges;
    for (char digit = '0'; digit <= '9'; ++digit)
      add_edge(edges, digit, any(count - 1, after(remainder, digit)));
    return at->second = edges.empty() ? kNoNode : builder_.bytes(std::move(edges));
  }

  static void add_edge(std::vector<Grammar::Edge>& edges, char digit, NodeId node) {
    const auto byte = static_cast<uint8_t>(digit);
    if (node != kNoNode) edges.push_back({byte, byte, node});
  }
  int64_t after(int64_t remainder, char digit) const { return (remainder * 10 + digit - '0') % divisor_; }

  GrammarBuilder& builder_;
  int64_t divisor_;
  NodeId next_;
  std::map<std::pair<size_t, int64_t>, NodeId> any_;
};

uint64_t magnitude_of(int64_t value) {
  const uint64_t size = value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  return std::min(size, kMost);
}

}  // namespace

NodeId add_multiples(GrammarBuilder& builder, int64_t divisor, const IntegerRange& range, NodeId next) {
  const auto most = static_cast<int64_t>(kMost);
  const int64_t min = std::max(range.min.value_or(-most), -most);
  const int64_t max = std::min(range.max.value_or(most), most);
  if (min > max) return builder.reserve();
  MultipleNodes nodes(builder, divisor, next);
  std::vector<NodeId> ways;
  if (max >= 0) nodes.add_ways(static_cast<uint64_t>(std::max<int64_t>(min, 0)), magnitude_of(max), ways);
  std::vector<NodeId> negative;
  if (min < 0) nodes.add_ways(max < 0 ? magnitude_of(max) : 1, magnitude_of(min), negative);
  if (!negative.empty()) ways.push_back(builder.literal("-", builder.split(std::move(negative))));
  return ways.empty() ? builder.reserve() : builder.split(std::move(ways));
}

}  // namespace longspan::text
