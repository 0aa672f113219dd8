// OpCall: any operation of ops.h as a value, so that whoever looks on (a check, a trace, a planted fault)
// handles all of them in one place.
#pragma once

#include <functional>
#include <string_view>
#include <variant>

#include "ops/ops.h"

namespace longspan::measure {

using OpCall = std::variant<ops::Embed, ops::GatherRows, ops::RmsNorm, ops::Matmul, ops::SwiGlu,
                            ops::MatmulSwiGlu, ops::RopeAngles, ops::QkRopeWrite, ops::Attention,
                            ops::CausalConv, ops::GatedDelta, ops::BestColumn, ops::Draw, ops::AdvanceInputs>;

std::string_view op_name(const OpCall& call);  // "matmul"
void run_op(ops::Backend& backend, const OpCall& call);

enum class ViewRole : uint8_t {
  kIn,
  kInOut,
  kOut,
  kScratch  // room to work in; undefined afterwards
};
// Every tensor of the call that is given, in the order of ops.h. The view may be changed.
void for_each_view(OpCall& call,
                   const std::function<void(const char* name, TensorView& view, ViewRole role)>& given);

// Of those operations that have them; null for others.
const ops::Weight** weight_of(OpCall& call);
ops::KvCache* kv_cache_of(OpCall& call);
ops::StateCache* state_cache_of(OpCall& call);
bool writes_cache(const OpCall& call);  // K and V, or states

// A backend in front of another: passes everything on, operations through run().
class BackendFront : public ops::Backend {
 public:
  explicit BackendFront(std::unique_ptr<ops::Backend> inner) : inner_(std::move(inner)) {}

  bool is_host() const override { return inner_->is_host(); }
  size_t free_bytes() const override { return inner_->free_bytes(); }
  Buffer allocate(DType dtype, Shape shape) override { return inner_->allocate(dtype, shape); }
  void upload(void* to, const void* from, size_t bytes) override { inner_->upload(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { inner_->download(to, from, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { inner_->copy(to, from, bytes); }
  void zero(void* to, size_t bytes) override { inner_->zero(to, bytes); }
  void synchronize() override { inner_->synchronize(); }
  std::string name() const override { return inner_->name(); }
  ThreadPool& threads() override { return inner_->threads(); }

  using Parts = std::span<const ops::WeightPart>;
  std::unique_ptr<ops::Weight> pack(std::span<const TensorView> parts, DType dtype) override {
    return inner_->pack(parts, dtype);
  }
  std::unique_ptr<ops::Weight> pack_gate_up(const TensorView& gate, const TensorView& up,
                                            DType dtype) override {
    return inner_->pack_gate_up(gate, up, dtype);
  }
  std::unique_ptr<ops::Weight> pack_quantized(Parts parts, DType dtype) override {
    return inner_->pack_quantized(parts, dtype);
  }
  std::unique_ptr<ops::Weight> pack_quantized_gate_up(const ops::WeightPart& gate, const ops::WeightPart& up,
                                                      DType dtype) override {
    return inner_->pack_quantized_gate_up(gate, up, dtype);
  }
  std::unique_ptr<ops::Weight> pack_random(std::span<const ops::RandomRows> parts, Index in_features,
                                           DType stored, DType dtype, float deviation) override {
    return inner_->pack_random(parts, in_features, stored, dtype, deviation);
  }
  // Nothing is recorded: what is replayed as a whole cannot be looked into.
  std::unique_ptr<ops::Recording> record(const std::function<void()>&) override { return nullptr; }
  void begin_layer(Index layer) override {
    layer_ = layer;
    inner_->begin_layer(layer);
  }

  void embed(const ops::Embed& args) override { run(args); }
  void gather_rows(const ops::GatherRows& args) override { run(args); }
  void rms_norm(const ops::RmsNorm& args) override { run(args); }
  void matmul(const ops::Matmul& args) override { run(args); }
  void swiglu(const ops::SwiGlu& args) override { run(args); }
  void matmul_swiglu(const ops::MatmulSwiGlu& args) override { run(args); }
  void rope_angles(const ops::RopeAngles& args) override { run(args); }
  void qk_rope_write(const ops::QkRopeWrite& args) override { run(args); }
  void attention(const ops::Attention& args) override { run(args); }
  void causal_conv(const ops::CausalConv& args) override { run(args); }
  void gated_delta(const ops::GatedDelta& args) override { run(args); }
  void best_column(const ops::BestColumn& args) override { run(args); }
  void draw(const ops::Draw& args) override { run(args); }
  void advance_inputs(const ops::AdvanceInputs& args) override { run(args); }

 protected:
  virtual void run(const OpCall& call) { run_op(*inner_, call); }
  ops::Backend& inner() { return *inner_; }
  Index layer() const { return layer_; }  // of the model; -1 in front of the first and behind the last

 private:
  std::unique_ptr<ops::Backend> inner_;
  Index layer_ = -1;
};

}  // namespace longspan::measure
