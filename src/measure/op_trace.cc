#include "measure/op_trace.h"

#include <algorithm>
#include <cstring>

#include "measure/host_call.h"

namespace longspan::measure {
namespace {

// FNV-1a over 8 bytes at a time.
class Hash {
 public:
  void add(const void* data, size_t size_bytes) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (; size_bytes >= 8; bytes += 8, size_bytes -= 8) {
      uint64_t word;
      std::memcpy(&word, bytes, 8);
      mix(word);
    }
    for (; size_bytes > 0; ++bytes, --size_bytes) mix(*bytes);
  }
  uint64_t value() const { return value_; }

 private:
  void mix(uint64_t word) {
    value_ = (value_ ^ word) * 0x100000001b3;
    value_ ^= value_ >> 29;
  }
  uint64_t value_ = 0xcbf29ce484222325;
};

// The elements of a view without the gaps between its rows.
void add_elements(Hash& hash, const TensorView& view) {
  const int rank = view.shape.rank;
  const size_t row_bytes = static_cast<size_t>(view.dim(rank - 1)) * dtype_size(view.dtype);
  const Index rows = rank > 1 ? view.dim(0) : 1;
  const Index heads = rank > 2 ? view.dim(1) : 1;
  for (Index i = 0; i < rows; ++i)
    for (Index h = 0; h < heads; ++h) {
      const Index at = (rank > 1 ? i * view.stride(0) : 0) + (rank > 2 ? h * view.stride(1) : 0);
      hash.add(static_cast<const char*>(view.data) + static_cast<size_t>(at) * dtype_size(view.dtype),
               row_bytes);
    }
}

const ops::Sequences& sequences_of(const OpCall& call) {
  if (const auto* conv = std::get_if<ops::CausalConv>(&call)) return conv->seqs;
  return std::get<ops::GatedDelta>(call).seqs;
}
const TensorView& state_pages_of(const OpCall& call) {
  if (const auto* conv = std::get_if<ops::CausalConv>(&call)) return conv->state_pages;
  return std::get<ops::GatedDelta>(call).state_pages;
}

// The part of each sequence's state that the operation reads; sequences that begin at position 0 read none.
uint64_t mark_of_states(const OpCall& call, Memory& memory) {
  OpCall copy = call;
  const ops::StateCache* state = state_cache_of(copy);
  if (state == nullptr) return 0;
  const HostCall host(call, memory);
  OpCall host_copy = host.call();
  const ops::StateCache& cache = *state_cache_of(host_copy);
  const ops::Sequences& seqs = sequences_of(host.call());
  const bool history = std::holds_alternative<ops::CausalConv>(call);
  const auto bytes = static_cast<size_t>(
      history
          ? (cache.conv_kernel - 1) * cache.conv_channels * static_cast<Index>(dtype_size(cache.conv_dtype))
          : cache.num_v_heads * cache.k_dim * cache.v_dim * static_cast<Index>(sizeof(float)));
  Hash hash;
  bool any = false;
  for (Index i = 0; i < seqs.num_seqs; ++i) {
    const auto* starts = seqs.query_start_loc.as<int32_t>();
    if (seqs.seq_lens.as<int32_t>()[i] == starts[i + 1] - starts[i]) continue;
    const Index page = state_pages_of(host.call()).as<int32_t>()[i];
    hash.add(static_cast<const char*>(cache.data) + page * cache.page_stride_bytes +
                 (history ? cache.conv_offset_bytes : 0),
             bytes);
    any = true;
  }
  return any ? hash.value() : 0;
}

uint64_t mark_of_results(const OpCall& call, Memory& memory) {
  Hash hash;
  OpCall copy = call;
  for_each_view(copy, [&](const char*, TensorView& view, ViewRole role) {
    if ((role != ViewRole::kOut && role != ViewRole::kInOut) || view.num_elements() == 0) return;
    Buffer host(span_bytes(view));
    memory.download(host.data(), view.data, span_bytes(view));
    view.data = host.data();
    add_elements(hash, view);
  });
  return hash.value();
}

std::string place_of_mark(const OpMark& mark) {
  return mark.layer < 0 ? std::string(mark.op) : fmt::format("layer {} {}", mark.layer, mark.op);
}

}  // namespace

void TracingBackend::run(const OpCall& call) {
  if (!trace_->active) return run_op(inner(), call);
  if (const auto* angles = std::get_if<ops::RopeAngles>(&call))  // the first of every step
    trace_->steps.push_back({.num_tokens = angles->positions.dim(0)});
  inner().synchronize();
  OpMark mark{.layer = layer(), .op = op_name(call), .before = mark_of_states(call, inner())};
  run_op(inner(), call);
  inner().synchronize();
  mark.after = mark_of_results(call, inner());
  if (!trace_->steps.empty()) trace_->steps.back().marks.push_back(mark);
}

std::optional<std::string> first_difference(const TracedStep& one, const TracedStep& other) {
  if (one.num_tokens != other.num_tokens)
    return fmt::format("a step has {} tokens in one run, {} in the other", one.num_tokens, other.num_tokens);
  for (size_t i = 0; i < std::min(one.marks.size(), other.marks.size()); ++i) {
    const OpMark& a = one.marks[i];
    const OpMark& b = other.marks[i];
    if (a.op != b.op || a.layer != b.layer)
      return fmt::format("one run has {}, the other {}", place_of_mark(a), place_of_mark(b));
    if (a.before != b.before) return place_of_mark(a) + " begins from another state";
    if (a.after != b.after) return place_of_mark(a) + " gives other numbers";
  }
  if (one.marks.size() != other.marks.size()) return "one run has more operations than the other";
  return std::nullopt;
}

std::optional<std::string> first_difference(const OpTrace& one, const OpTrace& other) {
  for (size_t i = 0; i < std::min(one.steps.size(), other.steps.size()); ++i)
    if (auto difference = first_difference(one.steps[i], other.steps[i]))
      return fmt::format("step {}: {}", i, *difference);
  if (one.steps.size() != other.steps.size())
    return fmt::format("one run has {} steps, the other {}", one.steps.size(), other.steps.size());
  return std::nullopt;
}

}  // namespace longspan::measure
