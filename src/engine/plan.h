// The engine's plan: everything that a config and the options determine before a weight is read. Pure but for
// reading config.json and the machine's free memory.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/page_plan.h"
#include "engine/decode_replay.h"
#include "engine/dispatch.h"
#include "io/generation_config.h"
#include "io/model_config.h"
#include "model/model.h"
#include "ops/device/backend.h"

namespace longspan::engine {

inline constexpr Index kLogitRows = 64;  // rows of one logits product; more are done in slices

// kReference: the slow oracle. kDevice: the card that this build was made for, or the emulator.
enum class DeviceKind : uint8_t { kCpu, kReference, kDevice };

struct EngineInfo;

struct EngineOptions {
  std::filesystem::path model;          // directory; with random_seed a config.json is enough
  std::optional<uint64_t> random_seed;  // weights from this seed instead of files
  DeviceKind device = DeviceKind::kCpu;
  int device_index = 0;  // of several cards
  int num_threads = 0;   // 0: all this process may use
  std::vector<int32_t>
      tokenizer_eos_ids;       // the tokenizer's own, joined with config's and generation_config's
  std::optional<DType> dtype;  // none: as choose_dtype() says
  int64_t max_model_len = 0;   // tokens; 0: what the model was made for, or less where memory says so
  int32_t max_num_seqs = 16;   // sequences in one step
  int64_t max_num_batched_tokens = 4096;  // tokens in one step
  double max_decode_stall_ms = 0;         // 0: no limit
  int64_t max_waiting = 256;              // requests that may queue beyond max_num_seqs
  int64_t tensor_parallel = 1;            // ranks; planning knows more than one, this build runs one
  bool dequant_prefill = true;            // on a device, prompt rows have quantised weights unpacked once
  size_t dequant_workspace_bytes = 0;     // for that, at most; 0: as the largest layer needs
  int32_t decode_segments = 0;            // of one decode attention on a device, at most; 0: it chooses
  std::optional<DType> kv_dtype;          // of K and V in the cache; none: the products' dtype
  // Budget of weights, workspace and cache: bytes, else a share of the free memory, else (both 0) what the
  // weights take and half of what they leave.
  double memory_share = 0;
  size_t memory_bytes = 0;
  size_t cache_bytes = 0;  // 0: what max_num_seqs need, within the budget
  // Host memory for sequences that are preempted; with 0 they are replayed. None: a quarter of a cache that
  // does not hold all sequences at full length.
  std::optional<size_t> swap_bytes;
  bool reuse_decoded = false;           // with prefix caching: keep what decode computed, faster, not exact
  int64_t min_checkpoint_tokens = 512;  // with prefix caching: kept states lie at least this far apart
  int64_t max_pinned_tokens = 0;        // of one prompt with pin_prefix; its pages serve nobody else
  cache::PagePlanOptions pages{.alignment = 0};  // alignment 0: as the enabled attention paths ask
  DispatchConfig dispatch;
  ReplayMode replay = ReplayMode::kFullDecodeOnly;  // where the device can
  std::function<void(const EngineInfo& info)>
      on_plan;  // called once all is decided, before weights are loaded
  std::function<void(size_t done_bytes, size_t total_bytes)> load_progress;
  // Debugging aid for tests and verify: gives the backend that stands in front of the device's own.
  std::function<std::unique_ptr<ops::Backend>(std::unique_ptr<ops::Backend> backend)> wrap_backend;
};

// What was decided at start. Constant afterwards.
struct EngineInfo {
  io::ModelConfig config;
  io::GenerationConfig generation;
  std::vector<int32_t> eos_ids;  // the union of all three places, those within the vocabulary
  std::string device;
  DType dtype = DType::kBF16;
  std::string dtype_reason;
  cache::PagePlan page_plan;
  cache::MemoryPlan memory;
  cache::SwapPlan swap;
  AttentionTraits attention;
  ops::device::PrefillLibraryChoice
      prefill_library;  // asked on a device whose gate of vendor_prefill is open
  int64_t max_model_len = 0;
  size_t weight_bytes = 0;  // of the linear layers, as held in memory: before the load what it will be
  size_t cache_bytes = 0;
  size_t workspace_bytes = 0;  // of a step, with what is unpacked on its way
  size_t dequant_bytes = 0;    // of these for quantised weights that products unpack on a device
  size_t unpacked_kv_bytes =
      0;  // of these for an FP8 cache's K and V of one layer, which a prompt chunk reads
  size_t num_skipped_tensors = 0;  // vision, multi-token prediction
  double load_seconds = 0;
};

// The dtype of the products, and why. asked: none for the checkpoint's own, or what the device is fast at;
// arch: of a card (ops::device::arch_of). Throws kUnsupported for what the device does not compute in.
struct DTypeChoice {
  DType dtype = DType::kBF16;
  std::string reason;
};
DTypeChoice choose_dtype(std::optional<DType> asked, DType checkpoint, DeviceKind device,
                         std::string_view arch);

enum class Purpose : uint8_t { kRun, kExplain };  // kExplain: also what this build cannot run
// Throws kInvalid, kUnsupported (kRun only) or kExhausted (not one sequence of max_model_len fits).
EngineInfo make_plan(const EngineOptions& options, Purpose purpose);

ops::device::BackendOptions device_options(const EngineOptions& options);
cache::CacheSpec cache_spec(const io::ModelConfig& config, DType dtype, DType kv_dtype,
                            int64_t tensor_parallel);
model::StepLimits step_limits(const EngineOptions& options);

// One chunk of a prompt: q_len tokens that see kv_len.
struct ChunkShape {
  int64_t q_len = 0;
  int64_t kv_len = 0;
};
std::vector<ChunkShape> chunk_shapes(int64_t num_prompt, int64_t max_num_batched_tokens);

// The lines of "truth at start": what will run, and why.
std::vector<std::string> describe(const EngineInfo& info, const EngineOptions& options);

}  // namespace longspan::engine
