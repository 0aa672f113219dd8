#include "text/reasoning_parser.h"

#include <gtest/gtest.h>

#include "text/every_split.h"

namespace longspan::text {
namespace {

struct Split {
  std::string reasoning, content;
  bool operator==(const Split&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Split& split) {
  return out << "{reasoning: '" << split.reasoning << "', content: '" << split.content << "'}";
}

Split parse_thoughts(const std::vector<std::string>& pieces, bool in_reasoning) {
  ReasoningParser parser(in_reasoning);
  Split result;
  const auto add = [&](const std::vector<ReasoningEvent>& events) {
    for (const ReasoningEvent& event : events) {
      EXPECT_FALSE(event.text.empty());
      (event.kind == ReasoningEvent::Kind::kReasoning ? result.reasoning : result.content) += event.text;
    }
  };
  for (const std::string& piece : pieces) add(parser.push(piece));
  add(parser.finish());
  return result;
}

void expect(const std::string& text, bool in_reasoning, const Split& want) {
  for (const auto& pieces : every_split(text)) ASSERT_EQ(parse_thoughts(pieces, in_reasoning), want) << text;
}

constexpr bool kThinking = true;
constexpr bool kNotThinking = false;

TEST(ReasoningParser, FirstCloseEndsReasoning) {
  expect("Let me see.\n</think>\n\nHello </think> again", kThinking, {"Let me see.", "Hello </think> again"});
  expect("a\n\nb\n</think>c", kThinking, {"a\n\nb", "c"});
  expect("</think>\n\nHi", kThinking, {"", "Hi"});
  expect("R\n</think>", kThinking, {"R", ""});
  expect("R\n</think>\n\n", kThinking, {"R", ""});
}

TEST(ReasoningParser, GeneratedOpenTagIsNotReasoning) {
  expect("<think>\nR\n</think>\n\nC", kThinking, {"R", "C"});
  expect("\n<think>\nR</think>C", kThinking, {"R", "C"});
}

TEST(ReasoningParser, UnfinishedReasoningStaysReasoning) {
  expect("I wonder", kThinking, {"I wonder", ""});
  expect("I wonder <", kThinking, {"I wonder <", ""});
  expect("I wonder </thin", kThinking, {"I wonder </thin", ""});
  expect("", kThinking, {"", ""});
}

// T35: with thinking off, the text is content.
TEST(ReasoningParser, ThinkingOffIsAllContent) {
  expect("Hello\nworld\n", kNotThinking, {"", "Hello\nworld\n"});
  expect("Use the </think> tag", kNotThinking, {"", "Use the </think> tag"});
  expect("\n</think>\n\nHello", kNotThinking, {"", "Hello"});  // the prompt has closed the thoughts already
  expect("<think>\nstill\n</think>\n\nHello", kNotThinking, {"still", "Hello"});
}

// T17: a call begun inside of the thoughts is not lost.
TEST(ReasoningParser, CallEndsReasoning) {
  const std::string call = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
  expect("I look it up.\n" + call, kThinking, {"I look it up.", call});
  expect("a\n<tool_call> <function name=f>", kThinking, {"a", "<tool_call> <function name=f>"});
  expect("a\n<tool_call><function=f>", kThinking, {"a", "<tool_call><function=f>"});
}

TEST(ReasoningParser, CallsMayBeText) {
  ReasoningParser parser(/*starts_in_reasoning=*/true, CallInReasoning::kIsText);
  const auto events = parser.push("a <tool_call>\n<function=f>\n</think>\n\n{}");
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].text, "a <tool_call>\n<function=f>");
  EXPECT_EQ(events[1].text, "{}");
}

TEST(ReasoningParser, MentionOfTheTagDoesNotEndReasoning) {
  expect("I could write <tool_call> here\n</think>\n\nNo", kThinking,
         {"I could write <tool_call> here", "No"});
  expect("<tool_call>\n<functional> x</think>y", kThinking, {"<tool_call>\n<functional> x", "y"});
  expect("x <tool_call>", kThinking, {"x <tool_call>", ""});
  expect("x <tool_call>\n<function", kThinking, {"x <tool_call>\n<function", ""});
}

// T09: no tag leaks into the content.
TEST(ReasoningParser, LateCloseBehindACallIsNotContent) {
  const std::string call = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
  expect("a\n" + call + "\n</think>\n\ndone", kThinking, {"a", call + "done"});
  expect("a\n" + call + "\n" + call + "\n</think>", kThinking, {"a", call + "\n" + call});
  expect("a\n" + call + " text </think>", kThinking, {"a", call + " text </think>"});
}

TEST(ReasoningParser, PromptSaysWhereGenerationStarts) {
  EXPECT_TRUE(opens_reasoning("<|im_start|>assistant\n<think>\n"));
  EXPECT_TRUE(opens_reasoning("<|im_start|>assistant\n<think>\nSo far"));  // a continued thought
  EXPECT_FALSE(opens_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(opens_reasoning("<|im_start|>user\nwhat is <think>?<|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_FALSE(opens_reasoning("Once upon a time"));
}

}  // namespace
}  // namespace longspan::text
