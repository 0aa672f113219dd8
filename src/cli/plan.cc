// `longspan plan`: how many tokens a page holds and why, what a budget holds, the chunks of a prompt, and the
// gates.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/settings.h"
#include "core/units.h"
#include "engine/plan.h"

namespace longspan::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PlanFlags {
  SettingFlags settings;
  int64_t prompt_tokens = 0;
  bool json = false;
};

std::vector<engine::GateCondition> gate(const engine::EngineOptions& options,
                                        const engine::EngineInfo& info) {
  const int64_t q_len = std::min(options.dispatch.vendor_prefill_max_q, options.max_num_batched_tokens);
  return engine::vendor_prefill_gate(options.dispatch, info.attention,
                                     {.num_seqs = 1, .q_len = q_len, .max_q_len = q_len, .kv_len = q_len});
}

Json to_json(const PlanFlags& flags, const engine::EngineOptions& options, const engine::EngineInfo& info) {
  const cache::PagePlan& plan = info.page_plan;
  Json groups = Json::array();
  for (const cache::LayerGroup& group : plan.groups)
    groups.push_back({{"kind", cache::to_string(group.kind)}, {"layers", group.layers}});
  Json chunks = Json::array();
  for (const engine::ChunkShape& chunk :
       engine::chunk_shapes(flags.prompt_tokens, options.max_num_batched_tokens))
    chunks.push_back({{"q_len", chunk.q_len}, {"kv_len", chunk.kv_len}});
  Json conditions = Json::array();
  for (const engine::GateCondition& condition : gate(options, info))
    conditions.push_back({{"name", condition.name},
                          {"required", condition.required},
                          {"got", condition.got},
                          {"holds", condition.holds}});
  return {{"page_tokens", plan.page_tokens},
          {"alignment", plan.alignment},
          {"layout", cache::to_string(plan.layout)},
          {"prefix_caching", plan.prefix_caching},
          {"kv_bytes_per_token", plan.kv_bytes_per_token},
          {"state_bytes", plan.state.size_bytes},
          {"attention_page_bytes", plan.attention_page_bytes},
          {"state_padding_percent", plan.state_padding_percent},
          {"kv_dtype", dtype_name(plan.kv_dtype)},
          {"tensor_parallel", plan.tensor_parallel},
          {"groups", groups},
          {"chunks", chunks},
          {"rule", cache::to_string(plan.rule)},
          {"derivation", plan.derivation},
          {"memory",
           {{"weight_bytes", info.weight_bytes},
            {"workspace_bytes", info.workspace_bytes},
            {"page_bytes", info.memory.page_bytes},
            {"num_pages", info.memory.num_pages},
            {"slot_bytes", info.memory.slot_bytes},
            {"num_state_slots", info.memory.num_state_slots},
            {"cache_bytes", info.cache_bytes},
            {"swap_bytes", info.swap.size_bytes},
            {"num_tokens", info.memory.num_tokens},
            {"max_model_len", info.max_model_len},
            {"concurrency", info.memory.concurrency}}},
          {"vendor_prefill_gate", conditions}};
}

void print(const PlanFlags& flags, const engine::EngineOptions& options, const engine::EngineInfo& info) {
  for (const std::string& line : engine::describe(info, options)) std::printf("%s\n", line.c_str());
  for (size_t i = 0; i < info.page_plan.groups.size(); ++i) {
    const cache::LayerGroup& group = info.page_plan.groups[i];
    std::printf("group %zu     %s, %zu layers:", i, std::string(cache::to_string(group.kind)).c_str(),
                group.layers.size());
    for (int32_t layer : group.layers) std::printf(" %d", layer);
    std::printf("\n");
  }
  std::printf("vendor_prefill gate\n");
  for (const engine::GateCondition& condition : gate(options, info))
    std::printf("            %-4s %-20s need %-28s got %s\n", condition.holds ? "ok" : "MISS",
                condition.name.c_str(), condition.required.c_str(), condition.got.c_str());
  if (flags.prompt_tokens > 0) {
    std::printf("chunks of a prompt of %s tokens\n",
                format_count(static_cast<size_t>(flags.prompt_tokens)).c_str());
    for (const engine::ChunkShape& chunk :
         engine::chunk_shapes(flags.prompt_tokens, options.max_num_batched_tokens))
      std::printf("            q %6lld  kv %8lld\n", static_cast<long long>(chunk.q_len),
                  static_cast<long long>(chunk.kv_len));
  }
}

int plan(const PlanFlags& flags) {
  if (flags.prompt_tokens < 0)
    fail(ErrorKind::kInvalid, "--prompt-tokens: got {}, need 0 or more", flags.prompt_tokens);
  const io::Config config = flags.settings.settings();
  const engine::EngineOptions options = engine_options(config, engine::Purpose::kExplain);
  const engine::EngineInfo info = engine::make_plan(options, engine::Purpose::kExplain);
  check_expectations(config, info.config);
  if (flags.json)
    std::printf("%s\n", to_json(flags, options, info).dump(2).c_str());
  else
    print(flags, options, info);
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command =
      app.add_subcommand("plan", "Page size and why, memory, chunks of a prompt, attention gates");
  flags->settings.add_to(*command, FlagKind::kRequests);
  command->add_option("--prompt-tokens", flags->prompt_tokens, "Show the chunks of a prompt of that length");
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags, &exit_code] { exit_code = plan(*flags); });
}

}  // namespace longspan::cli
