#include "ops/device/backend.h"

#include <cstdlib>
#include <optional>

#include "core/log.h"
#include "core/thread_pool.h"
#include "ops/device/dequant_workspace.h"
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/prefill_library.h"

namespace longspan::ops::device {
namespace {

// Good as long as the scratch memory stays where it was.
class DeviceRecording final : public Recording {
 public:
  DeviceRecording(Device& device, const Scratch& scratch, std::shared_ptr<void> recorded)
      : device_(device), scratch_(scratch), num_moves_(scratch.num_moves()), recorded_(std::move(recorded)) {}

  bool replay() override {
    if (scratch_.num_moves() != num_moves_) return false;
    device_.replay(recorded_.get());
    return true;
  }

 private:
  Device& device_;
  const Scratch& scratch_;
  const int64_t num_moves_;
  std::shared_ptr<void> recorded_;
};

class DeviceBackend final : public Backend {
 public:
  DeviceBackend(int index, const BackendOptions& options)
      : device_(index),
        scratch_(device_),
        tables_(device_),
        library_(device_),
        prefill_library_(device_),
        dequantised_(device_, options),
        pool_(options.num_threads > 0 ? options.num_threads : usable_cpus()) {
    CHECK_MSG(options.decode_segments >= 0 && options.decode_segments <= kMaxDecodeSegments,
              "decode_segments: got {}, need 0 to {}", options.decode_segments, kMaxDecodeSegments);
    context_.decode_segments = options.decode_segments;
    context_.dequant_prefill = options.dequant_prefill;
    if (options.unpacked_kv_bytes > 0) {
      unpacked_kv_ = device_.allocate(DType::kU8, {static_cast<Index>(options.unpacked_kv_bytes)});
      context_.unpacked_kv = unpacked_kv_.view();
    }
    if (profiling_) device_.start_profile();
  }
  ~DeviceBackend() override {
    if (profiling_) print(device_.finish_profile());
    device_.wait();
  }

  std::string name() const override {
    const DeviceInfo& info = device_.info();
    const std::string library = library_.name();
    return fmt::format("{} ({}, {}{})", api::kName, info.name, info.arch,
                       library.empty() ? "" : ", " + library);
  }

  ThreadPool& threads() override { return pool_; }
  bool is_host() const override { return false; }
  size_t free_bytes() const override { return device_.free_bytes(); }
  Buffer allocate(DType dtype, Shape shape) override { return device_.allocate(dtype, shape); }
  void upload(void* to, const void* from, size_t size_bytes) override {
    device_.upload(to, from, size_bytes);
  }
  void download(void* to, const void* from, size_t size_bytes) override {
    device_.download(to, from, size_bytes);
  }
  void copy(void* to, const void* from, size_t size_bytes) override { device_.copy(to, from, size_bytes); }
  void zero(void* to, size_t size_bytes) override { device_.zero(to, size_bytes); }
  void synchronize() override { device_.wait(); }

  std::unique_ptr<Weight> pack(std::span<const TensorView> parts, DType dtype) override {
    return device::pack(context_, parts, dtype);
  }
  std::unique_ptr<Weight> pack_quantized(std::span<const WeightPart> parts, DType dtype) override {
    return device::pack_quantized(context_, parts, dtype, Packing::kStacked);
  }
  std::unique_ptr<Weight> pack_quantized_gate_up(const WeightPart& gate, const WeightPart& up,
                                                 DType dtype) override {
    const WeightPart parts[] = {gate, up};
    return device::pack_quantized(context_, parts, dtype, Packing::kGateUp);
  }
  std::unique_ptr<Weight> pack_random(std::span<const RandomRows> parts, Index in_features, DType stored,
                                      DType dtype, float deviation) override {
    return device::pack_random(context_, parts, in_features, stored, dtype, deviation);
  }
  std::unique_ptr<Recording> record(const std::function<void()>& calls) override {
    std::shared_ptr<void> recorded = device_.record(calls);
    if (recorded == nullptr) return nullptr;
    return std::make_unique<DeviceRecording>(device_, scratch_, std::move(recorded));
  }
  Index num_recorded() const { return device_.num_recorded(); }
  Device& device() { return device_; }
  void read_memory(const TensorView& view) { device::read_memory(context_, view); }

