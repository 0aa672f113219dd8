// TextRules: the pieces of a grammar that JSON and tool calls share: strings, gaps, bare text.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/grammar/regex.h"

namespace longspan::text {

// What ends the bare value of a tool's parameter.
inline constexpr std::string_view kParameterEnd = "\n</parameter>";

enum class TextPlace : uint8_t {
  kAnswer,
  kToolCall,  // strings hold none of the tags that mean something to ToolParser
};

// Rules made once for a builder. Borrows it.
class TextRules final {
 public:
  explicit TextRules(GrammarBuilder& builder, TextPlace place = TextPlace::kAnswer)
      : builder_(builder), place_(place) {}

  // Of the texts of JSON strings.
  Spelling spelling() const {
    return place_ == TextPlace::kToolCall ? Spelling::kJsonInCall : Spelling::kJsonString;
  }

  // White space between two tokens of JSON, or none: one blank, or a line end with indentation. Bounded, so
  // that a model cannot fill its answer with it.
  NodeId gap(NodeId next);
  // A JSON string, any characters; `min` to `max` of them.
  NodeId string(NodeId next, int32_t min = 0, int32_t max = Grammar::kUnlimited);
  // The same, but none of these. An escape is not allowed where it could spell one of them.
  NodeId string_other_than(const std::vector<std::string>& excluded, NodeId next);
  // The value of a tool's parameter as bare text, up to and with the end tag, without the tags that mean
  // something to ToolParser. Where a length is asked for, it holds no '<' at all.
  NodeId bare_text(NodeId next, int32_t min = 0, int32_t max = Grammar::kUnlimited);

 private:
  using Table = std::array<NodeId, 256>;  // where each byte leads

  NodeId make_gap();
  NodeId make_string();
  NodeId make_counted_string();
  NodeId make_escape(NodeId next);
  NodeId make_other_than(const std::vector<std::string>& excluded, size_t begin);
  std::map<std::string, NodeId> make_text_without_tags(bool is_json);
  NodeId make_counted_bare_text();
  // Every character that a string or text may hold unescaped, except `"` and `\\`.
  void add_plain(NodeId next, Table& table);
  void add_beyond_ascii(NodeId next, Table& table);
  NodeId tail(int size, NodeId next, uint8_t low = 0x80, uint8_t high = 0xBF);

  GrammarBuilder& builder_;
  TextPlace place_;
  // Rules; kNoNode until they are needed. Of strings: behind the quote, up to and with the other.
  NodeId gap_ = kNoNode;
  NodeId string_ = kNoNode;
  NodeId string_behind_less_ = kNoNode;  // of string_, when a '<' was read
  NodeId counted_string_ = kNoNode;
  NodeId bare_text_ = kNoNode;
  NodeId counted_bare_text_ = kNoNode;
};

}  // namespace longspan::text
