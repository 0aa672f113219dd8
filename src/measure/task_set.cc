#include "measure/task_set.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <string_view>

#include "core/error.h"
#include "measure/prompt_text.h"

namespace longspan::measure {
namespace {

using Json = nlohmann::ordered_json;

// The same numbers everywhere, unlike those of <random>'s distributions.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1d;
  }
  int64_t below(int64_t count) { return static_cast<int64_t>((next() >> 33) % static_cast<uint64_t>(count)); }
  template <size_t n>
  std::string pick(const std::array<std::string_view, n>& words) {
    return std::string(words[static_cast<size_t>(below(n))]);
  }

 private:
  uint64_t state_;
};

constexpr std::array<std::string_view, 32> kPlaces = {
    "Oslo",  "Lima",  "Quito", "Turin",  "Porto", "Dakar", "Accra", "Hanoi", "Kyoto", "Sofia", "Tunis",
    "Minsk", "Baku",  "Riga",  "Split",  "Genoa", "Leeds", "Perth", "Delhi", "Seoul", "Osaka", "Busan",
    "Cairo", "Amman", "Doha",  "Bergen", "Ghent", "Basel", "Tampa", "Boise", "Omaha", "Harbin"};
constexpr std::array<std::string_view, 24> kChinesePlaces = {
    "哈尔滨", "长春", "沈阳", "大连", "北京", "天津", "上海", "南京", "杭州", "苏州", "宁波", "合肥",
    "福州",   "厦门", "南昌", "济南", "青岛", "郑州", "武汉", "长沙", "广州", "深圳", "成都", "昆明"};
constexpr std::array<std::string_view, 8> kVariables = {"alpha", "beta",  "gamma", "delta",
                                                        "omega", "sigma", "level", "speed"};

struct Fact {
  std::string place;
  std::string code;
};

enum class Language : uint8_t { kEnglish, kChinese };
const char* name_of(Language language) { return language == Language::kEnglish ? "en" : "zh"; }

std::string sentence_of(const Fact& fact, Language language) {
  if (language == Language::kChinese) return fact.place + "的访问码是 " + fact.code + "。";
  return "The access code of " + fact.place + " is " + fact.code + ".";
}

std::vector<Fact> draw_facts(Dice& dice, Language language, int count) {
  std::vector<Fact> facts;
  std::set<std::string> taken;
  while (std::ssize(facts) < count) {
    const std::string place = language == Language::kChinese ? dice.pick(kChinesePlaces) : dice.pick(kPlaces);
    if (!taken.insert(place).second) continue;
    facts.push_back({place, std::to_string(1000 + dice.below(9000))});
  }
  return facts;
}

// Prose of about `num_tokens` tokens with the lines between its words, in their order, spread evenly.
std::string document(Dice& dice, int64_t num_tokens, const std::vector<std::string>& lines,
                     const TokenLength& length) {
  PromptText source({.seed = dice.next(), .bucket = "verify"});
  std::string inserted;
  for (const std::string& line : lines) inserted += "\n\n" + line + "\n\n";
  const int64_t room = std::max<int64_t>(num_tokens - length(inserted), 32);
  constexpr size_t kSample = 400;  // words that tell how many tokens a word takes
  const double per_word = static_cast<double>(length(source.with_words(kSample))) / kSample;
  const auto num_words = static_cast<size_t>(static_cast<double>(room) / per_word);
  const std::string prose = source.with_words(std::max<size_t>(num_words, 8));
  std::string text;
  size_t begin = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    // Somewhere in the i-th of equal parts, at the end of a word.
    const size_t part = prose.size() / lines.size();
    const size_t aim = part * i + static_cast<size_t>(dice.below(static_cast<int64_t>(part)));
    const size_t end = std::min(prose.find(' ', std::max(aim, begin)), prose.size());
    text += prose.substr(begin, end - begin) + "\n\n" + lines[i] + "\n\n";
    begin = std::min(end + 1, prose.size());
  }
  return text + prose.substr(begin);
}

