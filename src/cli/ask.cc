// `longspan ask`: one question to a running server, streamed to the terminal. What belongs to a place
// (address, key, model, time-outs) comes from settings.json.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "cli/commands.h"
#include "cli/input.h"
#include "core/error.h"
#include "core/log.h"
#include "core/units.h"
#include "server/http_client.h"
#include "text/utf8.h"

namespace longspan::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr const char* kDefaultSettings = "settings.json";

struct AskFlags {
  std::string settings;
  std::string prompt;
  std::string prompt_file;
  std::string system;
  std::string api_base;
  std::string api_key;
  std::string model;
  std::optional<bool> thinking;
  std::optional<int64_t> max_tokens;
  std::optional<double> temperature;
  bool json = false;
};

struct AskSettings {
  server::HttpUrl api_base{.host = "127.0.0.1", .port = "8000"};
  std::string api_key;
  std::string model;
  Json default_params = Json::object();
  Json long_context = Json::object();  // what the server is expected to be
  server::HttpTimeouts timeouts;
};

// ---- settings.json ----

// Throws kInvalid naming file and field unless `value` is of the type.
template <class T>
T value_of(const Json& value, const std::string& where) {
  try {
    return value.get<T>();
  } catch (const Json::exception&) {
    fail(ErrorKind::kInvalid, "{}: got {}", where, value.dump());
  }
}

std::chrono::milliseconds timeout_of(const Json& value, const std::string& where) {
  const auto seconds = value_of<double>(value, where);
  if (!(seconds > 0 && seconds < 1e6))
    fail(ErrorKind::kInvalid, "{}: got {}, need seconds above 0", where, seconds);
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

Json object_of(const Json& value, const std::string& where) {
  if (!value.is_object()) fail(ErrorKind::kInvalid, "{}: got {}, need an object", where, value.dump());
  return value;
}

AskSettings read_settings(const std::string& path) {
  AskSettings settings;
  const Json json = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) fail(ErrorKind::kInvalid, "{}: need a JSON object", path);
  for (const auto& [name, value] : json.items()) {
    const std::string where = fmt::format("{}: {}", path, name);
    if (name == "api_base") {
      settings.api_base = server::parse_http_url(value_of<std::string>(value, where));
    } else if (name == "api_key") {
      settings.api_key = value_of<std::string>(value, where);
    } else if (name == "model") {
      settings.model = value_of<std::string>(value, where);
    } else if (name == "default_params") {
      settings.default_params = object_of(value, where);
    } else if (name == "long_context") {
      settings.long_context = object_of(value, where);
    } else if (name == "timeout") {
      const Json timeouts = object_of(value, where);
      for (const auto& [which, seconds] : timeouts.items()) {
        const std::string at = where + "." + which;
        if (which != "connect_seconds" && which != "read_seconds")
          fail(ErrorKind::kInvalid, "{}: unknown; need connect_seconds or read_seconds", at);
        (which == "connect_seconds" ? settings.timeouts.connect : settings.timeouts.read) =
            timeout_of(seconds, at);
      }
    } else {
      fail(ErrorKind::kInvalid,
           "{}: unknown; need api_base, api_key, model, default_params, long_context or timeout", where);
    }
  }
  return settings;
}

AskSettings settings_of(const AskFlags& flags) {
  AskSettings settings;
  if (!flags.settings.empty())
    settings = read_settings(flags.settings);
  else if (std::filesystem::exists(kDefaultSettings))
    settings = read_settings(kDefaultSettings);
  if (!flags.api_base.empty()) settings.api_base = server::parse_http_url(flags.api_base);
  if (!flags.api_key.empty()) settings.api_key = flags.api_key;
  if (!flags.model.empty()) settings.model = flags.model;
  // Clients of the OpenAI kind write the version into the base; the paths here have it already.
  std::string& path = settings.api_base.path;
  if (path.size() >= 3 && path.compare(path.size() - 3, 3, "/v1") == 0) path.resize(path.size() - 3);
  return settings;
}

// ---- talking to the server ----

