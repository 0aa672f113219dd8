// A mock of engine::Engine: no model, tokens and delays by a script. It takes the engine's place at link time
// (the linker finds Engine's members here before it looks into the engine room), so the server and the
// commands in front of it are the real ones, and the program that is shipped has no mock in it.
//
// longspan_mock is the longspan program with it: MOCK_ENGINE='{"tokens_per_second": 20}' longspan_mock serve
// ...
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/engine.h"

namespace longspan::testing {

struct MockScript {
  double tokens_per_second = 1000;       // of each answer
  double prefill_tokens_per_second = 0;  // of each prompt; 0: at once
  int64_t chunk_tokens = 4096;           // of a prompt, between two reports of progress
  double stall_seconds = 0;              // the first chunk of every prompt takes this much longer
  std::vector<int32_t> tokens = {64};    // of an answer, over and over; 64 is "a" in the bundled model
  int64_t stop_after = 0;                // tokens, then the answer ends by itself; 0: it does not
  // For programs that measure: the seed of the request, the number of the token, when it was handed on.
  std::function<void(uint64_t seed, int64_t token_idx, engine::Clock::time_point time)> on_token;
};

// What engines made from now on do. At first as $MOCK_ENGINE says: a JSON object of the numbers above.
MockScript& mock_script();

}  // namespace longspan::testing
