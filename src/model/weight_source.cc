#include "model/weight_source.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "model/quantized_random.h"
#include "model/random_bits.h"
#include "ops/dequantize.h"

namespace longspan::model {
namespace {

uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

// Roughly normal with the given deviation: the sum of four 16-bit uniforms, enough for weights that only need
// a shape.
float normal(uint64_t bits, float deviation) {
  const auto sum =
      static_cast<float>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
  return (sum / 65535.0f - 2.0f) * 1.7320508f * deviation;
}

constexpr float kLinearDeviation = 0.02f;

// Under an attention's prefix; {} is k or v. In turn: LLM Compressor's, vLLM's own, ModelOpt's, and the
// output scales of older compressed-tensors and Quark files.
constexpr const char* kKvScaleNames[] = {"{}_scale", "attn.{}_scale", "{0}_proj.{0}_scale",
                                         "{}_proj.output_scale"};

float draw(uint64_t bits, Init init) {
  const float uniform = static_cast<float>(bits >> 40) * 0x1p-24f;
  switch (init) {
    case Init::kLinear:
      return normal(bits, kLinearDeviation);
    case Init::kNorm:
      return normal(bits, 0.02f);
    case Init::kPlainNorm:
      return 1.0f + normal(bits, 0.02f);
    case Init::kConv:
      return normal(bits, 0.3f);
    case Init::kALog:
      return std::log(1.0f + 15.0f * uniform);
    case Init::kDtBias:
      return -5.0f + 4.0f * uniform;
  }
  return 0;
}

constexpr Index kElementsOfATask = 1 << 16;

// Index of the first value that is NaN or infinite; -1 when all are finite. Looks at exponent bits only.
template <class Bits>
Index first_non_finite(ThreadPool& pool, const TensorView& view, Bits exponent_mask) {
  const auto* values = static_cast<const Bits*>(view.data);
  return pool.find_first(view.num_elements(), kElementsOfATask, [&](Index begin, Index end) -> Index {
    int found = 0;  // one branch a stretch keeps the loop vectorised
    for (Index i = begin; i < end; ++i) found |= (values[i] & exponent_mask) == exponent_mask;
    if (!found) return -1;
    while ((values[begin] & exponent_mask) != exponent_mask) ++begin;
    return begin;
  });
}

Index first_non_finite(ThreadPool& pool, const TensorView& view) {
  switch (view.dtype) {
    case DType::kBF16:
      return first_non_finite<uint16_t>(pool, view, 0x7f80);
    case DType::kF16:
      return first_non_finite<uint16_t>(pool, view, 0x7c00);
    default:
      return first_non_finite<uint32_t>(pool, view, 0x7f800000u);
  }
}

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

std::string dims_text(const std::vector<Index>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += fmt::format("{}{}", i ? ", " : "", dims[i]);
  return text + "]";
}

// Dims without the ones of length 1, which some exports add or drop (conv1d [C, 1, K]).
std::vector<Index> squeezed(std::span<const Index> dims) {
  std::vector<Index> kept;
  for (Index dim : dims)
    if (dim != 1) kept.push_back(dim);
  return kept;
}

// "layers.3.self_attn.q_proj" of "layers.3.self_attn.q_proj.weight".
std::string module_of(const std::string& weight) {
  return weight.substr(0, weight.size() - std::string_view(".weight").size());
}

}  // namespace

WeightSource::WeightSource(const io::TensorStore& store, const io::ModelConfig& config, Progress progress)
    : store_(&store),
      layout_(io::detect_weight_layout(store, config)),
      quantisation_(config.quantization),
      progress_(std::move(progress)) {
  for (const std::string& name : layout_.text)
    total_bytes_ += static_cast<size_t>(store.info(name).size_bytes);
}

WeightSource::WeightSource(uint64_t seed, const io::ModelConfig& config, Progress progress)
    : quantisation_(config.quantization),
      seed_(seed),
      random_dtype_(config.dtype),
      progress_(std::move(progress)) {}

size_t WeightSource::num_unused() const {
  return store_ != nullptr && layout_.text.size() > num_read_ ? layout_.text.size() - num_read_ : 0;
}

std::string WeightSource::full_name(const std::string& name) const {
  return name.starts_with("lm_head.") ? layout_.lm_head + name.substr(7) : layout_.prefix + name;
}

TensorView WeightSource::fetch(const std::string& name, Shape shape, Init init, ThreadPool& pool) {
  return store_ != nullptr ? stored(full_name(name), shape, pool) : random(name, shape, init, pool);
}

TensorView WeightSource::stored(const std::string& name, Shape shape, ThreadPool& pool) {
  const io::TensorInfo* info = store_->find(name);
  if (info == nullptr) fail(ErrorKind::kInvalid, "tensor {} is missing: need {}", name, to_string(shape));
  if (!is_float(info->dtype))
    fail(ErrorKind::kUnsupported, "tensor {}: got {}, need bfloat16, float16 or float32", name,
         dtype_name(info->dtype));
  if (squeezed(info->dims) != squeezed({shape.dims.data(), static_cast<size_t>(shape.rank)}))
    fail(ErrorKind::kInvalid, "tensor {}: got {}, need {}", name, dims_text(info->dims), to_string(shape));
  TensorView view = store_->view(name);
  view = TensorView(view.data, view.dtype, shape);
  if (const Index at = first_non_finite(pool, view); at >= 0)
    fail(ErrorKind::kInvalid, "tensor {}: element {} is not finite", name, at);
  return view;
}

TensorView WeightSource::random(const std::string& name, Shape shape, Init init, ThreadPool& pool) {
  Buffer buffer(init == Init::kLinear ? random_dtype_ : DType::kF32, shape);
  const uint64_t key = random_bits(seed_ ^ hash_name(name));
  dispatch_dtype(buffer.view().dtype, [&]<class T>() {
    T* values = buffer.view().as<T>();
    pool.parallel_ranges(shape.num_elements(), kElementsOfATask, [&](Index begin, Index end) {
      for (Index i = begin; i < end; ++i)
        values[i] = static_cast<T>(draw(random_bits(key + static_cast<uint64_t>(i)), init));
    });
  });
  random_values_.push_back(std::move(buffer));
  return random_values_.back().view();
}

void WeightSource::done(const std::string& full_name, size_t bytes) {
  if (store_ != nullptr) store_->release(full_name);
  random_values_.clear();
  ++num_read_;
  done_bytes_ += bytes;
  if (progress_) progress_(done_bytes_, std::max(total_bytes_, done_bytes_));
}

void WeightSource::done(const Fetched& fetched) {
  size_t left = fetched.size_bytes;
  for (const std::string& name : fetched.tensors) {
    const size_t bytes = store_ != nullptr ? static_cast<size_t>(store_->info(name).size_bytes) : left;
    done(name, bytes);
    left -= std::min(left, bytes);
  }
}

WeightSource::Fetched WeightSource::fetch_linear(const LinearPart& part, Index in_features,
                                                 ThreadPool& pool) {
  if (store_ != nullptr) {
    const io::LinearLayout layout = io::find_linear(*store_, quantisation_, module_of(full_name(part.name)));
    if (layout.form != io::LinearForm::kDense) return fetch_quantised(part, in_features, layout, pool);
  } else if (draws_quantised(part)) {
    QuantizedLinear linear = random_quantized(random_bits(seed_ ^ hash_name(part.name)), quantisation_,
                                              part.out_features, in_features, kLinearDeviation, pool);
    const size_t size_bytes = linear.part.codes.size_bytes() + linear.part.scales.size_bytes();
    return {.part = linear.part,
            .owned = std::move(linear.owned),
            .tensors = {full_name(part.name)},
            .size_bytes = size_bytes};
  }
  const TensorView view = fetch(part.name, {part.out_features, in_features}, Init::kLinear, pool);
  return {.part = view, .tensors = {full_name(part.name)}, .size_bytes = view.size_bytes()};
}

WeightSource::Fetched WeightSource::fetch_quantised(const LinearPart& part, Index in_features,
                                                    const io::LinearLayout& layout, ThreadPool& pool) {
  if (part.name.starts_with("embed_tokens."))
    fail(ErrorKind::kUnsupported, "tensor {}: got a quantised embedding, need bfloat16, float16 or float32",
         layout.tensors[0]);
  if (layout.out_features != part.out_features || layout.in_features != in_features)
    fail(ErrorKind::kInvalid, "tensor {}: got a layer of {} x {} ({}), need {} x {}", layout.tensors[0],
         layout.out_features, layout.in_features, io::to_string(layout.form), part.out_features, in_features);
  QuantizedLinear linear = read_quantized(*store_, quantisation_, layout, pool);
  return {.part = linear.part, .owned = std::move(linear.owned), .tensors = layout.tensors};
}

std::vector<ops::WeightPart> WeightSource::shapes(const LinearLayer& layer) const {
  std::vector<ops::WeightPart> parts;
  for (const LinearPart& part : layer.parts) {
    if (store_ != nullptr) {
      const auto layout = io::find_linear(*store_, quantisation_, module_of(full_name(part.name)));
      if (layout.form != io::LinearForm::kDense) {
        parts.push_back(shape_of_quantized(*store_, quantisation_, layout));
        continue;
      }
    } else if (draws_quantised(part)) {
      parts.push_back(shape_of_random(quantisation_, part.out_features, layer.in_features));
      continue;
    }
    parts.push_back(shape_only(random_dtype_, {part.out_features, layer.in_features}));
  }
  return parts;
}

// Whether the config of a model without a file has this layer in few bits.
bool WeightSource::draws_quantised(const LinearPart& part) const {
  const std::string module = module_of(full_name(part.name));
  return quantisation_.quantised() && io::is_projection(module) && !io::left_dense(quantisation_, module);
}

// Random weights made where they are wanted, if the backend does that; quantised ones are few enough bytes
// for the host.
std::unique_ptr<ops::Weight> WeightSource::drawn(ops::Ops& ops, const LinearLayer& layer, DType dtype) {
  const auto quantised = [&](const LinearPart& part) { return draws_quantised(part); };
  if (store_ != nullptr || std::any_of(layer.parts.begin(), layer.parts.end(), quantised)) return nullptr;
  std::vector<ops::RandomRows> rows;
  for (const LinearPart& part : layer.parts)
    rows.push_back({random_bits(seed_ ^ hash_name(part.name)), part.out_features});
  std::unique_ptr<ops::Weight> weight =
      ops.pack_random(rows, layer.in_features, random_dtype_, dtype, kLinearDeviation);
  if (weight != nullptr)
    for (const LinearPart& part : layer.parts)
      done(part.name, static_cast<size_t>(part.out_features * layer.in_features) * dtype_size(random_dtype_));
  return weight;
}

std::unique_ptr<ops::Weight> WeightSource::linear(ops::Ops& ops, const LinearLayer& layer, DType dtype) {
  if (std::unique_ptr<ops::Weight> weight = drawn(ops, layer, dtype)) return weight;
  std::vector<Fetched> fetched;
  for (const LinearPart& part : layer.parts)
    fetched.push_back(fetch_linear(part, layer.in_features, ops.threads()));
  std::vector<ops::WeightPart> any;
  std::vector<TensorView> dense;
  for (const Fetched& one : fetched) {
    any.push_back(one.part);
    if (!one.quantised()) dense.push_back(one.dense());
  }
  const bool all_dense = dense.size() == any.size();
  std::unique_ptr<ops::Weight> weight;
  if (layer.packing == ops::Packing::kStacked)
    weight = all_dense ? ops.pack(dense, dtype) : ops.pack_quantized(any, dtype);
  else
    weight = all_dense ? ops.pack_gate_up(dense[0], dense[1], dtype)
                       : ops.pack_quantized_gate_up(any[0], any[1], dtype);
  for (const Fetched& one : fetched) done(one);
  return weight;
}

Buffer WeightSource::f32(const std::string& name, Shape shape, Init init) {
  ThreadPool serial(1);
  const TensorView view = fetch(name, shape, init, serial);
  Buffer buffer(DType::kF32, shape);
  float* out = buffer.view().as<float>();
  dispatch_dtype(view.dtype, [&]<class T>() {
    for (Index i = 0; i < shape.num_elements(); ++i) out[i] = static_cast<float>(view.as<T>()[i]);
  });
  if (init == Init::kNorm && layout_.norms_shifted)
    for (Index i = 0; i < shape.num_elements(); ++i) out[i] -= 1.0f;
  done(full_name(name), view.size_bytes());
  return buffer;
}

Buffer WeightSource::bias(const std::vector<LinearPart>& parts) {
  Index total = 0;
  for (const LinearPart& part : parts) total += part.out_features;
  Buffer joined(DType::kF32, {total});
  Index at = 0;
  for (const LinearPart& part : parts) {
    const std::string name =
        part.name.substr(0, part.name.size() - std::string_view("weight").size()) + "bias";
    const Buffer one = f32(name, {part.out_features}, Init::kLinear);
    std::copy_n(one.view().as<float>(), part.out_features, joined.view().as<float>() + at);
    at += part.out_features;
  }
  return joined;
}

Buffer WeightSource::kv_scales(const std::string& at, Index num_kv_heads) {
  Buffer scales(DType::kF32, {2, num_kv_heads});
  std::fill_n(scales.view().as<float>(), 2 * num_kv_heads, 1.0f);
  if (store_ == nullptr) return scales;
  ThreadPool serial(1);
  for (Index plane = 0; plane < 2; ++plane)
    for (const char* pattern : kKvScaleNames) {
      const std::string name = full_name(at + fmt::format(fmt::runtime(pattern), plane == 0 ? 'k' : 'v'));
      const io::TensorInfo* info = store_->find(name);
      if (info == nullptr) continue;
      Index count = 1;
      for (const Index dim : info->dims) count *= dim;
      if (count != 1 && count != num_kv_heads)
        fail(ErrorKind::kInvalid, "tensor {}: got {}, need one scale, or one for each of {} KV heads", name,
             dims_text(info->dims), num_kv_heads);
      const TensorView stored_scales = stored(name, {count}, serial);
      for (Index head = 0; head < num_kv_heads; ++head) {
        const float scale = ops::value_of(stored_scales, count == 1 ? 0 : head);
        if (!(scale > 0))
          fail(ErrorKind::kInvalid, "tensor {}: got a scale of {}, need more than 0", name, scale);
        scales.view().as<float>()[plane * num_kv_heads + head] = scale;
      }
      done(name, stored_scales.size_bytes());
      ++num_kv_scales_;
      break;
    }
  return scales;
}

}  // namespace longspan::model
