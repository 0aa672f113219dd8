// Named weights with their shapes checked, from a model directory or from a seed. The only reader of tensor
// names.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/buffer.h"
#include "core/thread_pool.h"
#include "io/model_config.h"
#include "io/tensor_store.h"
#include "io/weight_layout.h"
#include "model/quantized_reader.h"
#include "ops/ops.h"

namespace longspan::model {

// What random weights look like; real ones ignore it.
enum class Init : uint8_t { kLinear, kNorm, kPlainNorm, kConv, kALog, kDtBias };

// One linear layer's tensor inside a fused weight.
struct LinearPart {
  std::string name;  // without the prefix: "layers.3.self_attn.q_proj.weight"
  Index out_features = 0;
};

// What is packed into one weight: parts [out_features, in_features] each, floats or quantised.
struct LinearLayer {
  std::vector<LinearPart> parts;
  Index in_features = 0;
  ops::Packing packing = ops::Packing::kStacked;
};

class WeightSource {
 public:
  using Progress = std::function<void(size_t done_bytes, size_t total_bytes)>;

  // From files. Throws kInvalid / kNotFound as the io room does.
  WeightSource(const io::TensorStore& store, const io::ModelConfig& config, Progress progress);
  // From a seed: the same values for the same seed and config, whatever the order of calls; in few bits where
  // the config is quantised.
  WeightSource(uint64_t seed, const io::ModelConfig& config, Progress progress);

  // One packed weight. Host work is shared by the threads of `ops`; the bits do not depend on their number.
  // Throws kInvalid naming tensor, got and need; or tensor and element where a value is not finite;
  // kUnsupported for a form of quantisation this build does not read.
  std::unique_ptr<ops::Weight> linear(ops::Ops& ops, const LinearLayer& layer, DType dtype);
  // The parts it would pack, with the shapes and dtypes they will have: no values behind the views but those
  // of group_of. Throws for headers as linear() does.
  std::vector<ops::WeightPart> shapes(const LinearLayer& layer) const;
  // A small tensor as f32, any shape with these dims.
  Buffer f32(const std::string& name, Shape shape, Init init);
  // Biases of fused parts, joined; f32.
  Buffer bias(const std::vector<LinearPart>& parts);

  // Scales of an FP8 cache, f32 [2, num_kv_heads], of the attention at `at` ("layers.3.self_attn."): one a
  // tensor or one a head, under any of the names that checkpoints give them; 1 where there are none.
  Buffer kv_scales(const std::string& at, Index num_kv_heads);

  size_t num_kv_scales() const { return num_kv_scales_; }  // tensors of them that were found
  size_t num_skipped() const { return layout_.num_visual + layout_.num_mtp; }
  size_t num_unused() const;  // text tensors that nothing asked for

 private:
  std::unique_ptr<ops::Weight> drawn(ops::Ops& ops, const LinearLayer& layer, DType dtype);
  bool draws_quantised(const LinearPart& part) const;
  // One part as it is stored; valid until done().
  struct Fetched {
    ops::WeightPart part;
    std::vector<Buffer> owned;
    std::vector<std::string> tensors;  // full names of what it was read from
    size_t size_bytes = 0;

    bool quantised() const { return std::holds_alternative<ops::QuantizedPart>(part); }
    const TensorView& dense() const { return std::get<TensorView>(part); }
  };

  Fetched fetch_linear(const LinearPart& part, Index in_features, ThreadPool& pool);
  Fetched fetch_quantised(const LinearPart& part, Index in_features, const io::LinearLayout& layout,
                          ThreadPool& pool);
  void done(const Fetched& fetched);
  std::string full_name(const std::string& name) const;
  // Valid until done().
  TensorView fetch(const std::string& name, Shape shape, Init init, ThreadPool& pool);
  TensorView stored(const std::string& name, Shape shape, ThreadPool& pool);
  TensorView random(const std::string& name, Shape shape, Init init, ThreadPool& pool);
  void done(const std::string& full_name, size_t bytes);

  const io::TensorStore* store_ = nullptr;  // null: random
  io::WeightLayout layout_;
  io::QuantConfig quantisation_;
  uint64_t seed_ = 0;
  DType random_dtype_ = DType::kBF16;
  std::vector<Buffer> random_values_;  // of the weight under construction
  Progress progress_;
  size_t done_bytes_ = 0;
  size_t total_bytes_ = 0;
  size_t num_read_ = 0;
  size_t num_kv_scales_ = 0;
};

}  // namespace longspan::model
