// The tasks of verify, how they are judged, and what two servers' first difference means.
#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "measure/answer_compare.h"
#include "measure/fake_root.h"
#include "measure/task_score.h"

namespace longspan::measure {
namespace {

int64_t words(const std::string& text) { return std::ranges::count(text, ' ') + 1; }

TEST(BuiltinTasks, AreTheSameEverywhereAndHoldTheirAnswer) {
  const TaskOptions options{.lengths = {500, 2000}, .num_each = 2, .num_short = 3};
  const std::vector<Task> tasks = builtin_tasks(options, words);
  const std::vector<Task> again = builtin_tasks(options, words);
  ASSERT_EQ(tasks.size(), 2u * 2 * 3 + 2 * 2 * 2 * 2);
  std::map<std::string, int> kinds;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks[i];
    ++kinds[task.kind + " " + task.language];
    EXPECT_EQ(task.messages, again[i].messages);
    const auto prompt = task.messages[0]["content"].get<std::string>();
    if (task.kind == "retrieval") {
      EXPECT_NE(prompt.find(task.answer), std::string::npos);
    }
    if (task.num_tokens > 0) {
      EXPECT_NEAR(words(prompt), task.num_tokens, 0.1 * static_cast<double>(task.num_tokens));
    }
    EXPECT_EQ(task.tools.is_null(), task.call.empty());
  }
  EXPECT_EQ(kinds.size(), 8u) << "four kinds in two languages";
  TaskOptions other = options;
  other.seed = 2;
  EXPECT_NE(builtin_tasks(other, words)[0].messages, tasks[0].messages);
}

TEST(BuiltinTasks, TheLastValueOfAVariableIsItsAnswer) {
  for (const Task& task : builtin_tasks({.lengths = {300}, .num_each = 4, .num_short = 0}, words)) {
    if (task.kind != "tracking") continue;
    const auto prompt = task.messages[0]["content"].get<std::string>();
    const std::string variable = task.answer.substr(0, task.answer.find(' '));
    const size_t last = prompt.rfind("Set " + variable + " to ");
    ASSERT_NE(last, std::string::npos);
    const std::string value = task.answer.substr(task.answer.rfind(' ') + 1);
    EXPECT_EQ(prompt.compare(last, prompt.find('.', last) - last, "Set " + variable + " to " + value), 0);
  }
}

TEST(IsRight, ANumberCountsAsAWhole) {
  const Task task{.kind = "arithmetic", .answer = "17"};
  EXPECT_TRUE(is_right(task, {.content = "17"}));
  EXPECT_TRUE(is_right(task, {.content = "The sum is 17."}));
  EXPECT_FALSE(is_right(task, {.content = "117"}));
  EXPECT_FALSE(is_right(task, {.content = "175"}));
  EXPECT_FALSE(is_right(task, {.content = "-17"}));
  EXPECT_TRUE(is_right({.answer = "-17"}, {.content = "-17"}));
  EXPECT_FALSE(is_right(task, {.content = "17", .error = "cut off"}));
}

TEST(IsRight, ACallIsItsNameAndItsArgumentsInAnyOrder) {
  const Task task{
      .kind = "tool call", .answer = R"({"city":"Oslo","unit":"celsius"})", .call = "get_weather"};
  EXPECT_TRUE(is_right(task, {.call = "get_weather", .arguments = R"({"unit": "celsius", "city": "Oslo"})"}));
  EXPECT_FALSE(is_right(task, {.call = "get_time", .arguments = task.answer}));
  EXPECT_FALSE(is_right(task, {.call = "get_weather", .arguments = R"({"city":"Oslo"})"}));
  EXPECT_FALSE(is_right(task, {.content = task.answer}));
  EXPECT_FALSE(is_right({.answer = "4"}, {.content = "4", .call = "get_time"})) << "nobody asked for a call";
}

TEST(ReadTasks, TakesPromptsMessagesAndCalls) {
  const testing::FakeRoot root;
  root.write("tasks.jsonl",
             "{\"kind\":\"sum\",\"prompt\":\"1+1?\",\"answer\":\"2\"}\n\n"
             "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"answer\":{\"a\":1},\"call\":\"f\","
             "\"tools\":[]}\n");
  const std::vector<Task> tasks = read_tasks(root.path() / "tasks.jsonl");
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_EQ(tasks[0].kind, "sum");
  EXPECT_EQ(tasks[0].messages[0]["content"], "1+1?");
  EXPECT_EQ(tasks[1].answer, R"({"a":1})");
}

TEST(ReadTasks, NamesFileAndLineOfWhatIsWrong) {
  const testing::FakeRoot root;
  for (const char* line : {"no json", "{}", "{\"prompt\":1,\"answer\":\"2\"}", "{\"prompt\":\"x\"}",
                           "{\"prompt\":\"x\",\"messages\":[],\"answer\":\"2\"}",
                           "{\"prompt\":\"x\",\"answer\":\"2\",\"max_tokens\":0}"}) {
    root.write("bad.jsonl", std::string("{\"prompt\":\"x\",\"answer\":\"y\"}\n") + line + "\n");
    try {
      read_tasks(root.path() / "bad.jsonl");
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("bad.jsonl:2"), std::string::npos) << error.what();
    }
  }
  root.write("empty.jsonl", "\n");
  EXPECT_THROW(read_tasks(root.path() / "empty.jsonl"), Error);
  EXPECT_THROW(read_tasks(root.path() / "absent.jsonl"), Error);
}

