// TaskSet: questions with one right answer, in the forms that the bundled model was trained on, and such of a
// user's own from a JSONL file. The same options give the same tasks on every machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace longspan::measure {

struct Task {
  std::string kind;        // "retrieval", "tracking", "arithmetic", "tool call", or what a file says
  std::string language;    // "en", "zh"; empty where not said
  int64_t num_tokens = 0;  // that the prompt was made for; 0: short
  nlohmann::ordered_json messages;
  nlohmann::ordered_json tools;  // null: none
  std::string answer;            // part of the right content; with a call its arguments, as JSON
  std::string call;              // the function that must be called; empty: none
  int64_t max_tokens = 64;       // of the answer
};

struct TaskOptions {
  std::vector<int64_t> lengths = {1024, 4096};  // tokens, of the documents of retrieval and tracking
  int num_each = 2;                             // of each kind, language and length
  int num_short = 8;                            // of arithmetic and of tool calls, in each language
  uint64_t seed = 1;
};

// How many tokens a text has.
using TokenLength = std::function<int64_t(const std::string& text)>;
std::vector<Task> builtin_tasks(const TaskOptions& options, const TokenLength& length);

// Lines {"kind"?, "prompt" or "messages", "answer", "tools"?, "call"?, "language"?, "max_tokens"?}; "answer"
// is a text, or with "call" its arguments. Throws kInvalid naming file and line; kNotFound.
std::vector<Task> read_tasks(const std::filesystem::path& path);

// What came back, as far as it is judged.
struct TaskAnswer {
  std::string content;
  std::string call;       // the first one's function; empty: none
  std::string arguments;  // JSON
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  double seconds = 0;
  std::string error;  // of the request; then the rest means nothing
};
bool is_right(const Task& task, const TaskAnswer& answer);

}  // namespace longspan::measure
