#include "cli/load.h"

#include <cstdio>

#include "cli/progress.h"

namespace longspan::cli {
namespace {

void print_start(const io::Config& config, const engine::EngineInfo& info,
                 const engine::EngineOptions& options) {
  for (const std::string& line : engine::describe(info, options)) std::fprintf(stderr, "%s\n", line.c_str());
  const char* title = "settings    ";
  for (const std::string& line : config.lines(/*only_changed=*/true)) {
    std::fprintf(stderr, "%s%s\n", title, line.c_str());
    title = "            ";
  }
}

}  // namespace

text::Tokenizer load_tokenizer(const io::Config& config) {
  return text::Tokenizer::load(config.string("model.model_path"));
}

std::vector<int32_t> eos_ids(const text::Tokenizer& tokenizer) {
  const std::optional<int32_t> eos = tokenizer.eos_id();
  return eos ? std::vector<int32_t>{*eos} : std::vector<int32_t>();
}

std::unique_ptr<engine::Engine> load_engine(const io::Config& config, engine::EngineOptions options,
                                            StartLines lines) {
  options.on_plan = [&config, &options, lines](const engine::EngineInfo& info) {
    check_expectations(config, info.config);
    check_quantisation(config, info.config.quantization);
    if (lines == StartLines::kPrint) print_start(config, info, options);
  };
  // Drawn weights have no total to measure progress by.
  if (lines == StartLines::kPrint && !options.random_seed) options.load_progress = load_progress();
  return std::make_unique<engine::Engine>(options);
}

}  // namespace longspan::cli