TEST(JudgeTasks, BelowItsShareAKindFailsWithTheFirstWrongAnswer) {
  std::vector<AnsweredTask> answered(10);
  for (AnsweredTask& one : answered)
    one = {.task = {.kind = "retrieval", .language = "en", .num_tokens = 4096, .answer = "1234"},
           .answer = {.content = "1234"},
           .right = true};
  const auto least = [](const std::string& kind) { return least_score(kind, 0.5); };
  EXPECT_EQ(judge_tasks(answered, least).at(0).verdict, Verdict::kOk);
  answered[2].right = answered[3].right = false;
  answered[2].answer = {.content = "4321", .prompt_tokens = 4100};
  const Finding low = judge_tasks(answered, least).at(0);
  EXPECT_EQ(low.verdict, Verdict::kFail);
  EXPECT_NE(low.text.find("8 of 10 right"), std::string::npos) << low.text;
  EXPECT_NE(low.text.find("at 4100 tokens got \"4321\", need \"1234\""), std::string::npos) << low.text;
}

// The limits are shares of all built-in lengths together; the bundled model gets fewer of the long ones
// right.
TEST(JudgeTasks, ChosenLengthsAloneFailOnlyWhereItIsNoChance) {
  const auto judged = [](int num_right, int num_asked, int64_t num_tokens, AskedLengths lengths) {
    std::vector<AnsweredTask> answered(static_cast<size_t>(num_asked));
    for (int i = 0; i < num_asked; ++i)
      answered[static_cast<size_t>(i)] = {.task = {.kind = "tracking", .num_tokens = num_tokens},
                                          .right = i < num_right};
    return judge_tasks(
               answered, [](const std::string&) { return 0.7; }, lengths)
        .at(0);
  };
  EXPECT_EQ(judged(5, 8, 16384, AskedLengths::kAll).verdict, Verdict::kFail);
  const Finding some = judged(5, 8, 16384, AskedLengths::kSome);
  EXPECT_EQ(some.verdict, Verdict::kWarn);
  EXPECT_NE(some.advice.find("70 % right of all built-in lengths together"), std::string::npos)
      << some.advice;
  EXPECT_EQ(judged(6, 8, 16384, AskedLengths::kSome).verdict, Verdict::kOk);
  EXPECT_EQ(judged(2, 8, 16384, AskedLengths::kSome).verdict, Verdict::kWarn) << "1.13 % by chance";
  EXPECT_EQ(judged(1, 8, 16384, AskedLengths::kSome).verdict, Verdict::kFail) << "0.13 %";
  EXPECT_EQ(judged(0, 4, 16384, AskedLengths::kSome).verdict, Verdict::kFail) << "0.81 %";
  EXPECT_EQ(judged(0, 3, 16384, AskedLengths::kSome).verdict, Verdict::kWarn) << "2.7 %";
  EXPECT_EQ(judged(5, 8, 0, AskedLengths::kSome).verdict, Verdict::kFail) << "no document: any length is all";
}

TEST(SaveAnswers, WritesTextAndTokenCounts) {
  const testing::FakeRoot root;
  const AnsweredTask one{.task = {.kind = "sum", .answer = "2"},
                         .answer = {.content = "\xff 2", .prompt_tokens = 9, .completion_tokens = 3},
                         .right = true};
  save_answers(root.path() / "answers.jsonl", {one, one});
  std::ifstream file(root.path() / "answers.jsonl");
  std::string line;
  int count = 0;
  for (; std::getline(file, line); ++count) {
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["prompt_tokens"], 9);
    EXPECT_EQ(json["completion_tokens"], 3);
    EXPECT_EQ(json["right"], true);
  }
  EXPECT_EQ(count, 2);
  EXPECT_THROW(save_answers(root.path() / "no/such/folder", {}), Error);
}

// ---- two servers ----

ScoredToken token(const std::string& text, double logprob,
                  std::vector<std::pair<std::string, double>> others = {}) {
  ScoredToken one{.text = text, .logprob = logprob, .top = {{text, logprob}}};
  for (auto& other : others) one.top.push_back(std::move(other));
  return one;
}

class GivenAnswers final : public ChatAnswerer {
 public:
  GivenAnswers(std::string name, std::vector<ScoredToken> tokens)
      : name_(std::move(name)), tokens_(std::move(tokens)) {}
  std::string name() const override { return name_; }
  TaskAnswer answer(const Task&) override { return {}; }
  std::vector<ScoredToken> scored_answer(const Task&) override { return tokens_; }
  int64_t count_tokens(const std::string&) override { return 0; }

