#include "measure/task_score.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include "core/error.h"
#include "core/units.h"

namespace longspan::measure {

namespace {

using Json = nlohmann::ordered_json;

struct Count {
  int right = 0;
  int asked = 0;
  void add(bool is_right) {
    right += is_right ? 1 : 0;
    ++asked;
  }
};

// Of so many right answers or fewer, when each is right with the probability `share`.
double chance_of(const Count& count, double share) {
  double sum = 0, ways = 1;
  for (int right = 0; right <= count.right; ++right) {
    sum += ways * std::pow(share, right) * std::pow(1 - share, count.asked - right);
    ways *= static_cast<double>(count.asked - right) / (right + 1);
  }
  return sum;
}

struct Judgement {
  Verdict verdict = Verdict::kOk;
  std::string advice;
};

Judgement judge(const Count& count, double least, AskedLengths lengths) {
  constexpr double kNoChance = 0.01;
  if (static_cast<double>(count.right) / count.asked >= least) return {};
  const std::string need = fmt::format("need {:.0f} % right", 100 * least);
  if (lengths == AskedLengths::kAll) return {Verdict::kFail, need};
  const std::string meant = need + " of all built-in lengths together; of these alone ";
  if (chance_of(count, least) < kNoChance) return {Verdict::kFail, meant + "so few are no chance either"};
  return {Verdict::kWarn, meant + "that says nothing: ask without --lengths"};
}

std::string short_text(const std::string& text) {
  constexpr size_t kMaxBytes = 80;
  std::string line = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  if (line.size() > kMaxBytes) line = line.substr(0, kMaxBytes) + "...";
  return line;
}

std::string wrong_text(const AnsweredTask& one) {
  const TaskAnswer& answer = one.answer;
  if (!answer.error.empty()) return fmt::format("the request failed: {}", answer.error);
  const auto told = [](const std::string& call, const std::string& text) {
    return call.empty() ? short_text(text) : fmt::format("{}({})", call, text);
  };
  return fmt::format("at {} tokens got {}, need {}", answer.prompt_tokens,
                     told(answer.call, answer.call.empty() ? answer.content : answer.arguments),
                     told(one.task.call, one.task.answer));
}

}  // namespace

std::vector<AnsweredTask> answer_tasks(ChatAnswerer& answerer, const std::vector<Task>& tasks,
                                       const std::function<void(size_t, size_t)>& on_answer) {
  std::vector<AnsweredTask> answered;
  for (const Task& task : tasks) {
    AnsweredTask one{.task = task, .answer = answerer.answer(task)};
    one.right = is_right(task, one.answer);
    answered.push_back(std::move(one));
    if (on_answer) on_answer(answered.size(), tasks.size());
  }
  return answered;
}

double least_score(const std::string& kind, double otherwise) {
  static const std::map<std::string, double> kLeast = {
      {"retrieval", 0.9}, {"tracking", 0.7}, {"arithmetic", 0.8}, {"tool call", 0.9}};
  const auto found = kLeast.find(kind);
  return found == kLeast.end() ? otherwise : found->second;
}

Findings judge_tasks(const std::vector<AnsweredTask>& answered,
                     const std::function<double(const std::string& kind)>& least, AskedLengths lengths) {
  std::vector<std::string> kinds;  // in the order of their first question
  for (const AnsweredTask& one : answered)
    if (std::ranges::find(kinds, one.task.kind) == kinds.end()) kinds.push_back(one.task.kind);
  Findings findings;
  for (const std::string& kind : kinds) {
    Count all;
    std::map<std::pair<std::string, int64_t>, Count> cells;  // by language and length
    const AnsweredTask* wrong = nullptr;
    bool documents = false;
    for (const AnsweredTask& one : answered) {
      if (one.task.kind != kind) continue;
      all.add(one.right);
      documents |= one.task.num_tokens > 0;
      cells[{one.task.language, one.task.num_tokens}].add(one.right);
      if (!one.right && wrong == nullptr) wrong = &one;
    }
    std::string table;
    for (const auto& [cell, count] : cells) {
      std::string name = cell.first;
      if (cell.second > 0)
        name += fmt::format("{}{}", name.empty() ? "" : " ", format_count(static_cast<size_t>(cell.second)));
      if (cells.size() > 1 || !name.empty())
        table += fmt::format("{}{} {}/{}", table.empty() ? "" : ", ", name, count.right, count.asked);
    }
    const Judgement judgement = judge(all, least(kind), documents ? lengths : AskedLengths::kAll);
    findings.push_back({kind, judgement.verdict,
                        fmt::format("{} of {} right{}{}{}", all.right, all.asked, table.empty() ? "" : ": ",
                                    table, wrong == nullptr ? "" : "; " + wrong_text(*wrong)),
                        judgement.advice});
  }
  return findings;
}

void save_answers(const std::filesystem::path& path, const std::vector<AnsweredTask>& answered) {
  std::ofstream file(path, std::ios::trunc);
  for (const AnsweredTask& one : answered)
    file << Json{{"kind", one.task.kind},
                 {"language", one.task.language},
                 {"num_tokens", one.task.num_tokens},
                 {"right", one.right},
                 {"prompt_tokens", one.answer.prompt_tokens},
                 {"completion_tokens", one.answer.completion_tokens},
                 {"seconds", one.answer.seconds},
                 {"expected", one.task.answer},
                 {"content", one.answer.content},
                 {"call", one.answer.call},
                 {"arguments", one.answer.arguments},
                 {"error", one.answer.error}}
                .dump(-1, ' ', false, Json::error_handler_t::replace)
         << "\n";
  if (!file.flush()) fail(ErrorKind::kEnvironment, "{}: cannot be written", path.string());
}

}  // namespace longspan::measure
