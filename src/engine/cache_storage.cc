#include "engine/cache_storage.h"

namespace longspan::engine {
namespace {

bool in_slots(const cache::PagePlan& plan, cache::LayerKind kind) {
  return kind == cache::LayerKind::kState && plan.layout == cache::Layout::kSplit;
}

int64_t page_bytes(const cache::PagePlan& plan, cache::LayerKind kind) {
  return in_slots(plan, kind) ? plan.state_page_bytes : plan.attention_page_bytes;
}

ops::KvCache kv_view(const cache::PagePlan& plan, const Buffer& tensor, const TensorView& saturated) {
  return {.data = tensor.data(),
          .dtype = plan.kv_dtype,
          .num_pages = static_cast<Index>(tensor.size_bytes()) / plan.attention_page_bytes,
          .page_stride_bytes = plan.attention_page_bytes,
          .page_tokens = plan.page_tokens,
          .num_kv_heads = plan.num_kv_heads,
          .head_dim = plan.head_dim,
          .saturated = saturated};
}

ops::StateCache state_view(const cache::PagePlan& plan, const cache::CacheSpec& spec, const Buffer& tensor) {
  const int64_t stride = page_bytes(plan, cache::LayerKind::kState);
  return {.data = tensor.data(),
          .conv_dtype = spec.model_dtype,
          .num_pages = static_cast<Index>(tensor.size_bytes()) / stride,
          .page_stride_bytes = stride,
          .conv_offset_bytes = plan.state.conv_offset,
          .num_v_heads = spec.num_v_heads / spec.tensor_parallel,
          .k_dim = spec.k_dim,
          .v_dim = spec.v_dim,
          .conv_kernel = spec.conv_kernel,
          .conv_channels = spec.conv_dim / spec.tensor_parallel};
}

}  // namespace

CacheStorage::CacheStorage(Memory& memory, const cache::PagePlan& plan, const cache::CacheSpec& spec,
                           const cache::CacheCapacity& capacity)
    : memory_(memory),
      plan_(plan),
      device_(make_side(memory, plan, capacity.num_pages, capacity.num_state_slots)) {
  Memory host;
  host_ = make_side(host, plan, capacity.num_host_pages, capacity.num_host_slots);
  saturated_ = memory.allocate(DType::kI64, {1});
  forget_saturated();
  for (const cache::LayerPlace& place : plan.places) {
    const cache::LayerKind kind = plan.groups[static_cast<size_t>(place.group)].kind;
    const auto& tensors = in_slots(plan, kind) ? device_.slots : device_.pages;
    const Buffer& tensor = tensors[static_cast<size_t>(place.index)];
    model::LayerCache layer{.group = place.group};
    if (kind == cache::LayerKind::kAttention)
      layer.kv = kv_view(plan, tensor, saturated_.view());
    else
      layer.state = state_view(plan, spec, tensor);
    views_.layers.push_back(layer);
  }
}

CacheStorage::Side CacheStorage::make_side(Memory& memory, const cache::PagePlan& plan, int32_t num_pages,
                                           int32_t num_slots) {
  Side side;
  for (int32_t i = 0; i < plan.num_layer_tensors; ++i)
    side.pages.push_back(memory.allocate(DType::kU8, {num_pages * plan.attention_page_bytes}));
  for (int32_t i = 0; i < plan.num_state_tensors; ++i)
    side.slots.push_back(memory.allocate(DType::kU8, {num_slots * plan.state_page_bytes}));
  return side;
}

size_t CacheStorage::size_bytes() const {
  size_t bytes = 0;
  for (const Side* side : {&device_, &host_})
    for (const auto* tensors : {&side->pages, &side->slots})
      for (const Buffer& tensor : *tensors) bytes += tensor.size_bytes();
  return bytes;
}

int64_t CacheStorage::num_saturated() const {
  int64_t count = 0;
  if (plan_.kv_dtype == DType::kF8E4M3) memory_.download(&count, saturated_.data(), sizeof(count));
  return count;
}

void CacheStorage::forget_saturated() { memory_.zero(saturated_.data(), saturated_.size_bytes()); }

void CacheStorage::swap_out(std::span<const schedule::PageCopy> copies) {
  copy(&Memory::download, device_, host_, copies);
}
void CacheStorage::swap_in(std::span<const schedule::PageCopy> copies) {
  copy(&Memory::upload, host_, device_, copies);
}
void CacheStorage::copy_pages(std::span<const schedule::PageCopy> copies) {
  copy(&Memory::copy, device_, device_, copies);
}

void CacheStorage::copy(Copy how, const Side& from, const Side& to,
                        std::span<const schedule::PageCopy> copies) const {
  for (const schedule::PageCopy& item : copies) {
    const cache::LayerGroup& group = plan_.groups[static_cast<size_t>(item.group)];
    const int64_t bytes = page_bytes(plan_, group.kind);
    const bool slots = in_slots(plan_, group.kind);
    for (size_t i = 0; i < group.layers.size(); ++i) {
      const Buffer& source = slots ? from.slots[i] : from.pages[i];
      const Buffer& target = slots ? to.slots[i] : to.pages[i];
      (memory_.*how)(static_cast<char*>(target.data()) + item.dst * bytes,
                     static_cast<char*>(source.data()) + item.src * bytes, static_cast<size_t>(bytes));
    }
  }
}

}  // namespace longspan::engine
