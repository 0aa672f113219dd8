// Prefill and decode against context length on a real model, and how they grow: time a token is a constant
// part and one that grows with the context, which attention alone may cause.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace longspan::measure {

struct ContextBenchOptions {
  engine::EngineOptions engine;  // its max_model_len is set here
  int64_t first = 4096;          // shortest context, tokens; then twice as long each
  int64_t longest = 65536;       // at most what the model was made for, less what is decoded
  int64_t decoded = 48;          // tokens that a decode figure is made of
  int64_t rounds = 3;            // the median of them counts
};

struct ContextFigure {
  int64_t context = 0;         // prompt tokens
  double prefill_seconds = 0;  // to the first token
  double decode_seconds = 0;   // a token
  double prefill_us_per_token() const { return prefill_seconds * 1e6 / static_cast<double>(context); }
};

// y = constant + slope * context, least squares over the figures; microseconds.
struct GrowthFit {
  double constant_us = 0;
  double slope_us = 0;       // a token of context more
  double worst_percent = 0;  // of the fit's misses, of the figure itself
  double at(double context) const { return constant_us + slope_us * context; }
};
GrowthFit fit_growth(const std::vector<std::pair<double, double>>& points);  // (context, us a token)

struct ContextResult {
  std::string device, model, layout;
  int64_t page_tokens = 0;
  int64_t rounds = 0;
  std::vector<ContextFigure> figures;
  std::vector<std::vector<int32_t>> answers;  // of each context: what another layout must answer too
  GrowthFit prefill;  // time a prompt token, at the middle of its own context: half of it, on average
  GrowthFit decode;
};

// A cold round first, not counted. Throws kEnvironment where the engine gives no answer, kInvalid where two
// rounds answer differently. `tell` hears each line.
ContextResult bench_context(const ContextBenchOptions& options,
                            const std::function<void(const std::string&)>& tell);

// The layouts and page sizes worth comparing, each with the result it gave; all answer the same, token by
// token, or kInvalid is thrown, naming the first that does not.
std::vector<ContextResult> bench_layouts(const ContextBenchOptions& options,
                                         const std::function<void(const std::string&)>& tell);

nlohmann::ordered_json to_json(const ContextResult& result);  // {kind: "context", ...}
std::string growth_text(const ContextResult& result);
// Time a token against context, figures and fits, as characters.
std::string growth_plot(const ContextResult& result);
// A gnuplot script with its data, which writes `image`.
std::string growth_script(const ContextResult& result, const std::string& image);

}  // namespace longspan::measure
