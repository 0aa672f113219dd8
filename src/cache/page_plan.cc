#include "cache/page_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/units.h"

namespace longspan::cache {
namespace {

constexpr int64_t kStateAlignBytes = 64;  // a cache line: the history behind S starts on one

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t value, int64_t step) { return ceil_div(value, step) * step; }
std::string count(int64_t value) { return format_count(static_cast<size_t>(value)); }
int64_t size_of(DType dtype) { return static_cast<int64_t>(dtype_size(dtype)); }

int64_t num_layers_of(const CacheSpec& spec, LayerKind kind) {
  return std::count(spec.layers.begin(), spec.layers.end(), kind);
}

// This rank's share of `value`.
int64_t per_rank(std::string_view name, int64_t value, int64_t ranks) {
  if (value % ranks != 0)
    fail(ErrorKind::kInvalid, "[page plan] {} is {}, need a multiple of {} ranks", name, value, ranks);
  return value / ranks;
}

int64_t kv_heads_per_rank(int64_t num_kv_heads, int64_t ranks) {
  if (num_kv_heads >= ranks) return per_rank("num_kv_heads", num_kv_heads, ranks);
  if (ranks % num_kv_heads != 0)
    fail(ErrorKind::kInvalid, "[page plan] {} ranks, need a multiple of {} KV heads", ranks, num_kv_heads);
  return 1;
}

void check(const CacheSpec& spec, const PagePlanOptions& options) {
  const auto positive = [](std::string_view name, int64_t value) {
    if (value < 1) fail(ErrorKind::kInvalid, "[page plan] {} is {}, need at least 1", name, value);
  };
  positive("num_layers", static_cast<int64_t>(spec.layers.size()));
  positive("tensor_parallel", spec.tensor_parallel);
  positive("alignment", options.alignment);
  positive("state_chunk", options.state_chunk);
  if (num_layers_of(spec, LayerKind::kAttention) > 0) {
    positive("num_kv_heads", spec.num_kv_heads);
    positive("head_dim", spec.head_dim);
  } else {
    fail(ErrorKind::kUnsupported, "[page plan] got 0 full-attention layers of {}, need at least 1",
         spec.layers.size());
  }
  if (num_layers_of(spec, LayerKind::kState) > 0) {
    positive("conv_kernel", spec.conv_kernel);
    positive("conv_dim", spec.conv_dim);
    positive("num_v_heads", spec.num_v_heads);
    positive("v_dim", spec.v_dim);
    positive("k_dim", spec.k_dim);
  }
}

StateLayout state_layout(const CacheSpec& spec) {
  if (num_layers_of(spec, LayerKind::kState) == 0) return {};
  StateLayout state;
  const int64_t num_v_heads = per_rank("num_v_heads", spec.num_v_heads, spec.tensor_parallel);
  const int64_t conv_dim = per_rank("conv_dim", spec.conv_dim, spec.tensor_parallel);
  state.ssm_bytes = num_v_heads * spec.v_dim * spec.k_dim * size_of(spec.state_dtype);
  state.conv_offset = round_up(state.ssm_bytes, kStateAlignBytes);
  state.conv_bytes = (spec.conv_kernel - 1) * conv_dim * size_of(spec.model_dtype);
  state.size_bytes = state.conv_offset + state.conv_bytes;
  return state;
}

struct PageSize {
  int64_t step = 0;      // the page is a multiple of it
  int64_t by_state = 0;  // before min_page_tokens
  int64_t page_tokens = 0;
  int64_t alignment = 0;
  PageRule rule = PageRule::kAlignment;
};

// The formula of the header, and nothing else: also asked "what if" to explain a page that nobody expected.
PageSize page_size(int64_t state_bytes, int64_t kv_bytes_per_token, const PagePlanOptions& options) {
  PageSize size;
  size.alignment = std::max(options.alignment, options.block_size);
  size.step = size.alignment;
  size.by_state = size.alignment;
  if (state_bytes > 0 && options.layout == Layout::kUnified) {
    const int64_t aligned = round_up(ceil_div(state_bytes, kv_bytes_per_token), size.alignment);
    size.by_state = aligned;
    if (aligned > size.alignment) size.rule = PageRule::kStateSize;
    if (options.prefix_caching) {
      size.step = std::lcm(options.state_chunk, size.alignment);
      size.by_state = round_up(aligned, size.step);
      if (size.by_state > aligned) size.rule = PageRule::kPrefixCaching;
    }
  }
  size.page_tokens = std::max(size.by_state, round_up(options.min_page_tokens, size.step));
  if (size.page_tokens > size.by_state) size.rule = PageRule::kMinimum;
  return size;
}

std::vector<std::string> derive(const PagePlan& plan, const CacheSpec& spec, const PagePlanOptions& options,
                                const PageSize& size) {
  std::vector<std::string> lines;
  const auto line = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    lines.push_back(fmt::format(format, std::forward<Args>(args)...));
  };
  line("K and V: 2 * {} heads * {} dims * {} B ({}) = {} B per token and attention layer", plan.num_kv_heads,
       plan.head_dim, dtype_size(plan.kv_dtype), dtype_name(plan.kv_dtype), count(plan.kv_bytes_per_token));
  line("alignment: {} tokens{}", plan.alignment,
       options.block_size > options.alignment
           ? fmt::format(" (block size {} over {})", options.block_size, options.alignment)
           : std::string());
  if (plan.num_state_groups() > 0) {
    const int64_t ranks = spec.tensor_parallel;
    line(
        "state: {} heads * {} * {} * {} B ({}) + {} * {} channels * {} B ({}) = {} B per linear-attention "
        "layer",
        spec.num_v_heads / ranks, spec.v_dim, spec.k_dim, dtype_size(spec.state_dtype),
        dtype_name(spec.state_dtype), spec.conv_kernel - 1, spec.conv_dim / ranks,
        dtype_size(spec.model_dtype), dtype_name(spec.model_dtype), count(plan.state.size_bytes));
  }
  if (plan.num_state_groups() > 0 && plan.layout == Layout::kUnified) {
    const int64_t tokens = ceil_div(plan.state.size_bytes, plan.kv_bytes_per_token);
    line("a state takes the room of {} / {} = {} tokens, rounded up", count(plan.state.size_bytes),
         count(plan.kv_bytes_per_token), tokens);
    line("in steps of the alignment: {} tokens", round_up(tokens, plan.alignment));
    if (options.prefix_caching)
      line("prefix caching: in steps of lcm({}, {}) = {}: {} tokens", options.state_chunk, plan.alignment,
           size.step, size.by_state);
  }
  if (size.rule == PageRule::kMinimum)
    line("min_page_tokens {}: raised from {} to {} tokens", options.min_page_tokens, size.by_state,
         size.page_tokens);
  line("page: {} tokens, {} B per attention layer, set by {}", plan.page_tokens,
       count(plan.attention_page_bytes), to_string(plan.rule));
  if (plan.num_state_groups() > 0)
    line("padding of a state page: {} - {} = {} B, {:.2f} %", count(plan.state_page_bytes),
         count(plan.state.size_bytes), count(plan.state_page_bytes - plan.state.size_bytes),
         plan.state_padding_percent);
  return lines;
}

