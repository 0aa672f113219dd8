// From settings to a loaded model: tokenizer and engine, with the start lines that say what will run.
#pragma once

#include <memory>
#include <vector>

#include "cli/settings.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace longspan::cli {

enum class StartLines : uint8_t { kPrint, kQuiet };

text::Tokenizer load_tokenizer(const io::Config& config);

// The tokenizer's own end-of-text token, for EngineOptions::tokenizer_eos_ids.
std::vector<int32_t> eos_ids(const text::Tokenizer& tokenizer);

// Checks what the settings expect of the model; prints, unless quiet, what will run, why, and which settings
// are not defaults; then loads. Throws Error of any kind.
std::unique_ptr<engine::Engine> load_engine(const io::Config& config, engine::EngineOptions options,
                                            StartLines lines);

}  // namespace longspan::cli
