// The definitions of TTFR, TTFT, ITL, TPOT and E2EL on streams whose chunks come at known times, to the
// millisecond.
#include <gtest/gtest.h>

#include "measure/answer_record.h"
#include "measure/scripted_stream.h"

namespace longspan::measure {
namespace {

using testing::chat_chunk;
using testing::completion_chunk;
using testing::kDone;
using testing::Script;
using testing::timed;
using testing::usage_chunk;

TEST(AnswerTimer, EveryTimeOfAChatStream) {
  const AnswerRecord answer =
      timed(BenchEndpoint::kChat, {{100, chat_chunk(R"({"role":"assistant","content":""})")},
                                   {250, chat_chunk(R"({"content":"One"})")},
                                   {300, chat_chunk(R"({"content":" two"})")},
                                   {420, chat_chunk(R"({"content":" three"})")},
                                   {430, chat_chunk("{}", "length")},
                                   {440, usage_chunk(11, 4)},
                                   {441, kDone}});
  EXPECT_TRUE(answer.ok()) << answer.error;
  EXPECT_EQ(answer.text, "One two three");
  EXPECT_EQ(answer.finish_reason, "length");
  EXPECT_EQ(answer.prompt_tokens, 11);
  EXPECT_EQ(answer.completion_tokens, 4);
  EXPECT_DOUBLE_EQ(answer.ttfr_s, 0.100);
  EXPECT_DOUBLE_EQ(answer.ttft_s, 0.250) << "the role chunk is not the first token";
  ASSERT_EQ(answer.itls_s.size(), 2U);
  EXPECT_NEAR(answer.itls_s[0], 0.050, 1e-12);
  EXPECT_NEAR(answer.itls_s[1], 0.120, 1e-12);
  EXPECT_DOUBLE_EQ(answer.e2el_s, 0.430) << "the last choice; neither usage nor [DONE]";
  EXPECT_NEAR(answer.tpot_s().value(), (0.430 - 0.250) / 3, 1e-12);
}

TEST(AnswerTimer, CommentsAreAFirstByteAndNoToken) {
  const AnswerRecord answer = timed(BenchEndpoint::kChat, {{5, ": keep-alive\n\n"},
                                                           {1005, ": keep-alive\n\n"},
                                                           {2000, chat_chunk(R"({"content":"x"})", "stop")},
                                                           {2001, kDone}});
  EXPECT_DOUBLE_EQ(answer.ttfr_s, 0.005);
  EXPECT_DOUBLE_EQ(answer.ttft_s, 2.000);
  EXPECT_TRUE(answer.itls_s.empty());
}

TEST(AnswerTimer, ReasoningAndToolCallsAreContent) {
  const AnswerRecord answer = timed(
      BenchEndpoint::kChat,
      {{10, chat_chunk(R"({"role":"assistant","content":""})")},
       {20, chat_chunk(R"({"reasoning_content":"think"})")},
       {25, chat_chunk(R"({"reasoning":" more"})")},
       {30,
        chat_chunk(
            R"({"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":""}}]})")},
       {45, chat_chunk(R"({"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]})")},
       {46, chat_chunk("{}", "tool_calls")},
       {47, kDone}});
  EXPECT_TRUE(answer.ok()) << answer.error;
  EXPECT_DOUBLE_EQ(answer.ttft_s, 0.020);
  EXPECT_EQ(answer.itls_s.size(), 3U);
  EXPECT_EQ(answer.reasoning, "think more");
  EXPECT_EQ(answer.tool_calls, "f{}");
  EXPECT_EQ(answer.text, "");
}

TEST(AnswerTimer, CompletionsCountTheirTexts) {
  const AnswerRecord answer = timed(BenchEndpoint::kCompletions, {{40, completion_chunk("a")},
                                                                  {50, completion_chunk("")},
                                                                  {70, completion_chunk("b", "length")},
                                                                  {71, usage_chunk(3, 3)},
                                                                  {72, kDone}});
  EXPECT_EQ(answer.text, "ab");
  EXPECT_DOUBLE_EQ(answer.ttft_s, 0.040);
  ASSERT_EQ(answer.itls_s.size(), 1U) << "an empty text is no token";
  EXPECT_NEAR(answer.itls_s[0], 0.030, 1e-12);
  EXPECT_NEAR(answer.tpot_s().value(), 0.015, 1e-12);
}

TEST(AnswerTimer, EventsCutAnywhereAreTheSame) {
  const std::string whole =
      chat_chunk(R"({"content":"One"})") + chat_chunk("{}", "stop") + usage_chunk(5, 1, 3) + kDone;
  for (size_t cut = 1; cut < whole.size(); ++cut) {
    const AnswerRecord answer =
        timed(BenchEndpoint::kChat, {{10, whole.substr(0, cut)}, {20, whole.substr(cut)}});
    EXPECT_TRUE(answer.ok()) << answer.error << " at " << cut;
    EXPECT_EQ(answer.text, "One");
    EXPECT_EQ(answer.cached_tokens, 3);
    EXPECT_DOUBLE_EQ(answer.ttfr_s, 0.010);
  }
}

TEST(AnswerTimer, OneTokenHasNoTimePerOutputToken) {
  const AnswerRecord answer =
      timed(BenchEndpoint::kChat,
            {{10, chat_chunk(R"({"content":"x"})", "length")}, {11, usage_chunk(5, 1)}, {12, kDone}});
  EXPECT_FALSE(answer.tpot_s().has_value());
}

TEST(AnswerTimer, WithoutUsageAChunkIsATokenAndNothingIsCached) {
  const AnswerRecord answer = timed(
      BenchEndpoint::kChat,
      {{10, chat_chunk(R"({"content":"x"})")}, {20, chat_chunk(R"({"content":"y"})", "stop")}, {21, kDone}});
  EXPECT_FALSE(answer.completion_tokens.has_value());
  EXPECT_FALSE(answer.cached_tokens.has_value());
  EXPECT_EQ(answer.num_output_tokens(), 2);
}

TEST(AnswerTimer, AnErrorInTheStreamFailsTheRequestInTheServersWords) {
  const AnswerRecord answer =
      timed(BenchEndpoint::kChat,
            {{10, chat_chunk(R"({"content":"x"})")},
             {20, "data: {\"error\":{\"message\":\"the engine stopped\",\"type\":\"server_error\"}}\n\n"},
             {21, kDone}});
  EXPECT_EQ(answer.error, "error in the stream: the engine stopped");
  EXPECT_EQ(answer.text, "x") << "what came before it stays";
}

TEST(AnswerTimer, AStreamMustEnd) {
  EXPECT_EQ(timed(BenchEndpoint::kChat, {{10, chat_chunk(R"({"content":"x"})")}}).error,
            "the stream ended without a finish reason or [DONE]");
  EXPECT_NE(
      timed(BenchEndpoint::kChat, {{10, chat_chunk("{}", "stop")}, {11, kDone}}).error.find("no first token"),
      std::string::npos);
  EXPECT_NE(timed(BenchEndpoint::kChat, {{10, "data: {\"choices\":\n\n"}, {11, kDone}}).error, "");
}

TEST(AnswerTimer, WhatEndedTheRequestIsItsError) {
  AnswerTimer timer(BenchEndpoint::kChat);
  timer.on_piece(0.01, chat_chunk(R"({"content":"x"})"));
  EXPECT_EQ(timer.finish("the answer broke off").error, "the answer broke off");
}

}  // namespace
}  // namespace longspan::measure