std::vector<std::pair<std::string, std::string>> headers_of(const AskSettings& settings) {
  std::vector<std::pair<std::string, std::string>> headers = {{"Content-Type", "application/json"}};
  if (!settings.api_key.empty()) headers.emplace_back("Authorization", "Bearer " + settings.api_key);
  return headers;
}

// The server's own words, whatever it sent.
[[noreturn]] void fail_answer(const std::string& path, const server::HttpAnswer& answer) {
  const Json json = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  const bool usual = json.is_object() && json.contains("error") && json["error"].is_object();
  const std::string message =
      usual ? json["error"].value("message", "") : text::replace_invalid_utf8(answer.body.substr(0, 300));
  const bool mine = answer.status >= 400 && answer.status < 500;
  fail(mine ? ErrorKind::kInvalid : ErrorKind::kEnvironment, "{}: {} {}", path, answer.status, message);
}

// What this client's time-outs and expectations would run into. Empty for a server that has no such route.
std::vector<std::string> warnings(const AskSettings& settings, bool streams) {
  const auto answer = server::http_request(settings.api_base, settings.timeouts,
                                           {.path = "/v1/longspan/status", .headers = headers_of(settings)});
  if (answer.status != 200) return {};
  const Json status = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  if (!status.is_object() || !status.contains("limits")) return {};
  const Json& limits = status["limits"];
  std::vector<std::string> out;
  const double read = static_cast<double>(settings.timeouts.read.count()) / 1000;
  const double request_limit = limits.value("request_timeout_seconds", 0.0);
  const double server_limit = request_limit > 0 ? request_limit : limits.value("stall_seconds", 0.0);
  if (read < server_limit)
    out.push_back(
        fmt::format("timeout.read_seconds: {} s is below the server's {} s: a long prompt may be given up "
                    "while the server still reads it, and all of that work is lost",
                    read, server_limit));
  const double keepalive = limits.value("keepalive_seconds", 0.0);
  if (streams && (keepalive == 0 || keepalive >= read))
    out.push_back(
        fmt::format("timeout.read_seconds: {} s, but the server lets streams be silent for {}", read,
                    keepalive == 0 ? "as long as a prompt takes" : fmt::format("{} s at a time", keepalive)));
  const Json& expected = settings.long_context;
  const int64_t context = status.value("max_model_len", int64_t{0});
  if (const int64_t wanted = expected.value("max_model_len", int64_t{0}); context < wanted)
    out.push_back(fmt::format("long_context.max_model_len: expects {}, the server has {}", wanted, context));
  const bool cached = status["plan"].value("prefix_caching", false);
  if (expected.contains("prefix_cache") && expected["prefix_cache"] != cached)
    out.push_back(fmt::format("long_context.prefix_cache: expects {}, the server has {}",
                              expected["prefix_cache"].dump(), cached));
  return out;
}

// ---- the answer ----

enum class Output : uint8_t { kTerminal, kNone };

// An answer as it grows, from chunks or at once.
class Answer {
 public:
  explicit Answer(Output output) : print_(output == Output::kTerminal) {}

  void add_chunk(const Json& chunk) {
    if (chunk.contains("error")) fail(ErrorKind::kEnvironment, "{}", chunk["error"].value("message", ""));
    if (chunk.contains("prompt_progress")) show_progress(chunk["prompt_progress"]);
    if (chunk.contains("usage") && chunk["usage"].is_object()) usage_ = chunk["usage"];
    for (const Json& choice : chunk.value("choices", Json::array())) {
      add_text(choice.value("delta", Json::object()));
      if (choice.contains("finish_reason") && choice["finish_reason"].is_string())
        finish_reason_ = choice["finish_reason"];
    }
  }

  void add_whole(const Json& json) {
    usage_ = json.value("usage", Json::object());
    const Json choice = json.value("choices", Json::array({Json::object()})).at(0);
    add_text(choice.value("message", Json::object()));
    first_.reset();  // when it came is not when it was made
    finish_reason_ = choice.value("finish_reason", "");
  }

  void finish() {
    clear_progress();
    if (print_ && !text_.empty()) std::fputs("\n", stdout);
  }