// Which change of the options would have given the page that was expected? Fewest changes first.
std::string explain(int64_t state_bytes, int64_t kv_bytes_per_token, const PagePlanOptions& options) {
  const PageSize size = page_size(state_bytes, kv_bytes_per_token, options);
  const char* verb = size.page_tokens > options.target_page_tokens ? "raised" : "lowered";
  const auto gives_target = [&](const PagePlanOptions& other) {
    return page_size(state_bytes, kv_bytes_per_token, other).page_tokens == options.target_page_tokens;
  };
  for (const bool keep_caching : {true, false}) {
    PagePlanOptions other = options;
    other.prefix_caching = options.prefix_caching == keep_caching;
    const std::string caching = keep_caching ? ""
                                             : fmt::format("prefix caching is {} and {} the page",
                                                           options.prefix_caching ? "on" : "off", verb);
    if (gives_target(other)) return fmt::format("{} (without it: {})", caching, options.target_page_tokens);
    other.block_size = 0;
    for (const int64_t alignment : {16, 32, 64, 128, 256}) {
      other.alignment = alignment;
      if (gives_target(other))
        return fmt::format("{}{}alignment {} is active, {} tokens need alignment {}", caching,
                           keep_caching ? "" : "; ", size.alignment, options.target_page_tokens, alignment);
    }
  }
  PagePlanOptions other = options;
  other.min_page_tokens = 0;
  if (gives_target(other))
    return fmt::format("min_page_tokens {} {} the page", options.min_page_tokens, verb);
  other = options;
  other.layout = options.layout == Layout::kUnified ? Layout::kSplit : Layout::kUnified;
  if (gives_target(other)) return fmt::format("layout {} {} the page", to_string(options.layout), verb);
  return fmt::format("{} {} the page, and no alignment gives {}", to_string(size.rule), verb,
                     options.target_page_tokens);
}

