#include "text/grammar/text_rules.h"

#include <algorithm>
#include <map>

#include "core/error.h"

namespace longspan::text {
namespace {

using Kind = Grammar::Kind;
using Edge = Grammar::Edge;
using Table = std::array<NodeId, 256>;

constexpr int kMaxIndent = 64;        // blanks or tabs at the begin of a line
constexpr size_t kMaxExcluded = 256;  // bytes of a name that other names must differ from

Table no_bytes() {
  Table table;
  table.fill(kNoNode);
  return table;
}

void fill(Table& table, int low, int high, NodeId next) {
  std::fill(table.begin() + low, table.begin() + high + 1, next);
}

std::vector<Edge> edges_of(const Table& table) {
  std::vector<Edge> edges;
  for (size_t byte = 0; byte < table.size(); ++byte) {
    if (table[byte] == kNoNode) continue;
    const auto b = static_cast<uint8_t>(byte);
    if (!edges.empty() && edges.back().next == table[byte] && edges.back().high + 1 == b)
      edges.back().high = b;
    else
      edges.push_back({b, b, table[byte]});
  }
  return edges;
}

std::vector<Edge> hex_digits(NodeId next) { return {{'0', '9', next}, {'A', 'F', next}, {'a', 'f', next}}; }

}  // namespace

NodeId TextRules::gap(NodeId next) {
  if (gap_ == kNoNode) gap_ = make_gap();
  return builder_.split({next, builder_.call(gap_, next)});
}

// One blank; or a line end, and then up to kMaxIndent blanks or tabs.
NodeId TextRules::make_gap() {
  NodeId indent = builder_.end_of_rule();
  for (int i = 0; i < kMaxIndent; ++i)
    indent =
        builder_.split({builder_.end_of_rule(), builder_.bytes({{' ', ' ', indent}, {'\t', '\t', indent}})});
  return builder_.bytes({{' ', ' ', builder_.end_of_rule()}, {'\n', '\n', indent}});
}

NodeId TextRules::string(NodeId next, int32_t min, int32_t max) {
  const bool any = min == 0 && max == Grammar::kUnlimited;
  NodeId& rule = any ? string_ : counted_string_;
  if (rule == kNoNode) rule = any ? make_string() : make_counted_string();
  return builder_.literal("\"", builder_.call(rule, next, min, max));
}

NodeId TextRules::make_string() {
  if (place_ == TextPlace::kToolCall) {
    const auto states = make_text_without_tags(/*is_json=*/true);
    string_behind_less_ = states.at("<");
    return states.at("");
  }
  const NodeId body = builder_.reserve();
  Table table = no_bytes();
  add_plain(body, table);
  table['\\'] = make_escape(body);
  table['"'] = builder_.end_of_rule();
  builder_.set_bytes(body, edges_of(table));
  return string_behind_less_ = body;
}

NodeId TextRules::make_counted_string() {
  const NodeId body = builder_.reserve();
  Table table = no_bytes();
  add_plain(body, table);
  if (place_ == TextPlace::kToolCall) table['<'] = kNoNode;
  table['\\'] = make_escape(body);
  table['"'] = builder_.end_of_rule();
  builder_.set_bytes(body, edges_of(table), Kind::kCounted);
  return body;
}

// Behind the backslash. A surrogate comes in a pair or not at all.
NodeId TextRules::make_escape(NodeId next) {
  const auto digits = [&](int count, NodeId then) {
    for (int i = 0; i < count; ++i) then = builder_.bytes(hex_digits(then));
    return then;
  };
  const NodeId low_end = builder_.bytes({{'C', 'F', digits(2, next)}, {'c', 'f', digits(2, next)}});
  const NodeId low = builder_.literal("\\u", builder_.bytes({{'D', 'D', low_end}, {'d', 'd', low_end}}));
  const NodeId high = digits(2, low);
  const NodeId two = digits(2, next);
  const NodeId three = digits(3, next);
  const NodeId after_d =
      builder_.bytes({{'0', '7', two}, {'8', '9', high}, {'A', 'B', high}, {'a', 'b', high}});
  const NodeId unicode = builder_.bytes({{'0', '9', three},
                                         {'A', 'C', three},
                                         {'D', 'D', after_d},
                                         {'E', 'F', three},
                                         {'a', 'c', three},
                                         {'d', 'd', after_d},
                                         {'e', 'f', three}});
  Table table = no_bytes();
  for (const char c : std::string_view("\"\\/bfnrt")) table[static_cast<uint8_t>(c)] = next;
  table['u'] = unicode;
  return builder_.bytes(edges_of(table));
}

NodeId TextRules::string_other_than(const std::vector<std::string>& excluded, NodeId next) {
  for (const std::string& name : excluded)
    if (name.size() > kMaxExcluded)
      fail(ErrorKind::kInvalid,
           "properties: got a name of {} bytes, need at most {} beside additionalProperties", name.size(),
           kMaxExcluded);
  if (string_ == kNoNode) string_ = make_string();
  return builder_.literal("\"", builder_.call(make_other_than(excluded, 0), next));
}

// `excluded` agree with what was read up to `begin`. Where one of them may go on with a character beyond
// ASCII or one that needs an escape, no name goes on that way.
NodeId TextRules::make_other_than(const std::vector<std::string>& excluded, size_t begin) {
  Table table = no_bytes();
  add_plain(string_, table);
  table['<'] = string_behind_less_;
  table['"'] = builder_.end_of_rule();
  std::map<char, std::vector<std::string>> by_next;
  for (const std::string& name : excluded) {
    if (name.size() == begin)
      table['"'] = kNoNode;
    else
      by_next[name[begin]].push_back(name);
  }
  for (const auto& [c, names] : by_next) {
    const auto byte = static_cast<uint8_t>(c);
    const bool plain = byte >= 0x20 && byte < 0x80 && c != '"' && c != '\\';
    if (plain)
      table[byte] = make_other_than(names, begin + 1);
    else if (byte >= 0x80)
      table[byte] = kNoNode;
  }
  return builder_.bytes(edges_of(table));
}

NodeId TextRules::bare_text(NodeId next, int32_t min, int32_t max) {
  const bool any = min == 0 && max == Grammar::kUnlimited;
  NodeId& rule = any ? bare_text_ : counted_bare_text_;
  if (rule == kNoNode)
    rule = any ? make_text_without_tags(/*is_json=*/false).at("") : make_counted_bare_text();
  return builder_.call(rule, next, min, max);
}

// Aho and Corasick's automaton of the tags: a state is the longest end of the text that begins a tag.
std::map<std::string, NodeId> TextRules::make_text_without_tags(bool is_json) {
  std::vector<std::string> tags = {"</parameter>", "<parameter=",  "</function>",
                                   "<function=",   "</tool_call>", "<tool_call>"};
  if (!is_json) tags.emplace_back(kParameterEnd);
  std::map<std::string, NodeId> states;
  for (const std::string& tag : tags)
    for (size_t size = 0; size < tag.size(); ++size) states.emplace(tag.substr(0, size), kNoNode);
  for (auto& [text, node] : states) node = builder_.reserve();
  const auto ends_with_tag = [&](const std::string& text) {
    return std::any_of(tags.begin(), tags.end(), [&](const std::string& tag) { return text.ends_with(tag); });
  };
  Table any_state = no_bytes();
  add_beyond_ascii(states.at(""), any_state);
  if (is_json) any_state['\\'] = make_escape(states.at(""));
  if (is_json) any_state['"'] = builder_.end_of_rule();
  for (const auto& [text, node] : states) {
    Table table = any_state;
    for (int byte = 0; byte < 0x80; ++byte) {
      if (table[static_cast<size_t>(byte)] != kNoNode) continue;
      if (byte < 0x20 && (is_json || (byte != '\n' && byte != '\t'))) continue;
      std::string after = text + static_cast<char>(byte);
      if (after.ends_with(kParameterEnd)) {
        table[static_cast<size_t>(byte)] = builder_.end_of_rule();
      } else if (!ends_with_tag(after)) {
        while (!states.contains(after)) after.erase(0, 1);
        table[static_cast<size_t>(byte)] = states.at(after);
      }
    }
    builder_.set_bytes(node, edges_of(table));
  }
  return states;
}

NodeId TextRules::make_counted_bare_text() {
  const NodeId body = builder_.reserve();
  Table table = no_bytes();
  add_plain(body, table);
  for (const char c : std::string_view("\n\t\"\\")) table[static_cast<uint8_t>(c)] = body;
  table['<'] = kNoNode;
  builder_.set_split(body, {builder_.count(builder_.bytes(edges_of(table))),
                            builder_.enough(builder_.literal(kParameterEnd, builder_.end_of_rule()))});
  return body;
}

void TextRules::add_plain(NodeId next, Table& table) {
  fill(table, 0x20, 0x7F, next);
  table['"'] = table['\\'] = kNoNode;
  add_beyond_ascii(next, table);
}

// Valid UTF-8 only: no overlong form, no surrogate, nothing above U+10FFFF (Unicode, table 3-7).
void TextRules::add_beyond_ascii(NodeId next, Table& table) {
  fill(table, 0xC2, 0xDF, tail(1, next));
  fill(table, 0xE1, 0xEF, tail(2, next));
  table[0xE0] = tail(2, next, 0xA0);
  table[0xED] = tail(2, next, 0x80, 0x9F);
  table[0xF0] = tail(3, next, 0x90);
  fill(table, 0xF1, 0xF3, tail(3, next));
  table[0xF4] = tail(3, next, 0x80, 0x8F);
}

// `size` bytes of a character's end; the first of them from `low` to `high`.
NodeId TextRules::tail(int size, NodeId next, uint8_t low, uint8_t high) {
  for (int i = 1; i < size; ++i) next = builder_.bytes({{0x80, 0xBF, next}});
  return builder_.bytes({{low, high, next}});
}

}  // namespace longspan::text