 private:
  std::string name_;
  std::vector<ScoredToken> tokens_;
};

Findings compare(std::vector<ScoredToken> one, std::vector<ScoredToken> other) {
  GivenAnswers a("A", std::move(one)), b("B", std::move(other));
  return compare_servers(a, b, {{.kind = "retrieval"}}, nullptr);
}

TEST(CompareServers, EqualAnswersAgree) {
  const Findings findings =
      compare({token("a", -0.1), token("b", -0.2)}, {token("a", -0.11), token("b", -0.2)});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].verdict, Verdict::kOk);
  EXPECT_NE(findings[0].text.find("within 0.01"), std::string::npos) << findings[0].text;
}

TEST(CompareServers, ASmallGapOnBothSidesIsATie) {
  const Findings findings = compare({token("a", -0.1), token("x", -0.70, {{"y", -0.72}})},
                                    {token("a", -0.1), token("y", -0.69, {{"x", -0.71}})});
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_FALSE(any_failed(findings)) << to_text(findings);
  EXPECT_NE(findings[1].text.find("1 tokens equal"), std::string::npos) << findings[1].text;
  EXPECT_NE(findings[1].text.find("a tie within rounding"), std::string::npos) << findings[1].text;
}

TEST(CompareServers, AWideGapIsARealDifference) {
  const Findings findings = compare({token("x", -0.1, {{"y", -2.6}})}, {token("y", -0.4, {{"x", -0.5}})});
  EXPECT_TRUE(any_failed(findings));
  EXPECT_NE(findings[1].text.find("\"x\" (\"y\" 2.5 behind)"), std::string::npos) << findings[1].text;
  EXPECT_TRUE(any_failed(compare({token("x", -0.1)}, {token("y", -0.1)}))) << "not among the best of either";
}

TEST(CompareServers, AnAnswerThatEndsEarlierDiverges) {
  const Findings findings = compare({token("a", -0.1)}, {token("a", -0.1), token("b", -0.2)});
  EXPECT_TRUE(any_failed(findings));
  EXPECT_NE(findings[1].text.find("A has the end"), std::string::npos) << findings[1].text;
}

// llama.cpp lists the token that ended the answer, without text; others do not.
TEST(CompareServers, AnEntryForTheEndIsNoToken) {
  for (const bool end_is_listed_first : {true, false}) {
    std::vector<ScoredToken> listed = {token("a", -0.1), token("", -1e-5, {{"b", -11}})};
    std::vector<ScoredToken> bare = {token("a", -0.1)};
    if (!end_is_listed_first) listed.swap(bare);
    const Findings findings = compare(listed, bare);
    ASSERT_EQ(findings.size(), 1u) << to_text(findings);
    EXPECT_FALSE(any_failed(findings)) << to_text(findings);
    EXPECT_TRUE(findings[0].text.ends_with("of 1 equal tokens within 0")) << findings[0].text;
  }
}

// llama.cpp lists a character of several tokens once, at its last token, with the character's text.
TEST(CompareServers, TokensOfOneCharacterAreListedInTwoWays) {
  const std::vector<ScoredToken> pieces = {token("a", -0.1), token("\xE5\xAE", -0.3),
                                           token("\x81", -0.2, {{"\x89", -0.3}}), token("b", -0.1)};
  ScoredToken whole = token("\x81", -0.25, {{"\x89", -0.35}});
  whole.text = "\xE5\xAE\x81";
  const Findings findings = compare(pieces, {token("a", -0.1), whole, token("b", -0.1)});
  ASSERT_EQ(findings.size(), 1u) << to_text(findings);
  EXPECT_FALSE(any_failed(findings)) << to_text(findings);
  EXPECT_NE(findings[0].text.find("of 3 equal tokens within 0.05"), std::string::npos) << findings[0].text;

  ScoredToken other = token("\x89", -0.3, {{"\x81", -0.31}});
  other.text = "\xE5\xAE\x89";
  const Findings tie = compare(pieces, {token("a", -0.1), other, token("b", -0.1)});
  EXPECT_FALSE(any_failed(tie)) << to_text(tie);
  other.top[1].second = -2.4;
  EXPECT_TRUE(any_failed(compare(pieces, {token("a", -0.1), other, token("b", -0.1)})));
  EXPECT_TRUE(any_failed(compare({token("a", -0.1)}, {token("a", -0.1), token("\xE5", -0.3)})))
      << "a character that breaks off is not lost";
}

TEST(CompareServers, EqualTokensWithOtherProbabilitiesAreNoAgreement) {
  EXPECT_TRUE(any_failed(compare({token("a", -0.1)}, {token("a", -1.9)})));
}

}  // namespace
}  // namespace longspan::measure
