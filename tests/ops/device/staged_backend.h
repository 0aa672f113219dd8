// A backend of a device behind the face of a host's: every call carries its tensors to the device and back,
// each in an allocation of its exact size and with its misalignment. So the tests of host backends run on
// cards, and in the emulator every access is held to the bounds of the tensors.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/ops.h"

namespace longspan::ops::test {

// The host memory of one call, in the device's memory. Tensors that overlap share an allocation.
class Stage {
 public:
  explicit Stage(Backend& device) : device_(device) {}

  void add(const TensorView& view) {
    if (view.empty() || view.num_elements() == 0) return;
    Index last = 0;
    for (int axis = 0; axis < view.shape.rank; ++axis) last += (view.dim(axis) - 1) * view.stride(axis);
    add(view.data, static_cast<size_t>(last + 1) * dtype_size(view.dtype));
  }
  void add(const void* data, size_t size_bytes) {
    ranges_.push_back({static_cast<const char*>(data), size_bytes, {}});
  }

  void upload() {
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.host < b.host; });
    std::vector<Range> merged;
    for (Range& range : ranges_) {
      if (merged.empty() || range.host >= merged.back().host + merged.back().size_bytes)
        merged.push_back(std::move(range));
      else
        merged.back().size_bytes =
            std::max(merged.back().size_bytes,
                     static_cast<size_t>(range.host - merged.back().host) + range.size_bytes);
    }
    ranges_ = std::move(merged);
    for (Range& range : ranges_) {
      range.buffer = device_.allocate(DType::kU8, {static_cast<Index>(range.size_bytes + range.shift())});
      device_.upload(range.device(), range.host, range.size_bytes);
    }
  }
  void download() {
    for (Range& range : ranges_)
      device_.download(const_cast<char*>(range.host), range.device(), range.size_bytes);
  }

  void* at(const void* host) const {
    const char* data = static_cast<const char*>(host);
    for (const Range& range : ranges_)
      if (data >= range.host && data < range.host + range.size_bytes)
        return range.device() + (data - range.host);
    return const_cast<void*>(host);  // empty or without elements
  }
  TensorView at(const TensorView& view) const {
    TensorView moved = view;
    moved.data = at(view.data);
    return moved;
  }
  Sequences at(const Sequences& seqs) const {
    Sequences moved = seqs;
    moved.query_start_loc = at(seqs.query_start_loc);
    moved.seq_lens = at(seqs.seq_lens);
    return moved;
  }

 private:
  struct Range {
    const char* host;
    size_t size_bytes;
    Buffer buffer;
    size_t shift() const { return reinterpret_cast<uintptr_t>(host) % 16; }
    char* device() const { return static_cast<char*>(buffer.data()) + shift(); }
  };
  Backend& device_;
  std::vector<Range> ranges_;
};

class StagedBackend final : public Backend {
 public:
  explicit StagedBackend(std::unique_ptr<Backend> device) : device_(std::move(device)) {}

  std::string name() const override { return device_->name(); }
  Backend& device() { return *device_; }

