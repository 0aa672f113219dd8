// The page plan: how many tokens a cache page holds, and why. Derived from the model's shapes and the
// alignment that the attention paths ask for; knows no model files, no device and no scheduler.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace longspan::cache {

// Tokens of one chunk of the state layers' prefill: prompts are cut, and states are kept, at multiples of it.
inline constexpr int64_t kGrid = 64;

enum class LayerKind : uint8_t {
  kAttention,  // keeps K and V of every token
  kState,      // keeps one recurrent state
};
enum class Layout : uint8_t {
  kUnified,  // one pool of equal pages; a state page is padded to the size of an attention page
  kSplit,    // pages of `alignment` tokens for K and V, and a pool of state slots of their own
};

std::string_view to_string(LayerKind kind);      // "full_attention", "linear_attention"
std::string_view to_string(Layout layout);       // "unified", "split"
Layout layout_from_name(std::string_view name);  // throws kInvalid

// What the cache must know of a model. Counts are those of the whole model; plan_pages divides by the ranks.
struct CacheSpec {
  std::vector<LayerKind> layers;  // [num_layers], first to last
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t conv_kernel = 0;  // the five of state layers; zero in a dense model
  int64_t conv_dim = 0;     // channels of the convolution: q, k and v
  int64_t num_v_heads = 0;
  int64_t v_dim = 0;
  int64_t k_dim = 0;
  DType kv_dtype = DType::kBF16;
  DType model_dtype = DType::kBF16;  // of the convolution's history
  DType state_dtype = DType::kF32;
  int64_t tensor_parallel = 1;  // ranks; fewer KV heads than ranks means each rank holds one copy of a head
};

struct PagePlanOptions {
  int64_t alignment = 16;  // tokens; asked for by the enabled attention paths: unified 16, vendor 64
  int64_t block_size = 0;  // --block-size: taken as the alignment when it is larger
  Layout layout = Layout::kUnified;
  bool prefix_caching = false;
  int64_t state_chunk = 256;       // tokens; with prefix caching a unified page is a multiple of it
  int64_t min_page_tokens = 0;     // raises the result
  int64_t target_page_tokens = 0;  // an expectation: a plan that differs is refused. 0: none
};

// Layers that share one block table: a page id of the group addresses one page in each of its layers.
struct LayerGroup {
  LayerKind kind = LayerKind::kAttention;
  std::vector<int32_t> layers;  // layer indices, ascending; layers[i] lives in layer tensor i of its pool
};

struct LayerPlace {
  int32_t group = 0;
  int32_t index = 0;  // in the group = number of the layer tensor in the group's pool
};

// One recurrent state in its page: S first, then the convolution's history, each 64-byte aligned.
struct StateLayout {
  int64_t ssm_bytes = 0;    // [num_v_heads, v_dim * k_dim] of state_dtype, at +0
  int64_t conv_offset = 0;  // bytes
  int64_t conv_bytes = 0;   // [conv_kernel - 1, conv_dim] of model_dtype
  int64_t size_bytes = 0;   // conv_offset + conv_bytes
};

// Who set the page's size.
enum class PageRule : uint8_t { kAlignment, kStateSize, kPrefixCaching, kMinimum };
std::string_view to_string(PageRule rule);

// All sizes are those of one rank.
struct PagePlan {
  Layout layout = Layout::kUnified;
  bool prefix_caching = false;
  int64_t alignment = 0;    // tokens, after block_size
  int64_t page_tokens = 0;  // tokens of an attention page
  PageRule rule = PageRule::kAlignment;
  std::vector<std::string> derivation;  // for people, one step a line

  DType kv_dtype = DType::kBF16;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t tensor_parallel = 1;
  int64_t kv_bytes_per_token = 0;    // of one attention layer, K and V
  int64_t attention_page_bytes = 0;  // of one layer: [2, page_tokens, num_kv_heads, head_dim], K plane first
  StateLayout state;                 // all zero in a dense model
  int64_t state_page_bytes = 0;      // of one layer; unified: attention_page_bytes
  double state_padding_percent = 0;  // 100 * (state_page_bytes - state.size_bytes) / state.size_bytes

  std::vector<LayerGroup> groups;  // the attention group first
  std::vector<LayerPlace> places;  // [num_layers]
  int32_t num_layer_tensors = 0;   // of the page pool: one [num_pages, attention_page_bytes] each
  int32_t num_state_tensors = 0;   // of the slot pool: one [num_slots, state_page_bytes] each; 0 when unified

  int64_t v_plane_offset() const { return attention_page_bytes / 2; }  // bytes from a page's start to V
  int32_t num_state_groups() const;             // pages (unified) or slots (split) that one state takes
  int64_t pages_for(int64_t num_tokens) const;  // attention pages, rounded up
};

// The page of the plan, in tokens:
//   dense model, or split layout   align
//   unified, prefix caching off    align * ceil(state_bytes / (align * kv_bytes_per_token))
//   unified, prefix caching on     chunk * ceil(ceil(state_bytes / kv_bytes_per_token) / chunk)
//                                  with chunk = lcm(state_chunk, align)
// then raised to min_page_tokens in the same steps. The unified rule is that of vLLM's hybrid cache as the
// field reports describe it: Qwen3.5-27B is 784 at alignment 16, 832 at 64, 1024 with prefix caching. Throws
// kInvalid on a spec that does not divide over the ranks, and on a page that is not target_page_tokens: the
// text says which rule raised or lowered it.
PagePlan plan_pages(const CacheSpec& spec, const PagePlanOptions& options);

// What a budget of device memory holds.
struct MemoryPlan {
  int64_t page_bytes = 0;  // of one page in all layer tensors
  int64_t slot_bytes = 0;  // of one state slot in all layers; split only
  int32_t num_pages = 0;
  int32_t num_state_slots = 0;  // split only
  double concurrency = 0;       // sequences of max_model_len that fit at once, at most max_num_seqs in split
  int64_t num_tokens = 0;       // concurrency * max_model_len
};

// Host memory for sequences that give up their place.
struct SwapPlan {
  int32_t num_pages = 0;
  int32_t num_state_slots = 0;  // split only
  int64_t size_bytes = 0;
};

// Split: one slot a sequence, at most max_num_seqs and a quarter of the budget; pages take the rest.
SwapPlan plan_swap(const PagePlan& plan, int64_t budget_bytes, int32_t max_num_seqs);

// Split: slots for max_num_seqs sequences and num_checkpoints more come first, pages take the rest. Never
// throws: num_pages 0 says that the budget is too small.
MemoryPlan plan_memory(const PagePlan& plan, int64_t budget_bytes, int64_t max_model_len,
                       int32_t max_num_seqs, int32_t num_checkpoints = 0);

}  // namespace longspan::cache
