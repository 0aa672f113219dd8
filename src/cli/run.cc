// `longspan run`: one prompt through the engine, streamed to the terminal.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <csignal>

#include "cli/commands.h"
#include "cli/input.h"
#include "cli/model_flags.h"
#include "core/units.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace longspan::cli {
namespace {

using Json = nlohmann::ordered_json;

struct RunFlags {
  ModelFlags model;
  std::string prompt;
  std::string prompt_file;
  std::string prompt_ids;
  std::string system;
  bool raw = false;
  bool thinking = false;
  int64_t max_tokens = 512;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  bool ignore_eos = false;
  bool json = false;
};

std::vector<int32_t> prompt_ids(const RunFlags& flags, const text::Tokenizer& tokenizer) {
  const int given = !flags.prompt.empty() + !flags.prompt_file.empty() + !flags.prompt_ids.empty();
  if (given > 1)
    fail(ErrorKind::kInvalid, "got {} of --prompt, --prompt-file and --prompt-ids: need one", given);
  if (!flags.prompt_ids.empty()) return read_ids(flags.prompt_ids);
  std::string text = flags.prompt_file.empty() ? flags.prompt : read_text(flags.prompt_file);
  text::validate_utf8(text, "--prompt");
  if (text.empty())
    fail(ErrorKind::kInvalid, "the prompt is empty: need --prompt, --prompt-file or --prompt-ids");
  if (flags.raw) return tokenizer.encode(text, text::SpecialTokens::kParse);
  Json messages = Json::array();
  if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  const Json request = {
      {"messages", messages}, {"add_generation_prompt", true}, {"enable_thinking", flags.thinking}};
  return tokenizer.encode(text::ChatTemplate::load(flags.model.model).render(request),
                          text::SpecialTokens::kParse);
}

engine::SamplingParams sampling(const RunFlags& flags, const io::GenerationConfig& defaults) {
  engine::SamplingParams params = engine::default_sampling(defaults);
  if (flags.temperature) params.temperature = *flags.temperature;
  if (flags.top_p) params.top_p = *flags.top_p;
  if (flags.top_k) params.top_k = *flags.top_k;
  params.seed = flags.seed;
  engine::validate(params);
  return params;
}

const char* reason_name(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
      return "length";
    case engine::FinishReason::kCancelled:
      return "cancelled";
    case engine::FinishReason::kError:
      return "error";
  }
  return "";
}

// An answer as it grows.
struct Progress {
  std::vector<int32_t> ids;
  std::string text;
  double ttft_seconds = 0;
  double total_seconds = 0;
  engine::ResponseUpdate last;

  // Of the tokens after the first.
  double tokens_per_second() const {
    const double seconds = total_seconds - ttft_seconds;
    return ids.size() > 1 && seconds > 0 ? static_cast<double>(ids.size() - 1) / seconds : 0;
  }
};

// The first interrupt ends the answer, the second one the program.
volatile std::sig_atomic_t interrupted = 0;
void on_interrupt(int) {
  interrupted = 1;
  std::signal(SIGINT, SIG_DFL);
}

Progress stream(engine::Response& response, const text::Tokenizer& tokenizer, bool print) {
  constexpr auto kPoll = std::chrono::milliseconds(200);
  const auto started = engine::Clock::now();
  const auto seconds = [&](engine::Clock::time_point at) {
    return std::chrono::duration<double>(at - started).count();
  };
  text::Detokenizer detokenizer(tokenizer, text::Decoding::kSkipSpecial);
  Progress progress;
  const auto add = [&](const std::string& piece) {
    progress.text += piece;
    if (!print) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);  // a piece may hold a zero byte
    std::fflush(stdout);
  };
  do {
    progress.last = response.wait(kPoll);
    for (const engine::TokenOutput& token : progress.last.tokens) {
      if (progress.ids.empty()) progress.ttft_seconds = seconds(token.time);
      progress.total_seconds = seconds(token.time);
      progress.ids.push_back(token.token);
      add(detokenizer.push(token.token));
    }
  } while (!progress.last.done && !interrupted);
  if (!progress.last.done) progress.last.reason = engine::FinishReason::kCancelled;
  add(detokenizer.finish());
  if (print) std::fputs("\n", stdout);
  return progress;
}