void add_groups(PagePlan& plan, const CacheSpec& spec) {
  const int64_t num_attention = num_layers_of(spec, LayerKind::kAttention);
  const int64_t num_state = num_layers_of(spec, LayerKind::kState);
  // Unified: groups of state layers are as tall as the attention group, so that they share its layer tensors.
  const int64_t group_size = plan.layout == Layout::kUnified ? num_attention : num_state;
  plan.groups.push_back({.kind = LayerKind::kAttention, .layers = {}});
  plan.places.resize(spec.layers.size());
  for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
    const bool is_state = spec.layers[layer] == LayerKind::kState;
    if (is_state && (plan.groups.size() == 1 || std::ssize(plan.groups.back().layers) == group_size))
      plan.groups.push_back({.kind = LayerKind::kState, .layers = {}});
    const size_t group = is_state ? plan.groups.size() - 1 : 0;
    plan.places[layer] = {.group = static_cast<int32_t>(group),
                          .index = static_cast<int32_t>(plan.groups[group].layers.size())};
    plan.groups[group].layers.push_back(static_cast<int32_t>(layer));
  }
  plan.num_layer_tensors = static_cast<int32_t>(num_attention);
  plan.num_state_tensors = plan.layout == Layout::kSplit ? static_cast<int32_t>(num_state) : 0;
}

}  // namespace

std::string_view to_string(LayerKind kind) {
  return kind == LayerKind::kAttention ? "full_attention" : "linear_attention";
}

std::string_view to_string(Layout layout) { return layout == Layout::kUnified ? "unified" : "split"; }

Layout layout_from_name(std::string_view name) {
  if (name == "unified") return Layout::kUnified;
  if (name == "split") return Layout::kSplit;
  fail(ErrorKind::kInvalid, "[page plan] layout is \"{}\", need \"unified\" or \"split\"", name);
}

std::string_view to_string(PageRule rule) {
  switch (rule) {
    case PageRule::kAlignment:
      return "the alignment";
    case PageRule::kStateSize:
      return "the size of a state";
    case PageRule::kPrefixCaching:
      return "prefix caching";
    case PageRule::kMinimum:
      return "min_page_tokens";
  }
  return "";
}

int32_t PagePlan::num_state_groups() const {
  return static_cast<int32_t>(std::count_if(
      groups.begin(), groups.end(), [](const LayerGroup& group) { return group.kind == LayerKind::kState; }));
}

int64_t PagePlan::pages_for(int64_t num_tokens) const { return ceil_div(num_tokens, page_tokens); }

