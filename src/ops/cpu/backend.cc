#include "ops/cpu/backend.h"

#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/kernels.h"

namespace longspan::ops::cpu {
namespace {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int num_threads) : pool_(num_threads), scratch_(num_threads) {
    chosen_kernels();  // a wrong LONGSPAN_CPU_ISA fails here, and no kernel runs before the choice
  }

  std::string name() const override {
    return fmt::format("cpu ({} threads, {})", pool_.num_threads(), isa_name());
  }

  ThreadPool& threads() override { return pool_; }

  std::unique_ptr<Weight> pack(std::span<const TensorView> parts, DType dtype) override {
    return cpu::pack(context_, parts, dtype);
  }
  std::unique_ptr<Weight> pack_gate_up(const TensorView& gate, const TensorView& up, DType dtype) override {
    return cpu::pack_gate_up(context_, gate, up, dtype);
  }
  std::unique_ptr<Weight> pack_quantized(std::span<const WeightPart> parts, DType dtype) override {
    return cpu::pack_quantized(context_, parts, dtype);
  }
  std::unique_ptr<Weight> pack_quantized_gate_up(const WeightPart& gate, const WeightPart& up,
                                                 DType dtype) override {
    return cpu::pack_quantized_gate_up(context_, gate, up, dtype);
  }
  void embed(const Embed& args) override { cpu::embed(context_, args); }
  void gather_rows(const GatherRows& args) override { cpu::gather_rows(context_, args); }
  void rms_norm(const RmsNorm& args) override { cpu::rms_norm(context_, args); }
  void matmul(const Matmul& args) override { cpu::matmul(context_, args); }
  void swiglu(const SwiGlu& args) override { cpu::swiglu(context_, args); }
  void matmul_swiglu(const MatmulSwiGlu& args) override { cpu::matmul_swiglu(context_, args); }
  void rope_angles(const RopeAngles& args) override { cpu::rope_angles(context_, args); }
  void qk_rope_write(const QkRopeWrite& args) override { cpu::qk_rope_write(context_, args); }
  void attention(const Attention& args) override { cpu::attention(context_, args); }
  void causal_conv(const CausalConv& args) override { cpu::causal_conv(context_, args); }
  void gated_delta(const GatedDelta& args) override { cpu::gated_delta(context_, args); }

 private:
  ThreadPool pool_;
  Scratch scratch_;
  Context context_{pool_, scratch_};
};

}  // namespace

std::unique_ptr<Backend> make_backend(const CpuOptions& options) {
  return std::make_unique<CpuBackend>(options.num_threads > 0 ? options.num_threads : usable_cpus());
}

}  // namespace longspan::ops::cpu
