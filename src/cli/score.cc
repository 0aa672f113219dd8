// `longspan score`: mean negative log likelihood of a text, and its logits.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "cli/commands.h"
#include "cli/input.h"
#include "cli/load.h"
#include "core/units.h"
#include "io/safetensors.h"

namespace longspan::cli {
namespace {

struct ScoreFlags {
  SettingFlags settings;
  std::string prompt_ids;
  std::string prompt_file;
  std::string logits;
  bool json = false;
};

std::vector<int32_t> score_ids(const ScoreFlags& flags, const io::Config& config) {
  if (flags.prompt_ids.empty() == flags.prompt_file.empty())
    fail(ErrorKind::kInvalid, "need one of --prompt-ids and --prompt-file");
  if (!flags.prompt_ids.empty()) return read_ids(flags.prompt_ids);
  return load_tokenizer(config).encode_prompt(read_text(flags.prompt_file));
}

// log(sum(exp(row))) - row[target], in double.
template <class T>
double negative_log_likelihood(const T* row, Index vocab, int32_t target) {
  double max = static_cast<double>(static_cast<float>(row[0]));
  for (Index i = 1; i < vocab; ++i) max = std::max(max, static_cast<double>(static_cast<float>(row[i])));
  double total = 0;
  for (Index i = 0; i < vocab; ++i) total += std::exp(static_cast<double>(static_cast<float>(row[i])) - max);
  return std::log(total) + max - static_cast<double>(static_cast<float>(row[target]));
}

// Before the work, not after it.
void check_writable(const std::string& path) {
  if (path.empty()) return;
  const bool existed = std::filesystem::exists(path);
  std::ofstream file(path, std::ios::binary | std::ios::app);
  if (!file) fail(ErrorKind::kInvalid, "--logits: cannot write {}", path);
  file.close();
  if (!existed) std::filesystem::remove(path);
}

int score(const ScoreFlags& flags) {
  const io::Config config = flags.settings.settings();
  engine::EngineOptions options = engine_options(config, engine::Purpose::kRun);
  options.max_num_seqs = 1;
  check_writable(flags.logits);
  const std::vector<int32_t> ids = score_ids(flags, config);
  if (ids.size() < 2)
    fail(ErrorKind::kInvalid, "got {} tokens, need at least 2 to score a prediction", ids.size());
  const auto engine = load_engine(config, options, flags.json ? StartLines::kQuiet : StartLines::kPrint);
  const Index vocab = engine->info().config.vocab_size;
  const auto num_tokens = static_cast<Index>(ids.size());
  Buffer kept = flags.logits.empty() ? Buffer() : Buffer(DType::kF32, {num_tokens, vocab});
  double total = 0;
  engine::GenerateRequest request{.prompt = ids, .max_new_tokens = 1, .ignore_eos = true};
  request.on_prompt_logits = [&](int64_t position, const TensorView& row) {
    dispatch_dtype(row.dtype, [&]<class T>() {
      const T* values = row.as<T>();
      if (position + 1 < num_tokens)
        total += negative_log_likelihood(values, vocab, ids[static_cast<size_t>(position) + 1]);
      if (flags.logits.empty()) return;
      float* out = kept.view().as<float>() + position * vocab;
      for (Index i = 0; i < vocab; ++i) out[i] = static_cast<float>(values[i]);
    });
  };
  engine::Response response = engine->submit(std::move(request));
  engine::ResponseUpdate update;
  while (!update.done) update = response.wait(std::chrono::seconds(1));
  if (update.reason == engine::FinishReason::kError) fail(ErrorKind::kEnvironment, "{}", update.error);
  const double mean = total / static_cast<double>(num_tokens - 1);
  if (!flags.logits.empty()) {
    const io::NamedTensor tensor{"logits", kept.view()};
    io::write_safetensors(flags.logits, {&tensor, 1});
  }
  if (flags.json)
    std::printf("%s\n",
                nlohmann::ordered_json{{"num_tokens", num_tokens}, {"mean_nll", mean}}.dump().c_str());
  else
    std::printf("%s tokens, mean negative log likelihood %.5f (perplexity %.3f)\n",
                format_count(static_cast<size_t>(num_tokens)).c_str(), mean, std::exp(mean));
  return 0;
}

}  // namespace

void add_score(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* command = app.add_subcommand("score", "Mean negative log likelihood of a text; its logits");
  flags->settings.add_to(*command, FlagKind::kModel);
  command->add_option("--prompt-ids", flags->prompt_ids, "Token ids from a file, whitespace between them");
  command->add_option("--prompt-file", flags->prompt_file, "Text from a file; - is standard input");
  command->add_option("--logits", flags->logits,
                      "Write logits f32 [tokens, vocabulary] to this safetensors file");
  command->add_flag("--json", flags->json, "Print {num_tokens, mean_nll}");
  command->callback([flags, &exit_code] { exit_code = score(*flags); });
}

}  // namespace longspan::cli