PagePlan plan_pages(const CacheSpec& spec, const PagePlanOptions& options) {
  check(spec, options);
  PagePlan plan;
  plan.layout = options.layout;
  plan.prefix_caching = options.prefix_caching;
  plan.kv_dtype = spec.kv_dtype;
  plan.num_kv_heads = kv_heads_per_rank(spec.num_kv_heads, spec.tensor_parallel);
  plan.head_dim = spec.head_dim;
  plan.tensor_parallel = spec.tensor_parallel;
  plan.kv_bytes_per_token = 2 * plan.num_kv_heads * plan.head_dim * size_of(plan.kv_dtype);
  plan.state = state_layout(spec);

  const PageSize size = page_size(plan.state.size_bytes, plan.kv_bytes_per_token, options);
  plan.alignment = size.alignment;
  plan.page_tokens = size.page_tokens;
  plan.rule = size.rule;
  plan.attention_page_bytes = plan.page_tokens * plan.kv_bytes_per_token;
  add_groups(plan, spec);
  if (plan.num_state_groups() > 0) {
    plan.state_page_bytes = plan.layout == Layout::kUnified
                                ? plan.attention_page_bytes
                                : round_up(plan.state.size_bytes, kStateAlignBytes);
    plan.state_padding_percent = 100.0 * static_cast<double>(plan.state_page_bytes - plan.state.size_bytes) /
                                 static_cast<double>(plan.state.size_bytes);
  }
  plan.derivation = derive(plan, spec, options, size);
  if (options.target_page_tokens > 0 && options.target_page_tokens != plan.page_tokens)
    fail(ErrorKind::kInvalid, "[page plan] target_page_tokens: got a page of {} tokens, need {}: {}",
         plan.page_tokens, options.target_page_tokens,
         explain(plan.state.size_bytes, plan.kv_bytes_per_token, options));
  return plan;
}

MemoryPlan plan_memory(const PagePlan& plan, int64_t budget_bytes, int64_t max_model_len,
                       int32_t max_num_seqs, int32_t num_checkpoints) {
  MemoryPlan memory;
  memory.page_bytes = plan.attention_page_bytes * plan.num_layer_tensors;
  memory.slot_bytes = plan.state_page_bytes * plan.num_state_tensors;
  const int64_t pages_per_seq = plan.pages_for(max_model_len);
  if (memory.slot_bytes > 0) {
    memory.num_state_slots = max_num_seqs + num_checkpoints;
    budget_bytes -= memory.slot_bytes * memory.num_state_slots;
  }
  memory.num_pages =
      static_cast<int32_t>(std::clamp<int64_t>(budget_bytes / memory.page_bytes, 0, INT32_MAX));
  const int64_t state_pages = plan.layout == Layout::kUnified ? plan.num_state_groups() : 0;
  memory.concurrency =
      static_cast<double>(memory.num_pages) / static_cast<double>(pages_per_seq + state_pages);
  if (memory.slot_bytes > 0)
    memory.concurrency = std::min(memory.concurrency, static_cast<double>(max_num_seqs));
  memory.num_tokens = static_cast<int64_t>(memory.concurrency * static_cast<double>(max_model_len));
  return memory;
}

SwapPlan plan_swap(const PagePlan& plan, int64_t budget_bytes, int32_t max_num_seqs) {
  const int64_t page_bytes = plan.attention_page_bytes * plan.num_layer_tensors;
  const int64_t slot_bytes = plan.state_page_bytes * plan.num_state_tensors;
  SwapPlan swap;
  if (slot_bytes > 0) {
    swap.num_state_slots =
        static_cast<int32_t>(std::clamp<int64_t>(budget_bytes / 4 / slot_bytes, 0, max_num_seqs));
    if (swap.num_state_slots == 0) return swap;
  }
  const int64_t for_pages = budget_bytes - slot_bytes * swap.num_state_slots;
  swap.num_pages = static_cast<int32_t>(std::clamp<int64_t>(for_pages / page_bytes, 0, INT32_MAX));
  swap.size_bytes = swap.num_pages * page_bytes + swap.num_state_slots * slot_bytes;
  return swap;
}

}  // namespace longspan::cache
