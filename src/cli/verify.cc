// `longspan verify`: does this model, on this device, compute what it should? Does that server?
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/load.h"
#include "core/log.h"
#include "measure/answer_compare.h"
#include "measure/task_score.h"
#include "measure/verify.h"
#include "text/chat_template.h"

namespace longspan::cli {
namespace {

struct VerifyFlags {
  SettingFlags settings;
  std::string base_url;
  std::string api_key;
  std::string against;
  std::string against_api_key;
  std::string served_model;
  std::string tasks;
  std::string save;
  std::vector<int64_t> lengths;
  double min_score = 0.9;
  bool quick = false;
  bool no_tasks = false;
  bool json = false;
};

// Of --base-url: the flag, else the setting (LONGSPAN_API_KEY).
std::string api_key_of(const VerifyFlags& flags, const io::Config& config) {
  return flags.api_key.empty() ? config.string("server.api_key") : flags.api_key;
}

// Progress on standard error, findings as they come on standard output.
class VerifyReport {
 public:
  explicit VerifyReport(bool json) : json_(json), terminal_(isatty(STDERR_FILENO) != 0) {}

  void progress(const std::string& text) const {
    if (json_) return;
    if (terminal_)
      std::fprintf(stderr, "\r\033[K%s ...", text.c_str());
    else
      std::fprintf(stderr, "%s ...\n", text.c_str());
  }
  void add(const measure::Finding& finding) {
    findings_.push_back(finding);
    if (json_) return;
    if (terminal_) std::fputs("\r\033[K", stderr);
    std::fputs(measure::to_text(finding).c_str(), stdout);
    std::fflush(stdout);
  }
  void add(const measure::Findings& findings) {
    for (const measure::Finding& one : findings) add(one);
  }

  int finish() const {
    const bool failed = measure::any_failed(findings_);
    const auto count = [&](measure::Verdict verdict) {
      return std::ranges::count_if(findings_, [&](const auto& one) { return one.verdict == verdict; });
    };
    if (json_)
      std::printf("%s\n",
                  nlohmann::ordered_json{{"verified", !failed}, {"findings", measure::to_json(findings_)}}
                      .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                      .c_str());
    else
      std::printf("%s: %td checks passed, %td failed, %td not checked or to be looked at\n",
                  failed ? "FAILED" : "verified", count(measure::Verdict::kOk),
                  count(measure::Verdict::kFail), count(measure::Verdict::kWarn));
    return failed ? 1 : 0;
  }

 private:
  bool json_;
  bool terminal_;
  measure::Findings findings_;
};

// The shape of longspan-tiny: built-in tasks are what it was trained on, their scores mean nothing elsewhere.
bool is_bundled(const io::ModelConfig& config) {
  return config.vocab_size == 4096 && config.hidden_size == 256 && config.num_layers() == 8;
}

measure::TaskOptions task_options(const VerifyFlags& flags) {
  measure::TaskOptions options;
  if (flags.quick) {
    options.lengths = {1024, 4096};
    options.num_each = 1;
    options.num_short = 5;
  } else {
    options.lengths = {1024, 4096, 8192, 16384, 30000};
    options.num_each = 2;
    options.num_short = 10;
  }
  if (!flags.lengths.empty()) options.lengths = flags.lengths;
  return options;
}

std::vector<measure::Task> tasks_for(const VerifyFlags& flags, measure::ChatAnswerer& answerer) {
  if (!flags.tasks.empty()) return measure::read_tasks(flags.tasks);
  return measure::builtin_tasks(task_options(flags),
                                [&](const std::string& text) { return answerer.count_tokens(text); });
}

void run_tasks(const VerifyFlags& flags, measure::ChatAnswerer& answerer, VerifyReport& report) {
  const std::vector<measure::Task> tasks = tasks_for(flags, answerer);
  const auto answered = measure::answer_tasks(answerer, tasks, [&](size_t done, size_t total) {
    if (done == 1 || done == total || done % 8 == 0) report.progress(fmt::format("tasks {}/{}", done, total));
  });
  const bool builtin = flags.tasks.empty();
  const auto least = [&](const std::string& kind) {
    return builtin ? measure::least_score(kind, flags.min_score) : flags.min_score;
  };
  report.add(measure::judge_tasks(
      answered, least, flags.lengths.empty() ? measure::AskedLengths::kAll : measure::AskedLengths::kSome));
  if (!flags.save.empty()) measure::save_answers(flags.save, answered);
}

// Text that the model knows, as ids: three chunks of the state layers and a tail, or ten of them.
std::vector<int32_t> examined_prompt(const VerifyFlags& flags, const io::Config& config, int64_t vocab_size) {
  const size_t num_tokens = flags.quick ? 203 : 650;
  std::vector<int32_t> ids;
  if (std::filesystem::exists(std::filesystem::path(config.string("model.model_path")) / "tokenizer.json")) {
    const text::Tokenizer tokenizer = load_tokenizer(config);
    const measure::TaskOptions options{.lengths = {1024}, .num_each = 1, .num_short = 0};
    const auto tasks = measure::builtin_tasks(options, [&](const std::string& text) {
      return std::ssize(tokenizer.encode(text, text::SpecialTokens::kAsText));
    });
    ids = tokenizer.encode(tasks.front().messages[0]["content"].get<std::string>(),
                           text::SpecialTokens::kAsText);
  }
  for (size_t i = ids.size(); i < num_tokens; ++i)
    ids.push_back(static_cast<int32_t>((i * 7919 + 13) % static_cast<size_t>(vocab_size)));
  ids.resize(num_tokens);
  return ids;
}

void verify_model(const VerifyFlags& flags, const io::Config& config, VerifyReport& report) {
  engine::EngineOptions options = engine_options(config, engine::Purpose::kRun);
  const engine::EngineInfo info = engine::make_plan(options, engine::Purpose::kRun);
  check_expectations(config, info.config);
  check_quantisation(config, info.config.quantization);
  report.progress("loading");
  measure::verify_engine({.engine = options,
                          .prompt = examined_prompt(flags, config, info.config.vocab_size),
                          .num_tokens = flags.quick ? 4 : 8,
                          .on_finding = [&](const measure::Finding& one) { report.add(one); },
                          .on_progress = [&](const std::string& what) { report.progress(what); }});
}

// An engine of the settings, to be asked like a server.
struct LocalModel {
  text::Tokenizer tokenizer;
  text::ChatTemplate chat_template;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<measure::ChatAnswerer> answerer;

