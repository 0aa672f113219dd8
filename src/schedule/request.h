// Request: what the engine asks the scheduler to run. Tokens only; text, sampling and stop rules stay out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longspan::schedule {

using SeqId = int64_t;

struct Request {
  SeqId id = 0;                 // chosen by the caller, unique among live requests
  std::vector<int32_t> prompt;  // at least one token
  int64_t max_new_tokens = 1;   // at least one
  int32_t priority = 0;         // -100 .. 100, smaller first (clamped)
  std::string cache_salt;       // prompts share cached prefixes under equal salts only
  bool share_prefix = true;     // false: takes nothing from the prefix index and leaves nothing in it
};

}  // namespace longspan::schedule
