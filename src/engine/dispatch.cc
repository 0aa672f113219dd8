#include "engine/dispatch.h"

#include "core/log.h"

namespace longspan::engine {
namespace {

// What a condition looks at.
struct Case {
  const DispatchConfig& config;
  const AttentionTraits& traits;
  const AttentionShape& shape;

  bool any_shape() const { return traits.prefill_library; }
  int64_t gqa_ratio() const { return traits.num_kv_heads > 0 ? traits.num_q_heads / traits.num_kv_heads : 0; }
};

// One line of the gate. The texts are made only when somebody asks.
struct Condition {
  const char* name;
  bool (*holds)(const Case&);
  std::string (*required)(const Case&);
  std::string (*got)(const Case&);
};

// A property of the model that the vendor's kernel does not know. Its texts follow from its name.
template <bool AttentionTraits::*kField>
constexpr Condition absent(const char* name) {
  return {name, [](const Case& c) { return !(c.traits.*kField); }, nullptr, nullptr};
}

constexpr Condition kVendorPrefill[] = {
    {"enabled", [](const Case& c) { return c.config.enable_vendor_prefill; },
     [](const Case&) { return std::string("enabled"); },
     [](const Case& c) { return std::string(c.config.enable_vendor_prefill ? "enabled" : "disabled"); }},
    {"dtype", [](const Case& c) { return c.traits.dtype == c.config.vendor_prefill_dtype; },
     [](const Case& c) { return fmt::format("{}", dtype_name(c.config.vendor_prefill_dtype)); },
     [](const Case& c) { return fmt::format("{}", dtype_name(c.traits.dtype)); }},
    {"head_dim", [](const Case& c) { return c.traits.head_dim == c.config.vendor_prefill_head_dim; },
     [](const Case& c) { return fmt::format("head_dim = {}", c.config.vendor_prefill_head_dim); },
     [](const Case& c) { return fmt::format("head_dim {}", c.traits.head_dim); }},
    {"gqa_ratio", [](const Case& c) { return c.gqa_ratio() == c.config.vendor_prefill_gqa_ratio; },
     [](const Case& c) {
       return fmt::format("query heads / KV heads = {}", c.config.vendor_prefill_gqa_ratio);
     },
     [](const Case& c) {
       return fmt::format("{} / {} = {}", c.traits.num_q_heads, c.traits.num_kv_heads, c.gqa_ratio());
     }},
    {"page_multiple",
     [](const Case& c) { return c.traits.page_tokens % c.config.vendor_prefill_page_multiple == 0; },
     [](const Case& c) { return fmt::format("page % {} = 0", c.config.vendor_prefill_page_multiple); },
     [](const Case& c) {
       return fmt::format("page {} % {} = {}", c.traits.page_tokens, c.config.vendor_prefill_page_multiple,
                          c.traits.page_tokens % c.config.vendor_prefill_page_multiple);
     }},
    {"causal", [](const Case& c) { return c.traits.causal; },
     [](const Case&) { return std::string("causal"); },
     [](const Case& c) { return std::string(c.traits.causal ? "causal" : "not causal"); }},
    absent<&AttentionTraits::sliding_window>("no sliding window"),
    absent<&AttentionTraits::alibi>("no alibi"),
    absent<&AttentionTraits::sinks>("no sinks"),
    absent<&AttentionTraits::softcap>("no softcap"),
    absent<&AttentionTraits::multimodal_prefix>("no multimodal prefix"),
    {"single_seq",
     [](const Case& c) {
       return c.any_shape() || !c.config.vendor_prefill_require_single_seq || c.shape.num_seqs == 1;
     },
     [](const Case& c) {
       return std::string(c.config.vendor_prefill_require_single_seq && !c.any_shape()
                              ? "one sequence"
                              : "any number of sequences");
     },
     [](const Case& c) { return fmt::format("{} sequences", c.shape.num_seqs); }},
    {"equal_q", [](const Case& c) { return c.any_shape() || c.shape.q_len == c.shape.max_q_len; },
     [](const Case& c) { return std::string(c.any_shape() ? "any q" : "max_q = q"); },
     [](const Case& c) { return fmt::format("q {}, max_q {}", c.shape.q_len, c.shape.max_q_len); }},
    {"min_q", [](const Case& c) { return c.any_shape() || c.shape.q_len >= c.config.vendor_prefill_min_q; },
     [](const Case& c) {
       return c.any_shape() ? std::string("any q") : fmt::format("q >= {}", c.config.vendor_prefill_min_q);
     },
     [](const Case& c) { return fmt::format("q {}", c.shape.q_len); }},
    {"max_q",
     [](const Case& c) { return c.any_shape() || c.shape.max_q_len <= c.config.vendor_prefill_max_q; },
     [](const Case& c) {
       return c.any_shape() ? std::string("any q") : fmt::format("q <= {}", c.config.vendor_prefill_max_q);
     },
     [](const Case& c) { return fmt::format("q {}", c.shape.max_q_len); }},
};

constexpr size_t kNumConditions = std::size(kVendorPrefill);

std::string required(const Condition& condition, const Case& c) {
  return condition.required != nullptr ? condition.required(c) : condition.name;
}

std::string got(const Condition& condition, const Case& c) {
  if (condition.got != nullptr) return condition.got(c);
  const std::string_view feature = std::string_view(condition.name).substr(3);  // after "no "
  return fmt::format("{} {}", condition.holds(c) ? "no" : "has", feature);
}

}  // namespace

std::string_view to_string(ops::AttentionPath path) {
  switch (path) {
    case ops::AttentionPath::kUnified:
      return "unified";
    case ops::AttentionPath::kVendorPrefill:
      return "vendor_prefill";
    case ops::AttentionPath::kPageContiguousDecode:
      return "page_contiguous_decode";
  }
  return "";
}

std::vector<GateCondition> vendor_prefill_gate(const DispatchConfig& config, const AttentionTraits& traits,
                                               const AttentionShape& shape) {
  const Case c{config, traits, shape};
  std::vector<GateCondition> gate;
  for (const Condition& condition : kVendorPrefill)
    gate.push_back({condition.name, required(condition, c), condition.holds(c), got(condition, c)});
  return gate;
}

std::optional<GateCondition> vendor_prefill_obstacle(const DispatchConfig& config,
                                                     const AttentionTraits& traits) {
  const int64_t q_len = config.vendor_prefill_max_q;  // a shape that passes
  for (GateCondition& condition : vendor_prefill_gate(
           config, traits, {.num_seqs = 1, .q_len = q_len, .max_q_len = q_len, .kv_len = q_len}))
    if (!condition.holds) return std::move(condition);
  return std::nullopt;
}

ops::AttentionPath Dispatcher::decode_path(const AttentionShape& shape) {
  return hit(config_.page_contiguous_decode ? ops::AttentionPath::kPageContiguousDecode
                                            : ops::AttentionPath::kUnified,
             shape);
}

ops::AttentionPath Dispatcher::prefill_path(const AttentionShape& shape) {
  static_assert(kNumConditions <= kMaxConditions);
  const Case c{config_, traits_, shape};
  for (size_t i = 0; i < kNumConditions; ++i) {
    if (kVendorPrefill[i].holds(c)) continue;
    if (counting_ && counters_.misses[i]++ == 0)
      log(LogLevel::kInfo, "vendor prefill: miss, {} (need {})", kVendorPrefill[i].got(c),
          kVendorPrefill[i].required(c));
    return hit(ops::AttentionPath::kUnified, shape);
  }
  return hit(ops::AttentionPath::kVendorPrefill, shape);
}

ops::AttentionPath Dispatcher::hit(ops::AttentionPath path, const AttentionShape& shape) {
  if (!counting_ || counters_.hits[static_cast<size_t>(path)]++ > 0) return path;
  switch (path) {
    case ops::AttentionPath::kUnified:
      log(LogLevel::kInfo, "unified attention q={}: hit", shape.max_q_len);
      break;
    case ops::AttentionPath::kVendorPrefill:
      log(LogLevel::kInfo, "vendor prefill q={}: hit{}", shape.max_q_len,
          traits_.prefill_library     ? " (a library's)"
          : traits_.own_vendor_kernel ? ""
                                      : " (on this device the same kernel as unified)");
      break;
    case ops::AttentionPath::kPageContiguousDecode:
      log(LogLevel::kInfo, "page {} decode: hit", traits_.page_tokens);
      break;
  }
  return path;
}

std::string_view vendor_prefill_condition(size_t i) {
  return i < kNumConditions ? kVendorPrefill[i].name : "";
}

}  // namespace longspan::engine
