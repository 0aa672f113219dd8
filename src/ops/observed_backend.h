// ObservedBackend: another backend, and an observer that hears when each of its operations began and ended,
// and of which operations a replay consists. While nobody observes, an operation costs one branch more.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/device/backend.h"
#include "ops/op_work.h"

namespace longspan::ops {

int64_t steady_ns();  // of the steady clock: what observers are given

// An operation inside a recording.
struct RecordedOp {
  OpWork work;
  Index num_launches = 0;  // kernels and copies that it puts to the device
};

// All on the thread of the call. Must not throw, and take little time.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void before_op() {}  // or before a replay
  virtual void on_op(const OpWork& work, int64_t begin_ns, int64_t end_ns) = 0;
  virtual void on_replay(std::span<const RecordedOp> /*ops*/, int64_t /*begin_ns*/, int64_t /*end_ns*/) {}
};

// Passes everything on. On a device a call ends when it is launched, not when it has run.
class ObservedBackend final : public Backend {
 public:
  explicit ObservedBackend(std::unique_ptr<Backend> inner);

  // From now on, between operations only; null: nobody. The observer is borrowed.
  void observe(OpObserver* observer) { observer_ = observer; }

  bool is_host() const override { return inner_->is_host(); }
  size_t free_bytes() const override { return inner_->free_bytes(); }
  Buffer allocate(DType dtype, Shape shape) override { return inner_->allocate(dtype, shape); }
  void upload(void* to, const void* from, size_t size_bytes) override {
    inner_->upload(to, from, size_bytes);
  }
  void download(void* to, const void* from, size_t size_bytes) override {
    inner_->download(to, from, size_bytes);
  }
  void copy(void* to, const void* from, size_t size_bytes) override { inner_->copy(to, from, size_bytes); }
  void zero(void* to, size_t size_bytes) override { inner_->zero(to, size_bytes); }
  void synchronize() override { inner_->synchronize(); }

  std::string name() const override { return inner_->name(); }
  ThreadPool& threads() override { return inner_->threads(); }
  std::unique_ptr<Weight> pack(std::span<const TensorView> parts, DType dtype) override {
    return inner_->pack(parts, dtype);
  }
  std::unique_ptr<Weight> pack_gate_up(const TensorView& gate, const TensorView& up, DType dtype) override {
    return inner_->pack_gate_up(gate, up, dtype);
  }
  std::unique_ptr<Weight> pack_quantized(std::span<const WeightPart> parts, DType dtype) override {
    return inner_->pack_quantized(parts, dtype);
  }
  std::unique_ptr<Weight> pack_quantized_gate_up(const WeightPart& gate, const WeightPart& up,
                                                 DType dtype) override {
    return inner_->pack_quantized_gate_up(gate, up, dtype);
  }
  std::unique_ptr<Weight> pack_random(std::span<const RandomRows> parts, Index in_features, DType stored,
                                      DType dtype, float deviation) override {
    return inner_->pack_random(parts, in_features, stored, dtype, deviation);
  }
  // Its recordings are told of as well, and must not outlive it.
  std::unique_ptr<Recording> record(const std::function<void()>& calls) override;

  void begin_layer(Index layer) override {
    layer_ = static_cast<int16_t>(layer);
    inner_->begin_layer(layer);
  }

  void embed(const Embed& args) override { timed(&Backend::embed, args); }
  void gather_rows(const GatherRows& args) override { timed(&Backend::gather_rows, args); }
  void rms_norm(const RmsNorm& args) override { timed(&Backend::rms_norm, args); }
  void matmul(const Matmul& args) override { timed(&Backend::matmul, args); }
  void swiglu(const SwiGlu& args) override { timed(&Backend::swiglu, args); }
  void matmul_swiglu(const MatmulSwiGlu& args) override { timed(&Backend::matmul_swiglu, args); }
  void rope_angles(const RopeAngles& args) override { timed(&Backend::rope_angles, args); }
  void qk_rope_write(const QkRopeWrite& args) override { timed(&Backend::qk_rope_write, args); }
  void attention(const Attention& args) override { timed(&Backend::attention, args); }
  void causal_conv(const CausalConv& args) override { timed(&Backend::causal_conv, args); }
  void gated_delta(const GatedDelta& args) override { timed(&Backend::gated_delta, args); }
  void best_column(const BestColumn& args) override { timed(&Backend::best_column, args); }
  void draw(const Draw& args) override { timed(&Backend::draw, args); }
  void advance_inputs(const AdvanceInputs& args) override { timed(&Backend::advance_inputs, args); }

 private:
  template <class Args>
  void timed(void (Backend::*op)(const Args&), const Args& args) {
    if (!looks_on()) return ((*inner_).*op)(args);
    OpWork work = work_of(args, tables_);
    work.layer = layer_;
    if (recorded_ != nullptr) {
      const Index before = device::num_recorded(*inner_);
      ((*inner_).*op)(args);
      return recorded_->push_back({work, device::num_recorded(*inner_) - before});
    }
    observer_->before_op();
    const int64_t begin = steady_ns();
    ((*inner_).*op)(args);
    observer_->on_op(work, begin, steady_ns());
  }
  bool looks_on() const { return observer_ != nullptr || recorded_ != nullptr; }

  class ObservedRecording;

  std::unique_ptr<Backend> inner_;
  OpObserver* observer_ = nullptr;
  std::vector<RecordedOp>* recorded_ = nullptr;  // inside record()
  Tables tables_;
  int16_t layer_ = -1;
};

}  // namespace longspan::ops
