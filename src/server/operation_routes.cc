#include "server/operation_routes.h"

#include <unistd.h>

#include "core/dtype.h"
#include "server/json_fields.h"

namespace longspan::server {
namespace {

Json plan_json(const engine::EngineInfo& info) {
  const cache::PagePlan& plan = info.page_plan;
  return {{"page_tokens", plan.page_tokens},
          {"alignment", plan.alignment},
          {"layout", cache::to_string(plan.layout)},
          {"prefix_caching", plan.prefix_caching},
          {"kv_bytes_per_token", plan.kv_bytes_per_token},
          {"state_bytes", plan.state.size_bytes},
          {"attention_page_bytes", plan.attention_page_bytes},
          {"state_padding_percent", plan.state_padding_percent},
          {"derivation", plan.derivation}};
}

// What recurrent states take: slots of their own in the split layout, else pages of the pool.
Json state_json(const engine::EngineInfo& info, const engine::EngineStatus& status) {
  const int32_t in_use = status.schedule.num_running * info.page_plan.num_state_groups();
  return {{"slots", info.memory.num_state_slots},
          {"used", in_use + status.prefix.num_states * info.page_plan.num_state_groups()},
          {"checkpoints", status.prefix.num_states},
          {"bytes", info.page_plan.state.size_bytes}};
}

Json dispatch_json(const engine::DispatchCounters& counters) {
  Json hits = Json::object();
  for (size_t i = 0; i < engine::kNumPaths; ++i)
    hits[std::string(engine::to_string(static_cast<ops::AttentionPath>(i)))] = counters.hits[i];
  Json misses = Json::object();
  for (size_t i = 0; i < engine::kMaxConditions; ++i)
    if (const std::string_view name = engine::vendor_prefill_condition(i);
        !name.empty() && counters.misses[i] > 0)
      misses[std::string(name)] = counters.misses[i];
  return {{"hits", std::move(hits)}, {"vendor_prefill_misses", std::move(misses)}};
}

// The reasons that there were; name_of(i) is that of counts[i].
Json by_reason(std::span<const int64_t> counts, std::string_view (*name_of)(size_t)) {
  Json json = Json::object();
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) json[std::string(name_of(i))] = counts[i];
  return json;
}

Json mirror_json(const engine::MirrorCounters& mirror) {
  return {{"advanced", mirror.num_advanced},
          {"table_uploads", mirror.num_table_uploads},
          {"uploads", by_reason(mirror.uploads, engine::upload_reason)}};
}

Json sampling_json(const engine::SamplingCounters& sampling) {
  return {{"on_device", sampling.num_on_device},
          {"row_uploads", sampling.num_row_uploads},
          {"on_host", by_reason(sampling.on_host, engine::host_sampling)}};
}

Json inputs_json(const engine::InputCounters& inputs) {
  return {{"reserved", inputs.reserved},
          {"dispatched", inputs.num_dispatched},
          {"misses", by_reason(inputs.misses, engine::steady_condition)}};
}

Json build_json(const Service& service) {
  const BuildFacts& build = service.options.build;
  return {{"path", build.path},
          {"version", service.options.version},
          {"hash", build.hash},
          {"pid", getpid()},
          {"started_at", service.started_unix_seconds}};
}

Json config_json(const Service& service) {
  Json settings = Json::array();
  for (const SettingFact& setting : service.options.settings)
    settings.push_back({{"key", setting.key}, {"value", setting.value}, {"source", setting.source}});
  return settings;
}

Json request_json(const RequestState& state) {
  const bool prefilled = state.prefill.processed >= state.prefill.total;
  const char* phase = state.usage.completion_tokens > 0 || prefilled ? "decode"
                      : state.started                                ? "prefill"
                                                                     : "queued";
  return {{"id", state.id},
          {"route", state.route},
          {"phase", phase},
          {"age_seconds", state.age_seconds},
          {"prompt_tokens", state.usage.prompt_tokens},
          {"prefilled_tokens", state.prefill.processed},
          {"cached_tokens", state.usage.cached_tokens},
          {"completion_tokens", state.usage.completion_tokens}};
}

}  // namespace

