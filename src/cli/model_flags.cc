#include "cli/model_flags.h"

#include "cli/progress.h"
#include "core/units.h"

namespace longspan::cli {

void add_model_flags(CLI::App& command, ModelFlags& flags) {
  command
      .add_option("--model", flags.model, "Model directory (with --random-weights a config.json is enough)")
      ->required();
  command.add_option("--device", flags.device, "cpu, or reference: the slow oracle")->capture_default_str();
  command.add_option("--dtype", flags.dtype, "auto (the checkpoint's), bfloat16 or float32")
      ->capture_default_str();
  command.add_option("--threads", flags.threads, "Threads of the products; 0: all processors")
      ->capture_default_str();
  command.add_option("--random-weights", flags.random_weights,
                     "Draw the weights from this seed: shapes and speed without a file");
  command
      .add_option("--max-model-len", flags.max_model_len,
                  "Tokens of prompt and answer; 0: as the model was made for")
      ->capture_default_str();
  command.add_option("--max-num-batched-tokens", flags.max_num_batched_tokens, "Tokens of one step")
      ->capture_default_str();
  command.add_option("--cache-memory", flags.cache_memory,
                     "Memory of the cache, as 4GiB; default: what is needed, at most half");
  command.add_option("--layout", flags.layout, "Cache layout: unified or split")->capture_default_str();
  command.add_option("--block-size", flags.block_size,
                     "Page alignment in tokens, when larger than what the paths ask");
}

engine::EngineOptions engine_options(const ModelFlags& flags) {
  engine::EngineOptions options{.model = flags.model,
                                .random_seed = flags.random_weights,
                                .num_threads = flags.threads,
                                .max_model_len = flags.max_model_len,
                                .max_num_batched_tokens = flags.max_num_batched_tokens};
  if (flags.threads < 0) fail(ErrorKind::kInvalid, "--threads: got {}, need 0 or more", flags.threads);
  if (flags.dtype != "auto") options.dtype = dtype_from_name(flags.dtype);
  if (flags.device == "reference")
    options.device = engine::DeviceKind::kReference;
  else if (flags.device != "cpu")
    fail(ErrorKind::kInvalid, "--device: got '{}', need cpu or reference", flags.device);
  if (!flags.cache_memory.empty()) options.cache_bytes = parse_bytes(flags.cache_memory);
  options.pages.layout = cache::layout_from_name(flags.layout);
  options.pages.block_size = flags.block_size;
  // Drawn weights have no total to measure progress by.
  if (!flags.quiet && !flags.random_weights) options.load_progress = load_progress();
  return options;
}

engine::EngineOptions engine_options(const ModelFlags& flags, const text::Tokenizer& tokenizer) {
  engine::EngineOptions options = engine_options(flags);
  if (const auto eos = tokenizer.eos_id()) options.tokenizer_eos_ids = {*eos};
  return options;
}

text::Tokenizer load_tokenizer(const ModelFlags& flags) { return text::Tokenizer::load(flags.model); }

std::unique_ptr<engine::Engine> load_engine(const ModelFlags& flags, const engine::EngineOptions& options) {
  engine::EngineOptions announced = options;
  if (!flags.quiet)
    announced.on_plan = [&](const engine::EngineInfo& info) {
      for (const std::string& line : engine::describe(info, options))
        std::fprintf(stderr, "%s\n", line.c_str());
    };
  return std::make_unique<engine::Engine>(announced);
}

}  // namespace longspan::cli
