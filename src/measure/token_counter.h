// TokenCounter: how many prompt tokens an endpoint will make of a text, its chat template included: asked of
// the server's /tokenize, or computed from a model directory on this machine.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "measure/load_client.h"

namespace longspan::measure {

struct TokenCounter {
  std::function<int64_t(const std::string& text)> count;  // empty: tokens cannot be counted here
  std::string source;                                     // "the server's /tokenize", "models/x", "nothing"
  bool with_template = true;  // false: a chat template's own tokens come on top of the count

  explicit operator bool() const { return static_cast<bool>(count); }
};

// Tries the dialects of vLLM and Longspan ({prompt} or {messages}) and of llama.cpp (/apply-template,
// {content}). Without such a route the counter is empty. Throws kEnvironment when the server does not answer
// at all.
TokenCounter server_token_counter(const LoadTarget& target);
// Throws what text::Tokenizer::load and text::ChatTemplate::load throw.
// Of the target: endpoint, and chat_template_kwargs of extra_body.
TokenCounter local_token_counter(const std::filesystem::path& model_dir, const LoadTarget& target);

}  // namespace longspan::measure
