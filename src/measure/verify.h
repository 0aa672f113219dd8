// Verify: does this engine compute what the model is? Each check is one finding; a fault is named with layer
// and operation where that can be told.
#pragma once

#include <functional>
#include <vector>

#include "engine/plan.h"
#include "measure/finding.h"

namespace longspan::measure {

struct VerifyOptions {
  engine::EngineOptions engine;  // what to verify: model, device, dtype, layout, paths
  // Token ids, at least 2 and best over 192: three chunks of the state layers and a tail.
  std::vector<int32_t> prompt;
  int64_t num_tokens = 6;  // of the answers
  // Called with each finding as it comes, and with what is done next before that.
  std::function<void(const Finding&)> on_finding;
  std::function<void(const std::string&)> on_progress;
};

// How far hidden rows after layer k may lie from those of the reference in fp32, |got - want| / |want|.
double layer_tolerance(DType dtype, Index k);

// Every operation against the reference's, with the same inputs: finite, and within rounding.
Findings verify_operations(const VerifyOptions& options);
// Rows after each layer, and the logits, against a run of the reference in fp32. The first layer past
// tolerance is named.
Findings verify_layers(const VerifyOptions& options);
// The same prompt twice gives the same bits.
Findings verify_repeats(const VerifyOptions& options);
// A hit in the prefix cache gives the bits of a cold run.
Findings verify_prefix_hit(const VerifyOptions& options);
// What must not change a bit: paths, layouts, chunk sizes, ways to prepare inputs. Each against the options
// as given.
Findings verify_paths(const VerifyOptions& options);

// All of them, in this order. A check that cannot run here is a warning.
Findings verify_engine(const VerifyOptions& options);

}  // namespace longspan::measure