HttpResponse show_status(const HttpRequest&, Service& service) {
  const engine::EngineInfo& info = service.engine.info();
  const engine::EngineStatus status = service.engine.status();
  Json requests = Json::array();
  for (const RequestState& state : service.running.states()) requests.push_back(request_json(state));
  return {.body = dump({
              {"model", service.model_name()},
              {"architecture", info.config.architecture_name},
              {"device", info.device},
              {"dtype", dtype_name(info.dtype)},
              {"dtype_reason", info.dtype_reason},
              {"max_model_len", info.max_model_len},
              {"healthy", status.healthy},
              {"draining", service.draining.load()},
              {"limits",
               {{"request_timeout_seconds", service.options.request_timeout_seconds},
                {"keepalive_seconds", service.options.keepalive_seconds},
                {"stall_seconds", service.options.stall_seconds}}},
              {"step_seconds", status.stalled_seconds},
              {"plan", plan_json(info)},
              {"pages",
               {{"total", status.pages.num_pages},
                {"free", status.pages.num_free},
                {"cached", status.num_cached_pages},
                {"max_used", status.pages.max_used},
                {"cache_bytes", info.cache_bytes},
                {"cache_tokens", info.memory.num_tokens}}},
              {"state", state_json(info, status)},
              {"queue",
               {{"running", status.schedule.num_running},
                {"waiting", status.schedule.num_waiting + status.num_inbox},
                {"swapped", status.schedule.num_swapped}}},
              {"totals",
               {{"steps", status.schedule.num_steps},
                {"prefill_tokens", status.schedule.num_prefill_tokens},
                {"decode_tokens", status.schedule.num_decode_tokens},
                {"cached_tokens", status.schedule.num_cached_tokens},
                {"swap_outs", status.schedule.num_swap_outs},
                {"replays", status.schedule.num_replays},
                {"non_finite", status.num_non_finite},
                {"kv_saturated", status.num_kv_saturated}}},
              {"prefix_cache",
               {{"lookups", status.prefix.num_lookups},
                {"hits", status.prefix.num_hits},
                {"queried_tokens", status.prefix.num_queried_tokens},
                {"hit_tokens", status.prefix.num_hit_tokens},
                {"misses",
                 {{"too_short", status.prefix.num_miss_too_short},
                  {"no_kv", status.prefix.num_miss_no_kv},
                  {"no_state", status.prefix.num_miss_no_state}}},
                {"evicted_pages", status.prefix.num_evicted_pages},
                {"evicted_states", status.prefix.num_evicted_states}}},
              {"prefill_tokens_per_second", status.prefill_tokens_per_second},
              {"dispatch", dispatch_json(status.dispatch)},
              {"decode_inputs", inputs_json(status.inputs)},
              {"device_inputs", mirror_json(status.mirror)},
              {"sampling", sampling_json(status.sampling)},
              {"requests", std::move(requests)},
              {"build", build_json(service)},
              {"config", config_json(service)},
          })};
}

HttpResponse show_metrics(const HttpRequest&, Service& service) {
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
          .body = service.metrics.text(
              service.engine.status(), service.engine.info(), service.model_name(),
              service.options.vllm_metrics ? MetricsNames::kVllmToo : MetricsNames::kOwn)};
}

HttpResponse reset_prefix_cache(const HttpRequest&, Service& service) {
  service.engine.reset_prefix_cache();
  return {.body = dump({{"status", "ok"}})};
}

HttpResponse cancel_request(const HttpRequest& request, Service& service) {
  std::string id = request.parts.front();
  for (const std::string_view prefix : {"chatcmpl-", "cmpl-", "msg_", "resp_"})
    if (id.rfind(prefix, 0) == 0) {
      id.erase(0, prefix.size());
      break;
    }
  const int count = service.running.cancel(id);
  if (count == 0)
    throw WireError{.status = 404,
                    .type = error_type(404),
                    .code = "request_not_found",
                    .message = fmt::format("no request '{}' runs", request.parts.front())};
  return {.body = dump({{"id", request.parts.front()}, {"cancelled", count}})};
}

}  // namespace longspan::server