Json user_says(const std::string& text) { return Json::array({{{"role", "user"}, {"content", text}}}); }

Task retrieval(Dice& dice, Language language, int64_t num_tokens, const TokenLength& length) {
  const std::vector<Fact> facts = draw_facts(dice, language, 8);
  std::vector<std::string> lines;
  for (const Fact& fact : facts) lines.push_back(sentence_of(fact, language));
  const Fact& asked = facts[static_cast<size_t>(dice.below(std::ssize(facts)))];
  const std::string question = language == Language::kChinese
                                   ? asked.place + "的访问码是多少？"
                                   : "What is the access code of " + asked.place + "?";
  return {.kind = "retrieval",
          .language = name_of(language),
          .num_tokens = num_tokens,
          .messages = user_says(document(dice, num_tokens, lines, length) + "\n\n" + question),
          .answer = sentence_of(asked, language),
          .max_tokens = 32};
}

// The last of several values counts; those of another variable stand between.
Task tracking(Dice& dice, Language language, int64_t num_tokens, const TokenLength& length) {
  const std::string asked = dice.pick(kVariables);
  std::string other = asked;
  while (other == asked) other = dice.pick(kVariables);
  std::vector<std::string> lines;
  std::string last;
  for (int i = 0; i < 4; ++i) {
    last = std::to_string(dice.below(100));
    lines.push_back("Set " + asked + " to " + last + ".");
    lines.push_back("Set " + other + " to " + std::to_string(dice.below(100)) + ".");
  }
  const std::string question = language == Language::kChinese ? asked + " 的最终值是多少？"
                                                              : "What is the final value of " + asked + "?";
  return {.kind = "tracking",
          .language = name_of(language),
          .num_tokens = num_tokens,
          .messages = user_says(document(dice, num_tokens, lines, length) + "\n\n" + question),
          .answer = asked + " = " + last,
          .max_tokens = 24};
}

Task arithmetic(Dice& dice, Language language) {
  const int64_t a = dice.below(100), b = dice.below(100);
  const std::string term = fmt::format("{} + {}", a, b);
  return {
      .kind = "arithmetic",
      .language = name_of(language),
      .messages = user_says(language == Language::kChinese ? term + " 等于多少？" : "What is " + term + "?"),
      .answer = std::to_string(a + b),
      .max_tokens = 16};
}

Json function_tool(const std::string& name, const std::string& description, const Json& properties,
                   const std::string& required) {
  return {{"type", "function"},
          {"function",
           {{"name", name},
            {"description", description},
            {"parameters",
             {{"type", "object"}, {"properties", properties}, {"required", Json::array({required})}}}}}};
}

Task tool_call(Dice& dice, Language language) {
  const std::string place = language == Language::kChinese ? dice.pick(kChinesePlaces) : dice.pick(kPlaces);
  const Json text = {{"type", "string"}};
  const Json tools =
      Json::array({function_tool("get_weather", "Get weather.", {{"city", text}, {"unit", text}}, "city"),
                   function_tool("get_time", "Get time.", {{"city", text}}, "city")});
  const bool weather = dice.below(2) == 0;
  const std::string unit = dice.below(2) == 0 ? "celsius" : "fahrenheit";
  Json arguments = {{"city", place}};
  if (weather) arguments["unit"] = unit;
  return {.kind = "tool call",
          .language = name_of(language),
          .messages = user_says(weather ? "What is the weather in " + place + " in " + unit + "?"
                                        : "What time is it in " + place + "?"),
          .tools = tools,
          .answer = arguments.dump(),
          .call = weather ? "get_weather" : "get_time",
          .max_tokens = 80};
}

}  // namespace