  std::unique_ptr<Weight> pack(std::span<const TensorView> parts, DType dtype) override {
    return device_->pack(parts, dtype);
  }
  std::unique_ptr<Weight> pack_quantized(std::span<const WeightPart> parts, DType dtype) override {
    return device_->pack_quantized(parts, dtype);
  }
  std::unique_ptr<Weight> pack_random(std::span<const RandomRows> parts, Index in_features, DType stored,
                                      DType dtype, float deviation) override {
    return device_->pack_random(parts, in_features, stored, dtype, deviation);
  }
  void embed(const Embed& args) override {
    run(args, {&Embed::ids, &Embed::out}, [&](const Embed& moved) { device_->embed(moved); });
  }
  void gather_rows(const GatherRows& args) override {
    run(args, {&GatherRows::x, &GatherRows::rows, &GatherRows::out},
        [&](const GatherRows& moved) { device_->gather_rows(moved); });
  }
  void rms_norm(const RmsNorm& args) override {
    run(args, {&RmsNorm::x, &RmsNorm::delta, &RmsNorm::weight, &RmsNorm::out},
        [&](const RmsNorm& moved) { device_->rms_norm(moved); });
  }
  void matmul(const Matmul& args) override {
    run(args, {&Matmul::x, &Matmul::bias, &Matmul::out},
        [&](const Matmul& moved) { device_->matmul(moved); });
  }
  void swiglu(const SwiGlu& args) override {
    run(args, {&SwiGlu::gate_up, &SwiGlu::out}, [&](const SwiGlu& moved) { device_->swiglu(moved); });
  }
  void matmul_swiglu(const MatmulSwiGlu& args) override {
    run(args, {&MatmulSwiGlu::x, &MatmulSwiGlu::gate_up, &MatmulSwiGlu::out},
        [&](const MatmulSwiGlu& moved) { device_->matmul_swiglu(moved); });
  }
  void best_column(const BestColumn& args) override {
    run(args, {&BestColumn::x, &BestColumn::out},
        [&](const BestColumn& moved) { device_->best_column(moved); });
  }
  void draw(const Draw& args) override {
    run(args, {&Draw::x, &Draw::rows, &Draw::out}, [&](const Draw& moved) { device_->draw(moved); });
  }
  void advance_inputs(const AdvanceInputs& args) override {
    using A = AdvanceInputs;
    run(args,
        {&A::tokens, &A::block_table, &A::token_ids, &A::positions, &A::query_start_loc, &A::seq_lens,
         &A::logit_rows, &A::slots},
        [&](const A& moved) { device_->advance_inputs(moved); });
  }
  void rope_angles(const RopeAngles& args) override {
    run(args, {&RopeAngles::positions, &RopeAngles::inv_freq, &RopeAngles::cos_sin},
        [&](const RopeAngles& moved) { device_->rope_angles(moved); });
  }
  void qk_rope_write(const QkRopeWrite& args) override {
    using A = QkRopeWrite;
    run(args, {&A::q, &A::k, &A::v, &A::q_norm, &A::k_norm, &A::cos_sin, &A::slots, &A::q_out},
        [&](const A& moved) { device_->qk_rope_write(moved); });
  }
  void attention(const Attention& args) override {
    run(args, {&Attention::q, &Attention::gate, &Attention::block_table, &Attention::out},
        [&](const Attention& moved) { device_->attention(moved); });
  }
  void causal_conv(const CausalConv& args) override {
    run(args, {&CausalConv::x, &CausalConv::weight, &CausalConv::state_pages, &CausalConv::out},
        [&](const CausalConv& moved) { device_->causal_conv(moved); });
  }
  void gated_delta(const GatedDelta& args) override {
    using A = GatedDelta;
    run(args,
        {&A::q, &A::k, &A::v, &A::z, &A::a, &A::b, &A::a_log, &A::dt_bias, &A::norm, &A::state_pages,
         &A::out},
        [&](const A& moved) { device_->gated_delta(moved); });
  }

 private:
  template <class Args, class Call>
  void run(const Args& args, std::initializer_list<TensorView Args::*> views, const Call& call) {
    Stage stage(*device_);
    for (const auto view : views) stage.add(args.*view);
    if constexpr (requires { args.kv; }) {
      stage.add(args.kv.data, static_cast<size_t>(args.kv.num_pages * args.kv.page_stride_bytes));
      stage.add(args.kv.scales);
      stage.add(args.kv.saturated);
    }
    if constexpr (requires { args.state; })
      stage.add(args.state.data, static_cast<size_t>(args.state.num_pages * args.state.page_stride_bytes));
    if constexpr (requires { args.seqs; }) {
      stage.add(args.seqs.query_start_loc);
      stage.add(args.seqs.seq_lens);
    }
    stage.upload();
    Args moved = args;
    for (const auto view : views) moved.*view = stage.at(args.*view);
    if constexpr (requires { args.kv; }) {
      moved.kv.data = stage.at(args.kv.data);
      moved.kv.scales = stage.at(args.kv.scales);
      moved.kv.saturated = stage.at(args.kv.saturated);
    }
    if constexpr (requires { args.state; }) moved.state.data = stage.at(args.state.data);
    if constexpr (requires { args.seqs; }) moved.seqs = stage.at(args.seqs);
    call(moved);
    stage.download();
  }

  std::unique_ptr<Backend> device_;
};

}  // namespace longspan::ops::test