  Json to_json(const std::vector<std::string>& warned) const {
    return {{"text", text_},
            {"reasoning", reasoning_},
            {"tool_calls", calls_},
            {"finish_reason", finish_reason_},
            {"prompt_tokens", prompt_tokens()},
            {"cached_tokens", cached_tokens()},
            {"completion_tokens", completion_tokens()},
            {"ttft_ms", first_ ? Json(seconds(*first_) * 1e3) : Json(nullptr)},
            {"tokens_per_second", decode_rate()},
            {"total_seconds", seconds(last_)},
            {"warnings", warned}};
  }

  std::string summary() const {
    std::string line = fmt::format("{} prompt tokens ({} cached)", format_count(prompt_tokens()),
                                   format_count(cached_tokens()));
    if (first_)
      line += fmt::format(", first token after {} ({:.0f} tokens/s)", format_seconds(seconds(*first_)),
                          static_cast<double>(prompt_tokens() - cached_tokens()) / seconds(*first_));
    line += fmt::format("; {} answer tokens", format_count(completion_tokens()));
    if (decode_rate() > 0) line += fmt::format(" at {:.1f} tokens/s", decode_rate());
    return line +
           fmt::format("; {}", finish_reason_.empty() ? "the stream ended without a reason" : finish_reason_);
  }

 private:
  double seconds(Clock::time_point at) const { return std::chrono::duration<double>(at - started_).count(); }
  size_t count(const char* name) const { return usage_.contains(name) ? usage_[name].get<size_t>() : 0; }
  size_t prompt_tokens() const { return count("prompt_tokens"); }
  size_t completion_tokens() const { return count("completion_tokens"); }
  size_t cached_tokens() const {
    const Json details = usage_.value("prompt_tokens_details", Json());
    return details.is_object() ? details.value("cached_tokens", size_t{0}) : 0;
  }
  // Of the tokens after the first; 0 where it cannot be known.
  double decode_rate() const {
    if (!first_ || completion_tokens() < 2 || last_ == *first_) return 0;
    return static_cast<double>(completion_tokens() - 1) / (seconds(last_) - seconds(*first_));
  }

  void add_text(const Json& delta) {
    const auto part = [&](const char* name) {
      return delta.contains(name) && delta[name].is_string() ? delta[name].get<std::string>() : std::string();
    };
    const std::string reasoning = part("reasoning_content");
    const std::string text = part("content");
    const Json calls = delta.value("tool_calls", Json());
    if (reasoning.empty() && text.empty() && calls.empty()) return;
    clear_progress();
    last_ = Clock::now();
    if (!first_) first_ = last_;
    reasoning_ += reasoning;
    text_ += text;
    print(stderr, reasoning);
    if (text_.size() == text.size() && !text.empty() && !reasoning_.empty()) print(stderr, "\n");
    print(stdout, text);
    for (const Json& call : calls) {
      calls_.push_back(call.value("function", Json::object()));
      print(stdout, fmt::format("{}\n", calls_.back().dump()));
    }
  }

  void print(std::FILE* stream, const std::string& text) const {
    if (!print_ || text.empty()) return;
    std::fwrite(text.data(), 1, text.size(), stream);
    std::fflush(stream);
  }

  // One line that is drawn again and again, on a terminal only.
  void show_progress(const Json& progress) {
    if (!print_ || isatty(STDERR_FILENO) != 1) return;
    const auto total = progress.value("total", size_t{0});
    const auto done = progress.value("processed", size_t{0});
    std::fprintf(stderr, "\r\x1b[Kreading the prompt: %s of %s tokens", format_count(done).c_str(),
                 format_count(total).c_str());
    std::fflush(stderr);
    progress_shown_ = true;
  }
  void clear_progress() {
    if (progress_shown_) std::fputs("\r\x1b[K", stderr);
    progress_shown_ = false;
  }

  bool print_;
  bool progress_shown_ = false;
  Clock::time_point started_ = Clock::now();
  std::optional<Clock::time_point> first_;
  Clock::time_point last_ = started_;
  std::string text_;
  std::string reasoning_;
  Json calls_ = Json::array();
  std::string finish_reason_;
  Json usage_ = Json::object();
};

