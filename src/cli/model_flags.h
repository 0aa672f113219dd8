// The flags that say which model to load and how, shared by the commands that run one.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "engine/engine.h"
#include "text/tokenizer.h"

namespace longspan::cli {

struct ModelFlags {
  std::string model;
  std::string device = "cpu";
  std::string dtype = "auto";
  int threads = 0;
  std::optional<uint64_t> random_weights;
  int64_t max_model_len = 0;
  int64_t max_num_batched_tokens = 4096;
  std::string cache_memory;
  std::string layout = "unified";
  int64_t block_size = 0;
  bool quiet = false;
};

void add_model_flags(CLI::App& command, ModelFlags& flags);

text::Tokenizer load_tokenizer(const ModelFlags& flags);

// Throws kInvalid on values that do not parse. Load progress goes to standard error unless quiet.
engine::EngineOptions engine_options(const ModelFlags& flags);
// The same, with the tokenizer's end-of-text token among those that end answers.
engine::EngineOptions engine_options(const ModelFlags& flags, const text::Tokenizer& tokenizer);

// Prints what will run, and why, unless quiet.
std::unique_ptr<engine::Engine> load_engine(const ModelFlags& flags, const engine::EngineOptions& options);

}  // namespace longspan::cli
