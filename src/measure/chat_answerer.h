// ChatAnswerer: whoever answers chat requests greedily: an engine in this program, or a server of OpenAI's
// chat dialect.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "measure/task_set.h"
#include "server/chat_prompt.h"
#include "server/http_client.h"

namespace longspan::measure {

// One token as its giver tells it.
struct ScoredToken {
  std::string text;  // bytes
  double logprob = 0;
  std::vector<std::pair<std::string, double>> top;  // best first
};

class ChatAnswerer {
 public:
  virtual ~ChatAnswerer() = default;
  virtual std::string name() const = 0;
  // A request that fails is an answer with an error.
  virtual TaskAnswer answer(const Task& task) = 0;
  // The same with the log probabilities of each token and of the best five. Throws kEnvironment.
  virtual std::vector<ScoredToken> scored_answer(const Task& task) = 0;
  // Tokens of a text; where nobody counts, a guess.
  virtual int64_t count_tokens(const std::string& text) = 0;
};

// Borrows all three.
std::unique_ptr<ChatAnswerer> engine_answerer(engine::Engine& engine, const text::Tokenizer& tokenizer,
                                              const text::ChatTemplate& chat_template);

// Asks the server which model it serves where `model` is empty. Throws kEnvironment, kInvalid.
std::unique_ptr<ChatAnswerer> server_answerer(const std::string& base_url, const std::string& api_key,
                                              const std::string& model);

}  // namespace longspan::measure