  void embed(const Embed& args) override { device::embed(context_, args); }
  void gather_rows(const GatherRows& args) override { device::gather_rows(context_, args); }
  void rms_norm(const RmsNorm& args) override { device::rms_norm(context_, args); }
  void matmul(const Matmul& args) override { device::matmul(context_, args); }
  void swiglu(const SwiGlu& args) override { device::swiglu(context_, args); }
  void matmul_swiglu(const MatmulSwiGlu& args) override { device::matmul_swiglu(context_, args); }
  void rope_angles(const RopeAngles& args) override { device::rope_angles(context_, args); }
  void qk_rope_write(const QkRopeWrite& args) override { device::qk_rope_write(context_, args); }
  void attention(const Attention& args) override { device::attention(context_, args); }
  void causal_conv(const CausalConv& args) override { device::causal_conv(context_, args); }
  void gated_delta(const GatedDelta& args) override { device::gated_delta(context_, args); }
  void best_column(const BestColumn& args) override { device::best_column(context_, args); }
  void draw(const Draw& args) override { device::draw(context_, args); }
  void advance_inputs(const AdvanceInputs& args) override { device::advance_inputs(context_, args); }

 private:
  static void print(const std::vector<KernelTime>& rows) {
    for (const KernelTime& row : rows)
      log(LogLevel::kInfo,
          "{:<24} {:>7} launches {:>10.3f} ms {:>9.1f} us each {:>8.1f} GB/s {:>8.2f} TFLOP/s", row.name,
          row.num_launches, row.total_ms, row.total_ms * 1e3 / static_cast<double>(row.num_launches),
          row.bytes / row.total_ms * 1e-6, row.flops / row.total_ms * 1e-9);
  }

  // A debugging aid: the table of all kernels at the end, load and warm-up included.
  const bool profiling_ = std::getenv("LONGSPAN_DEVICE_PROFILE") != nullptr;
  Device device_;
  Scratch scratch_;
  Scratch tables_;
  GemmLibrary library_;
  PrefillLibrary prefill_library_;
  DequantWorkspace dequantised_;
  ThreadPool pool_;
  Buffer unpacked_kv_;
  Context context_{device_, scratch_, tables_, library_, prefill_library_, dequantised_, pool_};
};

std::optional<DeviceInfo> find_card(int index) {
  const std::vector<DeviceInfo> devices = list_devices();
  if (index < 0 || index >= static_cast<int>(devices.size())) return std::nullopt;
  return devices[static_cast<size_t>(index)];
}

}  // namespace

const char* vendor_name() { return api::kName; }

size_t free_memory_bytes(int index) { return Device(index).free_bytes(); }

std::string arch_of(int index) {
  const std::optional<DeviceInfo> card = find_card(index);
  return card ? card->arch : "";
}

bool has_vendor_prefill(int index, const PrefillShape& shape) {
  const std::optional<DeviceInfo> card = find_card(index);
  return card && has_attention_wgmma(*card, shape);
}

PrefillLibraryChoice choose_prefill_library(int index, const PrefillShape& shape) {
  const bool emulated = std::string_view(vendor_name()) == "emulator";
  if (!emulated && !find_card(index)) return {"", "library: no device"};
  Device device(index);
  PrefillLibrary library(device);
  PrefillLibraryChoice choice{library.name(), library.obstacle(shape)};
  device.wait();
  return choice;
}

Index num_recorded(const Backend& backend) {
  const auto* const device = dynamic_cast<const DeviceBackend*>(&backend);
  return device == nullptr ? 0 : device->num_recorded();
}

void read_memory(Backend& backend, const TensorView& view) {
  static_cast<DeviceBackend&>(backend).read_memory(view);
}

void start_profile(Backend& backend) { static_cast<DeviceBackend&>(backend).device().start_profile(); }

std::vector<KernelTime> finish_profile(Backend& backend) {
  return static_cast<DeviceBackend&>(backend).device().finish_profile();
}

std::unique_ptr<Backend> make_backend(int index, const BackendOptions& options) {
  return std::make_unique<DeviceBackend>(index, options);
}

}  // namespace longspan::ops::device
