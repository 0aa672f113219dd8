// What doctor says of the page and of the attention paths that come with it.
#include <algorithm>

#include "measure/doctor.h"

namespace longspan::measure {
namespace {

// The steps of the derivation that say why the page is what it is; the others say of what it is made.
std::string rule_of(const cache::PagePlan& plan) {
  std::string rule;
  for (const std::string& step : plan.derivation) {
    bool is_input = false;
    for (const char* input : {"K and V:", "alignment:", "state:", "page:", "padding"})
      is_input = is_input || step.starts_with(input);
    if (!is_input) rule += "; " + step;
  }
  return rule;
}

Finding judge_page(const engine::EngineInfo& info, const std::optional<ServerFacts>& server) {
  const cache::PagePlan& plan = info.page_plan;
  const auto describe = [](int64_t tokens, int64_t alignment, std::string_view layout, bool caching) {
    return fmt::format("{} tokens (alignment {}, {} layout, prefix caching {})", tokens, alignment, layout,
                       caching ? "on" : "off");
  };
  const std::string here =
      describe(plan.page_tokens, plan.alignment, cache::to_string(plan.layout), plan.prefix_caching);
  const std::string rule = rule_of(plan);
  if (!server || server->page_tokens == plan.page_tokens)
    return {"page plan", Verdict::kOk, here + rule + (server ? "; so has the server" : ""), ""};
  std::string cause;
  if (server->prefix_caching != plan.prefix_caching)
    cause = "prefix caching: with it a page is a multiple of the state chunk";
  else if (server->alignment != plan.alignment)
    cause = fmt::format(
        "cache.alignment_tokens: {} there, {} here; a page is the smallest multiple of it "
        "that holds a recurrent state",
        server->alignment, plan.alignment);
  else if (server->layout != cache::to_string(plan.layout))
    cause = "cache.layout";
  else
    cause = "the model, cache.min_page_tokens or cache.kv_cache_dtype";
  return {
      "page plan", Verdict::kFail,
      fmt::format("the server's page has {}, expected {}{}",
                  describe(server->page_tokens, server->alignment, server->layout, server->prefix_caching),
                  here, rule),
      "they differ in " + cause + ": restart the server with these settings"};
}

Finding judge_path(const engine::EngineOptions& options, const engine::EngineInfo& info) {
  const auto obstacle = engine::vendor_prefill_obstacle(options.dispatch, info.attention);
  const char* decode = options.dispatch.page_contiguous_decode ? "page_contiguous_decode" : "unified";
  if (!obstacle)
    return {"paths", Verdict::kOk,
            info.attention.prefill_library
                ? fmt::format("prefill: vendor_prefill by {}; decode: {}", info.prefill_library.name, decode)
                : fmt::format("prefill of {} to {} tokens: vendor_prefill; decode: {}; all else: unified",
                              options.dispatch.vendor_prefill_min_q, options.dispatch.vendor_prefill_max_q,
                              decode),
            ""};
  return {
      "paths", Verdict::kWarn,
      fmt::format("vendor_prefill is never taken: {}: got {}, need {}; prefill: unified, decode: {}",
                  obstacle->name, obstacle->got, obstacle->required, decode),
      "`longspan plan` shows the whole gate; if the model is not made for that path this is as it should be"};
}

Finding judge_prefix_caching(bool caching, int64_t page_tokens) {
  if (!caching)
    return {"prefix caching", Verdict::kOk, "off: every prompt is computed, as a measurement wants it", ""};
  return {
      "prefix caching", Verdict::kWarn,
      fmt::format("on: a page has {} tokens for it, and repeated prompts skip their prefill", page_tokens),
      "for measurements: --no-enable-prefix-caching, or prompts that share no beginning"};
}

// Did the paths run that one believes in?
Findings judge_hits(const ServerFacts& server) {
  int64_t total = 0;
  std::string hits;
  for (const auto& [path, count] : server.hits) {
    total += count;
    hits += fmt::format("{}{} {}", hits.empty() ? "" : ", ", path, count);
  }
  if (total == 0) return {{"dispatch", Verdict::kOk, "no request yet: nothing to see", ""}};
  std::string misses;
  for (const auto& [reason, count] : server.vendor_prefill_misses)
    misses += fmt::format("{}{} {}", misses.empty() ? "" : ", ", reason, count);
  const auto vendor = server.hits.find("vendor_prefill");
  const bool never = vendor != server.hits.end() && vendor->second == 0 && !misses.empty();
  const std::string text =
      fmt::format("hits: {}{}", hits, misses.empty() ? "" : "; vendor_prefill missed by: " + misses);
  return {{"dispatch", never ? Verdict::kWarn : Verdict::kOk, text,
           never ? "vendor_prefill was never hit: no figure of this server is one of that kernel" : ""}};
}

}  // namespace

Findings judge_plan(const engine::EngineOptions* options, const std::optional<ServerFacts>& server) {
  Findings findings;
  bool caching = server && server->prefix_caching;
  int64_t page_tokens = server ? server->page_tokens : 0;
  if (options != nullptr) {
    try {
      const engine::EngineInfo info = engine::make_plan(*options, engine::Purpose::kExplain);
      findings.push_back(judge_page(info, server));
      findings.push_back(judge_path(*options, info));
      if (!server) {
        caching = info.page_plan.prefix_caching;
        page_tokens = info.page_plan.page_tokens;
      }
    } catch (const Error& error) {
      findings.push_back({"page plan", Verdict::kFail, error.what(),
                          "a server refuses to start with these settings; `longspan plan` derives the page"});
      if (!server) return findings;
    }
  } else if (server) {
    findings.push_back(
        {"page plan", Verdict::kOk,
         fmt::format("the server's page has {} tokens (alignment {}, {} layout); --model or --config says "
                     "what is expected",
                     server->page_tokens, server->alignment, server->layout),
         ""});
  }
  if (options != nullptr || server) findings.push_back(judge_prefix_caching(caching, page_tokens));
  if (server) std::ranges::move(judge_hits(*server), std::back_inserter(findings));
  return findings;
}

}  // namespace longspan::measure