  explicit LocalModel(const io::Config& config)
      : tokenizer(load_tokenizer(config)),
        chat_template(text::ChatTemplate::load(config.string("model.model_path"))) {
    engine::EngineOptions options = engine_options(config, engine::Purpose::kRun);
    options.max_num_seqs = 1;
    options.tokenizer_eos_ids = eos_ids(tokenizer);
    engine = load_engine(config, options, StartLines::kQuiet);
    answerer = measure::engine_answerer(*engine, tokenizer, chat_template);
  }
};

void verify_tasks(const VerifyFlags& flags, const io::Config& config, VerifyReport& report) {
  const std::filesystem::path model = config.string("model.model_path");
  if (!config.string("model.random_weights").empty() || !std::filesystem::exists(model / "tokenizer.json"))
    return;  // nothing to ask
  if (flags.tasks.empty() && !is_bundled(io::load_model_config(model)))
    return report.add(measure::Finding{"tasks", measure::Verdict::kWarn,
                                       "the built-in ones are those that longspan-tiny was trained on",
                                       "give tasks of this model: --tasks FILE.jsonl, lines {\"kind\", "
                                       "\"prompt\", \"answer\"}"});
  LocalModel local(config);
  run_tasks(flags, *local.answerer, report);
}

void compare_with(const VerifyFlags& flags, const io::Config& config, measure::ChatAnswerer& one,
                  VerifyReport& report) {
  const std::string key = flags.against_api_key.empty() ? api_key_of(flags, config) : flags.against_api_key;
  const auto other = measure::server_answerer(flags.against, key, "");
  std::vector<measure::Task> prompts = tasks_for(flags, one);
  const auto progress = [&](size_t done, size_t total) {
    if (done == 1 || done == total || done % 8 == 0)
      report.progress(fmt::format("prompts {}/{}", done, total));
  };
  report.add(measure::compare_servers(one, *other, prompts, progress));
}

int verify(const VerifyFlags& flags) {
  const io::Config config = flags.settings.settings();
  const bool has_model = !config.string("model.model_path").empty();
  if (flags.base_url.empty() && !has_model)
    fail(ErrorKind::kInvalid, "what shall be verified? Need --model, or --base-url of a server");
  set_log_level(LogLevel::kWarn);  // what a server tells of its paths is no news here
  VerifyReport report(flags.json);
  if (!flags.base_url.empty()) {
    const auto server =
        measure::server_answerer(flags.base_url, api_key_of(flags, config), flags.served_model);
    if (!flags.against.empty())
      compare_with(flags, config, *server, report);
    else
      run_tasks(flags, *server, report);
  } else if (!flags.against.empty()) {
    LocalModel local(config);
    compare_with(flags, config, *local.answerer, report);
  } else {
    verify_model(flags, config, report);
    if (!flags.no_tasks) verify_tasks(flags, config, report);
  }
  return report.finish();
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<VerifyFlags>();
  CLI::App* command = app.add_subcommand(
      "verify",
      "Finite outputs, repeats, reference, paths, tasks; or two servers compared; 1 when one fails");
  flags->settings.add_to(*command, FlagKind::kModel);
  command->add_option("--api-key", flags->api_key, "Of the server at --base-url");
  command->add_option("--base-url", flags->base_url,
                      "Ask a server instead of a model: http://127.0.0.1:8000");
  command->add_option("--against", flags->against,
                      "Compare with this server, token by token, and explain the first divergence");
  command->add_option("--against-api-key", flags->against_api_key, "Its key; without it that of --api-key");
  command->add_option("--served-model-name", flags->served_model,
                      "Name at --base-url; without it the first one");
  command->add_option("--tasks", flags->tasks,
                      "JSONL of {\"kind\", \"prompt\" or \"messages\", \"answer\", \"tools\", \"call\"}");
  command
      ->add_option("--lengths", flags->lengths,
                   "Tokens of the built-in documents, as 1024,30000: a score below its limit then fails only "
                   "where chance does not explain it")
      ->delimiter(',');
  command->add_option("--min-score", flags->min_score, "Share of own tasks that must be right")
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--save", flags->save, "Write each task's text, tokens and seconds to this JSONL file");
  command->add_flag("--quick", flags->quick, "Fewer and shorter prompts");
  command->add_flag("--no-tasks", flags->no_tasks, "Only what needs no task");
  command->add_flag("--json", flags->json, "Print {verified, findings}");
  command->callback([flags, &exit_code] { exit_code = verify(*flags); });
}

}  // namespace longspan::cli