Json body_of(const AskFlags& flags, const AskSettings& settings) {
  Json body = {{"model", settings.model}, {"messages", Json::array()}, {"stream", true}};
  if (settings.model.empty()) body.erase("model");
  text::validate_utf8(flags.system, "--system");
  if (!flags.system.empty()) body["messages"].push_back({{"role", "system"}, {"content", flags.system}});
  if (flags.prompt.empty() == flags.prompt_file.empty())
    fail(ErrorKind::kInvalid, "got {} prompts: need PROMPT or --prompt-file",
         flags.prompt.empty() ? "no" : "two");
  const std::string prompt = flags.prompt_file.empty() ? flags.prompt : read_text(flags.prompt_file);
  text::validate_utf8(prompt, "PROMPT");
  body["messages"].push_back({{"role", "user"}, {"content", prompt}});
  body.update(settings.default_params);
  if (flags.max_tokens) body["max_tokens"] = *flags.max_tokens;
  if (flags.temperature) body["temperature"] = *flags.temperature;
  if (flags.thinking) body["chat_template_kwargs"] = {{"enable_thinking", *flags.thinking}};
  if (body["stream"] == true) {
    body["stream_options"] = {{"include_usage", true}};
    body["return_progress"] = true;
  }
  return body;
}

int run(const AskFlags& flags) {
  const AskSettings settings = settings_of(flags);
  const Json body = body_of(flags, settings);
  const bool streams = body["stream"] == true;
  const std::vector<std::string> warned = warnings(settings, streams);
  if (!flags.json)
    for (const std::string& warning : warned) log(LogLevel::kWarn, "{}", warning);
  Answer answer(flags.json ? Output::kNone : Output::kTerminal);
  server::EventReader events;
  const auto on_data = [&](std::string_view data) {
    if (data == "[DONE]") return;
    const Json chunk = Json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (!chunk.is_object()) fail(ErrorKind::kEnvironment, "the server sent an event that is no JSON object");
    answer.add_chunk(chunk);
  };
  const char* path = "/v1/chat/completions";
  const server::HttpQuery query{
      .method = "POST", .path = path, .headers = headers_of(settings), .body = body.dump()};
  const auto take = [&](std::string_view piece) { events.push(piece, on_data); };
  const server::HttpAnswer reply =
      streams ? server::http_request(settings.api_base, settings.timeouts, query, take)
              : server::http_request(settings.api_base, settings.timeouts, query);
  if (reply.status != 200) fail_answer(path, reply);
  if (!streams) {
    const Json whole = Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
    if (!whole.is_object()) fail(ErrorKind::kEnvironment, "the server's answer is no JSON object");
    answer.add_whole(whole);
  }
  answer.finish();
  if (flags.json)
    std::printf("%s\n", answer.to_json(warned).dump(2).c_str());
  else
    std::fprintf(stderr, "\n%s\n", answer.summary().c_str());
  return 0;
}

}  // namespace

void add_ask(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<AskFlags>();
  CLI::App* command =
      app.add_subcommand("ask", "Ask a running server one question, streamed to the terminal");
  command->add_option("prompt", flags->prompt, "The user's message");
  command->add_option("--prompt-file", flags->prompt_file, "The same from a file; - is standard input");
  command->add_option("--system", flags->system, "System message");
  command->add_option(
      "--settings", flags->settings,
      "settings.json: api_base, api_key, model, default_params, long_context, timeout; default: "
      "the one in this folder, if any");
  command->add_option("--api-base", flags->api_base, "Address of the server; default: http://127.0.0.1:8000");
  command->add_option("--api-key", flags->api_key, "Key of the server")->envname("LONGSPAN_API_KEY");
  command->add_option("--model", flags->model, "Model name; default: the server's first");
  command->add_flag("--thinking,!--no-thinking", flags->thinking, "Ask for reasoning, or for none");
  command->add_option("--max-tokens", flags->max_tokens, "Tokens of the answer at most");
  command->add_option("--temperature", flags->temperature, "0: greedy");
  command->add_flag("--json", flags->json, "Print one JSON object at the end");
  command->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace longspan::cli
