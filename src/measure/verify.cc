#include "measure/verify.h"

#include <algorithm>
#include <cmath>

#include "measure/examined_engine.h"

namespace longspan::measure {
namespace {

// Room for the prompt and the answer of one request, and little more: caches are copied at every step.
engine::EngineOptions small_engine(const VerifyOptions& options, int64_t max_num_batched_tokens) {
  engine::EngineOptions engine = options.engine;
  engine.max_num_seqs = 1;
  engine.max_num_batched_tokens = max_num_batched_tokens;
  engine.max_model_len = std::ssize(options.prompt) + options.num_tokens + 1;
  engine.cache_bytes = 0;
  engine.swap_bytes = 0;
  engine.pages.target_page_tokens = 0;
  return engine;
}

constexpr int64_t kExaminedChunk = 128;  // so that a prompt has chunks that begin with a state

// Products of the reference are plain loops: of large models only some rows are compared.
Index rows_within_budget(const io::ModelConfig& config) {
  constexpr double kBudget = 2e9;  // multiplications of one step
  const auto per_row = static_cast<double>(model::num_linear_weights(config));
  return std::max<Index>(2, static_cast<Index>(kBudget / per_row));
}

io::ModelConfig config_of(const VerifyOptions& options) {
  return io::load_model_config(options.engine.model);
}

// At least `num_tokens` long: the prompt, and itself again behind it.
std::vector<int32_t> repeated(const std::vector<int32_t>& prompt, int64_t num_tokens) {
  std::vector<int32_t> tokens = prompt;
  for (size_t i = 0; std::ssize(tokens) < num_tokens; ++i) tokens.push_back(prompt[i % prompt.size()]);
  return tokens;
}

double relative_l2_of(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double d = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    difference += d * d;
    norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return std::sqrt(difference / std::max(norm, 1e-30));
}

}  // namespace

double layer_tolerance(DType dtype, Index k) {
  // Errors of the layers add up like steps of a random walk.
  const double one = dtype == DType::kF32 ? 2e-5 : dtype == DType::kF16 ? 4e-3 : 2.5e-2;
  return one * std::sqrt(static_cast<double>(k) + 1);
}

Findings verify_operations(const VerifyOptions& options) {
  const Index max_rows = rows_within_budget(config_of(options));
  ExaminedEngine engine(small_engine(options, kExaminedChunk), Watch::kReference, max_rows);
  const ExaminedAnswer answer = engine.answer(options.prompt, options.num_tokens);
  const OpReport& report = engine.report();
  const OpError* worst = nullptr;
  std::string table;
  for (const auto& [op, error] : report.worst) {
    if (worst == nullptr || error.relative_l2 > worst->relative_l2) worst = &error;
    table += fmt::format("{}{} {:.1g}", table.empty() ? "" : ", ", op, error.relative_l2);
  }
  Findings findings;
  const bool bad_numbers = report.first && report.first->num_non_finite > 0;
  if (bad_numbers || !answer.error.empty())
    findings.push_back(
        {"finite", Verdict::kFail, bad_numbers ? report.first->text() : "the engine gave up: " + answer.error,
         "the first operation with such numbers is at fault; what follows only passes them on"});
  else
    findings.push_back({"finite", Verdict::kOk,
                        fmt::format("all results of {} operations are finite", report.num_calls), ""});
  if (report.first && !bad_numbers)
    findings.push_back(
        {"operations", Verdict::kFail,
         fmt::format("{}; rounding explains {:.2g}", report.first->text(), report.first->tolerance),
         "its inputs are the reference's: the kernel, its arguments or its weights are at fault"});
  else if (worst != nullptr && !bad_numbers)
    findings.push_back({"operations", Verdict::kOk,
                        fmt::format("each of {} within {:.2g} of the reference on the same inputs ({})",
                                    report.num_calls, worst->tolerance, table),
                        ""});
  return findings;
}

Findings verify_layers(const VerifyOptions& options) {
  ExaminedAnswer got, want;
  DType dtype = DType::kF32;
  const auto run = [&](engine::EngineOptions one) {
    ExaminedEngine engine(std::move(one), Watch::kNothing);
    dtype = engine.info().dtype;
    return engine.answer(options.prompt, 1, Keep::kLayers);
  };
  engine::EngineOptions reference = small_engine(options, 1024);
  reference.device = engine::DeviceKind::kReference;
  reference.dtype = DType::kF32;
  reference.kv_dtype = std::nullopt;
  reference.wrap_backend = nullptr;
  want = run(reference);
  got = run(small_engine(options, kExaminedChunk));
  if (!got.error.empty()) return {{"layers", Verdict::kFail, "the engine gave up: " + got.error, ""}};
  std::string table;
  for (size_t k = 0; k < want.layers.size(); ++k) {
    const double error = relative_l2_of(got.layers[k], want.layers[k]);
    const double tolerance = layer_tolerance(dtype, static_cast<Index>(k));
    const std::string name = k == 0                        ? "the embedding"
                             : k + 1 == want.layers.size() ? "the final norm"
                                                           : fmt::format("layer {}", k - 1);
    if (!(error <= tolerance) || got.layers[k].size() != want.layers[k].size())
      return {{"layers", Verdict::kFail,
               fmt::format("rows after {} are {:.2g} from the reference in float32, rounding explains {:.2g}",
                           name, error, tolerance),
               "the first layer past tolerance; \"operations\" tells which of its operations"}};
    table += fmt::format("{}{:.1g}", table.empty() ? "" : " ", error);
  }
  const double logits = relative_l2_of(got.logits, want.logits);
  const double tolerance = layer_tolerance(dtype, std::ssize(want.layers)) * 2;
  return {{"layers", logits <= tolerance ? Verdict::kOk : Verdict::kFail,
           fmt::format("relative L2 to the reference in float32 layer by layer: {}; logits {:.2g} (rounding "
                       "explains {:.2g})",
                       table, logits, tolerance),
           logits <= tolerance ? "" : "every layer is well: the output product is at fault"}};
}

Findings verify_repeats(const VerifyOptions& options) {
  ExaminedEngine engine(small_engine(options, kExaminedChunk), Watch::kTrace);
  const ExaminedAnswer first = engine.answer(options.prompt, options.num_tokens);
  const auto first_trace = engine.take_trace();
  const ExaminedAnswer second = engine.answer(options.prompt, options.num_tokens);
  const auto difference = first_difference(*first_trace, *engine.take_trace());
  if (same_bits(first, second) && !difference)
    return {
        {"repeat", Verdict::kOk,
         fmt::format("the same prompt twice: {} tokens and their log probabilities equal bit by bit, as are "
                     "the results of all operations",
                     first.tokens.size()),
         ""}};
  return {{"repeat", Verdict::kFail,
           fmt::format("the same prompt twice: {}; {}", difference_text(first, second),
                       difference.value_or("no operation differs: sampling does")),
           "something is read that an earlier request left, or written by two at once"}};
}

Findings verify_prefix_hit(const VerifyOptions& options) {
  // Chunks of one grid step: the last one of a cold run has the very rows that a hit computes.
  engine::EngineOptions cached = small_engine(options, cache::kGrid);
  cached.pages.prefix_caching = true;
  cached.min_checkpoint_tokens = cache::kGrid;
  // More than a page, and no multiple of the grid: what is found again are whole pages and the state at the
  // prompt's last grid point.
  const int64_t page_tokens = engine::make_plan(cached, engine::Purpose::kRun).page_plan.page_tokens;
  const std::vector<int32_t> prompt = repeated(options.prompt, page_tokens + cache::kGrid + 11);
  cached.max_model_len = std::ssize(prompt) + options.num_tokens + 1;
  cached.max_num_seqs = 4;  // room for the kept prefix and its states
  ExaminedEngine engine(cached, Watch::kTrace);
  const ExaminedAnswer cold = engine.answer(prompt, options.num_tokens);
  const auto cold_trace = engine.take_trace();
  const ExaminedAnswer hit = engine.answer(prompt, options.num_tokens);
  const auto hit_trace = engine.take_trace();
  if (hit.num_cached == 0)
    return {{"prefix hit", Verdict::kWarn,
             fmt::format("a prompt of {} tokens was not found again in the prefix cache", prompt.size()),
             "not checked: the cache keeps nothing that this prompt can go on from"}};
  // Both end with the same steps: the last chunk of the prompt, then one token each.
  std::optional<std::string> difference;
  const size_t num_cold = cold_trace->steps.size(), num_hit = hit_trace->steps.size();
  for (size_t i = std::min(num_cold, num_hit); i > 0 && !difference; --i)
    difference = first_difference(cold_trace->steps[num_cold - i], hit_trace->steps[num_hit - i]);
  if (same_bits(cold, hit) && !difference)
    return {
        {"prefix hit", Verdict::kOk,
         fmt::format("{} of {} tokens from the cache, the rest and the answer equal the cold run bit by bit",
                     hit.num_cached, prompt.size()),
         ""}};
  return {{"prefix hit", Verdict::kFail,
           fmt::format("{} of {} tokens from the cache: {}{}{}", hit.num_cached, prompt.size(),
                       difference.value_or("no operation differs"), same_bits(cold, hit) ? "" : "; ",
                       same_bits(cold, hit) ? "" : difference_text(cold, hit)),
           "the state or the K and V that a hit goes on from are not those of the cold run"}};
}

namespace {

struct Variant {
  std::string name;
  engine::EngineOptions options;
};

std::vector<Variant> variants_of(const VerifyOptions& options, const engine::EngineInfo& info) {
  const engine::EngineOptions base = small_engine(options, kExaminedChunk);
  std::vector<Variant> variants;
  const auto add = [&](std::string name, const std::function<void(engine::EngineOptions&)>& change) {
    Variant variant{std::move(name), base};
    change(variant.options);
    variants.push_back(std::move(variant));
  };
  const auto flip = [](bool& flag) { flag = !flag; };
  const auto name_of = [](const char* what, bool on) {
    return fmt::format("{} {}", what, on ? "off" : "on");
  };
  add(name_of("page_contiguous_decode", base.dispatch.page_contiguous_decode),
      [&](auto& one) { flip(one.dispatch.page_contiguous_decode); });
  if (!info.attention.prefill_library)
    add(name_of("vendor_prefill", base.dispatch.enable_vendor_prefill), [&](auto& one) {
      flip(one.dispatch.enable_vendor_prefill);
      if (one.pages.alignment == 0) one.pages.alignment = info.page_plan.alignment;
    });
  add(name_of("steady decode inputs", base.dispatch.steady_decode_inputs),
      [&](auto& one) { flip(one.dispatch.steady_decode_inputs); });
  if (info.config.is_hybrid()) {
    const bool split = info.page_plan.layout == cache::Layout::kSplit;
    add(split ? "unified layout" : "split layout",
        [&](auto& one) { one.pages.layout = split ? cache::Layout::kUnified : cache::Layout::kSplit; });
  }
  if (!info.attention.prefill_library)
    add("another page size", [&](auto& one) {
      one.pages.block_size = 0;
      one.pages.alignment = info.page_plan.alignment == 64 ? 16 : 64;
    });
  add("chunks of 64", [](auto& one) { one.max_num_batched_tokens = 64; });
  add("one chunk", [&](auto& one) { one.max_num_batched_tokens = 4096; });
  return variants;
}

Finding judge_variant(const Variant& variant, const ExaminedAnswer& base, const OpTrace& base_trace,
                      const VerifyOptions& options) {
  const std::string topic = "path";
  std::optional<ExaminedEngine> engine;
  try {
    engine.emplace(variant.options, Watch::kTrace);
  } catch (const Error& error) {
    return {topic, Verdict::kWarn, fmt::format("{}: {}", variant.name, error.what()), "not checked"};
  }
  const ExaminedAnswer other = engine->answer(options.prompt, options.num_tokens);
  if (same_bits(base, other))
    return {topic, Verdict::kOk, fmt::format("{}: equal bit by bit", variant.name), ""};
  const auto difference = first_difference(base_trace, *engine->take_trace());
  return {topic, Verdict::kFail,
          fmt::format("{}: {}; {}", variant.name, difference_text(base, other), difference.value_or("")),
          "the contract promises equal bits: one of the two paths is wrong, \"operations\" may tell which"};
}

}  // namespace

Findings verify_paths(const VerifyOptions& options) {
  ExaminedEngine engine(small_engine(options, kExaminedChunk), Watch::kTrace);
  const ExaminedAnswer base = engine.answer(options.prompt, options.num_tokens);
  const auto trace = engine.take_trace();
  Findings findings;
  if (engine.info().attention.prefill_library)
    findings.push_back({"path", Verdict::kOk,
                        fmt::format("vendor_prefill off and another page size: not compared, {} attends "
                                    "prompts here and rounds in its own way",
                                    engine.info().prefill_library.name),
                        ""});
  for (const Variant& variant : variants_of(options, engine.info()))
    findings.push_back(judge_variant(variant, base, *trace, options));
  return findings;
}

Findings verify_engine(const VerifyOptions& options) {
  if (options.prompt.size() < 2)
    fail(ErrorKind::kInvalid, "verify: got a prompt of {} tokens, need at least 2", options.prompt.size());
  using Check = Findings (*)(const VerifyOptions&);
  const std::pair<const char*, Check> checks[] = {{"operations", verify_operations},
                                                  {"layers", verify_layers},
                                                  {"repeat", verify_repeats},
                                                  {"prefix hit", verify_prefix_hit},
                                                  {"path", verify_paths}};
  Findings findings;
  for (const auto& [name, check] : checks) {
    if (options.on_progress) options.on_progress(name);
    Findings some;
    try {
      some = check(options);
    } catch (const Error& error) {
      if (error.kind != ErrorKind::kUnsupported && error.kind != ErrorKind::kExhausted) throw;
      some = {{name, Verdict::kWarn, error.what(), "not checked"}};
    }
    for (Finding& one : some) {
      if (options.on_finding) options.on_finding(one);
      findings.push_back(std::move(one));
    }
  }
  return findings;
}

}  // namespace longspan::measure
