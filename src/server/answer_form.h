// AnswerForm: what a request wants its answer to be, by its shape and its tools, as a grammar; and the masks
// of such grammars, kept while they are in use.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "server/answer_shape.h"
#include "text/grammar/token_masks.h"

namespace longspan::server {

struct AnswerForm {
  std::shared_ptr<const text::Grammar> grammar;  // null: any text
  std::string source;                            // equal where the grammars are
};

struct ToolChoice {
  enum class Mode : uint8_t { kNone, kAuto, kRequired };
  Mode mode = Mode::kAuto;
  std::string name;  // with kRequired: of the one tool; empty: any of them
};

// OpenAI's tool_choice: auto, none, required, or a function by name. `tools`: normalised, or null. Throws
// WireError naming the field, as all of these do.
ToolChoice parse_tool_choice(const JsonFields& fields, const Json& tools);

// Calls where they are required; else a text of the shape, or also calls where there are tools. Without a
// shape: any text and then calls, if a tool is strict.
AnswerForm make_answer_form(const std::optional<AnswerShape>& shape, const Json& tools,
                            const ToolChoice& choice, bool parallel_calls);

// Thread-safe. Borrows the tokenizer.
class TokenMaskCache final {
 public:
  static constexpr size_t kMaxForms = 16;  // the least recently used one goes

  explicit TokenMaskCache(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // Null for a form without a grammar. The first call reads the vocabulary.
  std::shared_ptr<text::TokenMasks> find_or_make(const AnswerForm& form);

 private:
  const text::Tokenizer& tokenizer_;
  std::mutex mutex_;
  std::shared_ptr<const text::TokenTrie> trie_;                                 // guarded by mutex_
  std::list<std::pair<std::string, std::shared_ptr<text::TokenMasks>>> forms_;  // likewise; newest first
};

}  // namespace longspan::server
