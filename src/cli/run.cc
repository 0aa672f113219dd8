// `longspan run`: one prompt through the engine, streamed to the terminal.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <csignal>
#include <filesystem>
#include <optional>

#include "cli/commands.h"
#include "cli/input.h"
#include "cli/load.h"
#include "core/units.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/reasoning_parser.h"
#include "text/utf8.h"

namespace longspan::cli {
namespace {

using Json = nlohmann::ordered_json;

struct RunFlags {
  SettingFlags settings;
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

struct Prompt {
  std::vector<int32_t> ids;
  bool opens_reasoning = false;  // the template began a thought, which the answer goes on with
};

// Ids in, ids out: a shape without a tokenizer runs, too.
std::optional<text::Tokenizer> find_tokenizer(const RunFlags& flags, const io::Config& config) {
  const std::filesystem::path model = config.string("model.model_path");
  if (!flags.prompt_ids.empty() && !std::filesystem::exists(model / "tokenizer.json")) return std::nullopt;
  return load_tokenizer(config);
}

// `tokenizer` may be missing where find_tokenizer says so.
Prompt make_prompt(const RunFlags& flags, const io::Config& config,
                   const std::optional<text::Tokenizer>& tokenizer) {
  const int given = !flags.prompt.empty() + !flags.prompt_file.empty() + !flags.prompt_ids.empty();
  if (given > 1)
    fail(ErrorKind::kInvalid, "got {} of --prompt, --prompt-file and --prompt-ids: need one", given);
  if (!flags.prompt_ids.empty()) return {.ids = read_ids(flags.prompt_ids)};
  std::string text = flags.prompt_file.empty() ? flags.prompt : read_text(flags.prompt_file);
  text::validate_utf8(text, "--prompt");
  if (text.empty())
    fail(ErrorKind::kInvalid, "the prompt is empty: need --prompt, --prompt-file or --prompt-ids");
  if (!flags.raw) {
    Json messages = Json::array();
    if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
    messages.push_back({{"role", "user"}, {"content", text}});
    const Json request = {
        {"messages", messages}, {"add_generation_prompt", true}, {"enable_thinking", flags.thinking}};
    text = text::ChatTemplate::load(config.string("model.model_path")).render(request);
  }
  return {.ids = flags.raw ? tokenizer->encode_prompt(text)
                           : tokenizer->encode(text, text::SpecialTokens::kParse),
          .opens_reasoning = !flags.raw && text::opens_reasoning(text)};
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

// `started` is when the request was handed over: a short prompt is done before anybody looks. Without a
// tokenizer the answer has no text, and its ids are printed.
Progress stream(engine::Response& response, engine::Clock::time_point started,
                const std::optional<text::Tokenizer>& tokenizer, bool print) {
  constexpr auto kPoll = std::chrono::milliseconds(200);
  const auto seconds = [&](engine::Clock::time_point at) {
    return std::chrono::duration<double>(at - started).count();
  };
  std::optional<text::Detokenizer> detokenizer;
  if (tokenizer) detokenizer.emplace(*tokenizer, text::Decoding::kSkipSpecial);
  Progress progress;
  const auto show = [&](const std::string& piece) {
    if (!print) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);  // a piece may hold a zero byte
    std::fflush(stdout);
  };
  const auto add = [&](const std::string& piece) {
    progress.text += piece;
    show(piece);
  };
  do {
    progress.last = response.wait(kPoll);
    for (const engine::TokenOutput& token : progress.last.tokens) {
      if (progress.ids.empty()) progress.ttft_seconds = seconds(token.time);
      progress.total_seconds = seconds(token.time);
      progress.ids.push_back(token.token);
      if (detokenizer)
        add(detokenizer->push(token.token));
      else
        show(fmt::format("{} ", token.token));
    }
  } while (!progress.last.done && !interrupted);
  if (!progress.last.done) progress.last.reason = engine::FinishReason::kCancelled;
  if (detokenizer) add(detokenizer->finish());
  if (print) std::fputs("\n", stdout);
  return progress;
}

// The answer without its thoughts, and those.
struct Split {
  std::string text;
  std::string reasoning;
};

Split split_reasoning(const std::string& answer, bool opens_reasoning) {
  text::ReasoningParser parser(opens_reasoning);
  Split split;
  const auto add = [&](const std::vector<text::ReasoningEvent>& events) {
    for (const text::ReasoningEvent& event : events)
      (event.kind == text::ReasoningEvent::Kind::kReasoning ? split.reasoning : split.text) += event.text;
  };
  add(parser.push(answer));
  add(parser.finish());
  return split;
}

Json to_json(const Progress& progress, size_t num_prompt, const Split& split) {
  return {{"prompt_tokens", num_prompt},
          {"ids", progress.ids},
          {"text", split.text},
          {"reasoning", split.reasoning},
          {"finish_reason", reason_name(progress.last.reason)},
          {"ttft_ms", progress.ttft_seconds * 1e3},
          {"tokens_per_second", progress.tokens_per_second()}};
}

int run(const RunFlags& flags) {
  if (flags.max_tokens < 1)
    fail(ErrorKind::kInvalid, "--max-tokens: got {}, need 1 or more", flags.max_tokens);
  sampling(flags, {});  // a flag out of range is told before the load
  const io::Config config = flags.settings.settings();
  engine::EngineOptions options = engine_options(config, engine::Purpose::kRun);
  options.max_num_seqs = 1;
  const std::optional<text::Tokenizer> tokenizer = find_tokenizer(flags, config);
  if (tokenizer) options.tokenizer_eos_ids = eos_ids(*tokenizer);
  Prompt prompt = make_prompt(flags, config, tokenizer);
  const auto engine = load_engine(config, options, flags.json ? StartLines::kQuiet : StartLines::kPrint);
  const size_t num_prompt = prompt.ids.size();
  std::signal(SIGINT, on_interrupt);
  const auto started = engine::Clock::now();
  engine::Response response = engine->submit({.prompt = std::move(prompt.ids),
                                              .max_new_tokens = flags.max_tokens,
                                              .sampling = sampling(flags, engine->info().generation),
                                              .ignore_eos = flags.ignore_eos});
  const Progress progress = stream(response, started, tokenizer, /*print=*/!flags.json);
  if (progress.last.reason == engine::FinishReason::kError)
    fail(ErrorKind::kEnvironment, "{}", progress.last.error);
  if (flags.json) {
    const Split split =
        flags.raw ? Split{.text = progress.text} : split_reasoning(progress.text, prompt.opens_reasoning);
    std::printf("%s\n", to_json(progress, num_prompt, split).dump(2).c_str());
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
  flags->settings.add_to(*command, FlagKind::kModel);
  command->add_option("--prompt", flags->prompt, "The user's message");
  command->add_option("--prompt-file", flags->prompt_file, "The same from a file; - is standard input");
  command->add_option("--prompt-ids", flags->prompt_ids,
                      "Token ids from a file, whitespace between them; no template, and no tokenizer needed");
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
