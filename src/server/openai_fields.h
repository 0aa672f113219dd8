// The fields that OpenAI's chat and text completions share, from JSON to native values.
#pragma once

#include "server/generation.h"
#include "server/json_fields.h"

namespace longspan::server {

// What a request gets where it says nothing, and what it may ask for at most.
struct RequestDefaults {
  engine::SamplingParams sampling;  // of generation_config.json
  int32_t max_choices = 64;         // prompts times n
  double keepalive_seconds = 10;    // 0: never
};

struct StreamOptions {
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // usage in every chunk
  bool progress = false;          // prompt_progress chunks while the prompt is read
  double keepalive_seconds = 0;
};

// Everything but the prompts, the answer's parsers and logprobs, whose form differs. Throws WireError on a
// value that cannot be, and on a field with a meaning that this server does not give it.
GenerationRequest parse_generation(const JsonFields& fields, const RequestDefaults& defaults);
StreamOptions parse_stream_options(const JsonFields& fields, const RequestDefaults& defaults);

// finish_reason as OpenAI spells it.
const char* finish_name(FinishReason reason);
Json stop_reason(const Finish& finish);  // what stopped it: a string, a token id, or null
Json usage_json(const Usage& usage);
// {"token", "logprob", "bytes"} of chat logprobs.
Json token_json(const text::Tokenizer& tokenizer, int32_t token, float logprob);

}  // namespace longspan::server