Json to_json(const Progress& progress, size_t num_prompt, bool thinking) {
  std::string text = progress.text;
  std::string reasoning;
  // The template opened the block; the model closes it.
  constexpr std::string_view kClose = "</think>";
  if (const size_t close = text.find(kClose); thinking) {
    reasoning = text.substr(0, close);
    text = close == std::string::npos ? "" : text.substr(close + kClose.size());
    text.erase(0, text.find_first_not_of('\n'));
    reasoning.erase(reasoning.find_last_not_of('\n') + 1);
  }
  return {{"prompt_tokens", num_prompt},
          {"ids", progress.ids},
          {"text", text},
          {"reasoning", reasoning},
          {"finish_reason", reason_name(progress.last.reason)},
          {"ttft_ms", progress.ttft_seconds * 1e3},
          {"tokens_per_second", progress.tokens_per_second()}};
}

int run(RunFlags flags) {
  if (flags.json) flags.model.quiet = true;
  if (flags.max_tokens < 1)
    fail(ErrorKind::kInvalid, "--max-tokens: got {}, need 1 or more", flags.max_tokens);
  sampling(flags, {});  // a flag out of range is told before the load
  const text::Tokenizer tokenizer = load_tokenizer(flags.model);
  std::vector<int32_t> prompt = prompt_ids(flags, tokenizer);
  engine::EngineOptions options = engine_options(flags.model, tokenizer);
  options.max_num_seqs = 1;
  const auto engine = load_engine(flags.model, options);
  const size_t num_prompt = prompt.size();
  std::signal(SIGINT, on_interrupt);
  engine::Response response = engine->submit({.prompt = std::move(prompt),
                                              .max_new_tokens = flags.max_tokens,
                                              .sampling = sampling(flags, engine->info().generation),
                                              .ignore_eos = flags.ignore_eos});
  const Progress progress = stream(response, tokenizer, /*print=*/!flags.json);
  if (progress.last.reason == engine::FinishReason::kError)
    fail(ErrorKind::kEnvironment, "{}", progress.last.error);
  if (flags.json) {
    std::printf("%s\n", to_json(progress, num_prompt, flags.thinking && !flags.raw).dump(2).c_str());
  } else {
    std::fprintf(stderr, "\n%s prompt tokens in %s (%.0f tokens/s); %zu answer tokens at %.1f tokens/s; %s\n",
                 format_count(num_prompt).c_str(), format_seconds(progress.ttft_seconds).c_str(),
                 static_cast<double>(num_prompt) / std::max(progress.ttft_seconds, 1e-9), progress.ids.size(),
                 progress.tokens_per_second(), reason_name(progress.last.reason));
  }
  return 0;
}

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app.add_subcommand("run", "Answer one prompt, streamed to the terminal");
  add_model_flags(*command, flags->model);
  command->add_option("--prompt", flags->prompt, "The user's message");
  command->add_option("--prompt-file", flags->prompt_file, "The same from a file; - is standard input");
  command->add_option("--prompt-ids", flags->prompt_ids,
                      "Token ids from a file, whitespace between them; no template");
  command->add_option("--system", flags->system, "System message");
  command->add_flag("--raw", flags->raw, "No chat template: the text is the prompt");
  command->add_flag("--thinking", flags->thinking, "Ask for reasoning, where the template knows it");
  command->add_option("--max-tokens", flags->max_tokens, "Tokens of the answer at most")
      ->capture_default_str();
  command->add_option("--temperature", flags->temperature, "0: greedy; default: generation_config.json");
  command->add_option("--top-p", flags->top_p, "Keep the most likely tokens up to this mass");
  command->add_option("--top-k", flags->top_k, "Keep this many tokens; 0: all");
  command->add_option("--seed", flags->seed, "Makes sampling repeatable");
  command->add_flag("--ignore-eos", flags->ignore_eos, "Go on after the end-of-text token");
  command->add_flag("--json", flags->json, "Print one JSON object at the end");
  command->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace longspan::cli