std::vector<Task> builtin_tasks(const TaskOptions& options, const TokenLength& length) {
  Dice dice(options.seed);
  std::vector<Task> tasks;
  for (const Language language : {Language::kEnglish, Language::kChinese}) {
    for (int i = 0; i < options.num_short; ++i) tasks.push_back(arithmetic(dice, language));
    for (int i = 0; i < options.num_short; ++i) tasks.push_back(tool_call(dice, language));
  }
  for (const int64_t num_tokens : options.lengths)
    for (const Language language : {Language::kEnglish, Language::kChinese})
      for (int i = 0; i < options.num_each; ++i) {
        tasks.push_back(retrieval(dice, language, num_tokens, length));
        tasks.push_back(tracking(dice, language, num_tokens, length));
      }
  return tasks;
}

namespace {

Task task_of(const Json& json, const std::string& where) {
  const auto text = [&](const char* name) -> std::string {
    const auto found = json.find(name);
    if (found == json.end() || found->is_null()) return "";
    if (!found->is_string()) fail(ErrorKind::kInvalid, "{}: {}: need a string", where, name);
    return found->get<std::string>();
  };
  if (!json.is_object()) fail(ErrorKind::kInvalid, "{}: need a JSON object", where);
  Task task{.kind = text("kind"), .language = text("language"), .call = text("call")};
  if (task.kind.empty()) task.kind = "tasks";
  const bool has_prompt = json.contains("prompt");
  if (has_prompt == json.contains("messages"))
    fail(ErrorKind::kInvalid, "{}: need one of \"prompt\" and \"messages\"", where);
  task.messages = has_prompt ? user_says(text("prompt")) : json["messages"];
  if (!task.messages.is_array()) fail(ErrorKind::kInvalid, "{}: messages: need an array", where);
  task.tools = json.value("tools", Json());
  const Json answer = json.value("answer", Json());
  task.answer = answer.is_string() ? answer.get<std::string>() : answer.is_null() ? "" : answer.dump();
  if (task.answer.empty() && task.call.empty())
    fail(ErrorKind::kInvalid, "{}: need an \"answer\", or a \"call\"", where);
  const Json limit = json.value("max_tokens", Json(256));
  if (!limit.is_number_integer() || limit.get<int64_t>() < 1)
    fail(ErrorKind::kInvalid, "{}: max_tokens: got {}, need 1 or more", where, limit.dump());
  task.max_tokens = limit.get<int64_t>();
  return task;
}

}  // namespace

std::vector<Task> read_tasks(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) fail(ErrorKind::kNotFound, "{}: cannot be read", path.string());
  std::vector<Task> tasks;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    tasks.push_back(task_of(Json::parse(line, nullptr, /*allow_exceptions=*/false),
                            fmt::format("{}:{}", path.string(), number)));
  }
  if (tasks.empty()) fail(ErrorKind::kInvalid, "{}: no tasks", path.string());
  return tasks;
}

bool is_right(const Task& task, const TaskAnswer& answer) {
  if (!answer.error.empty() || answer.call != task.call) return false;
  if (!task.call.empty()) {
    if (task.answer.empty()) return true;
    const Json want = Json::parse(task.answer, nullptr, /*allow_exceptions=*/false);
    const Json got = Json::parse(answer.arguments, nullptr, /*allow_exceptions=*/false);
    // The order of arguments means nothing.
    return nlohmann::json(want) == nlohmann::json(got);
  }
  // A number is right as a whole: "17" is no part of "117".
  const auto is_digit = [&](size_t at) {
    return at < answer.content.size() && answer.content[at] >= '0' && answer.content[at] <= '9';
  };
  for (size_t at = answer.content.find(task.answer); at != std::string::npos;
       at = answer.content.find(task.answer, at + 1)) {
    const size_t end = at + task.answer.size();
    const bool cut = (at > 0 && is_digit(at - 1) && is_digit(at)) || (is_digit(end - 1) && is_digit(end)) ||
                     (at > 0 && answer.content[at - 1] == '-' && is_digit(at));
    if (!cut) return true;
  }
  return false;
}

}  // namespace longspan::measure
