// TaskScore: how many questions of each kind, language and length were answered right.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "measure/chat_answerer.h"
#include "measure/finding.h"

namespace longspan::measure {

struct AnsweredTask {
  Task task;
  TaskAnswer answer;
  bool right = false;
};

// Asks one after the other.
std::vector<AnsweredTask> answer_tasks(ChatAnswerer& answerer, const std::vector<Task>& tasks,
                                       const std::function<void(size_t done, size_t total)>& on_answer);

// The share of a kind's questions that the bundled model answers at least, over all languages and lengths:
// retrieval 0.9, tracking 0.7, arithmetic 0.8, tool call 0.9; `otherwise` for other kinds.
double least_score(const std::string& kind, double otherwise);

// Which lengths of document were asked about.
enum class AskedLengths : uint8_t {
  kAll,
  kSome  // not those that `least` is meant for, which are asked about together
};

// One finding a kind: its share, by language and length; kFail below `least`, with the first wrong answer. Of
// documents of some lengths only where so few right answers are no chance (below 1 in 100, were `least` the
// share of each), else kWarn.
Findings judge_tasks(const std::vector<AnsweredTask>& answered,
                     const std::function<double(const std::string& kind)>& least,
                     AskedLengths lengths = AskedLengths::kAll);

// One line a task: {kind, language, num_tokens, right, prompt_tokens, completion_tokens, seconds, expected,
// content, call, arguments, error}. Throws kEnvironment.
void save_answers(const std::filesystem::path& path, const std::vector<AnsweredTask>& answered);

}  // namespace longspan::measure
