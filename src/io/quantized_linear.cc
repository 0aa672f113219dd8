#include "io/quantized_linear.h"

#include <algorithm>
#include <regex>
#include <set>

#include "core/error.h"

namespace longspan::io {
namespace {

constexpr Index kCodesPerWord = 8;  // of four bits

Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

std::string claim(const QuantConfig& config) {
  return config.quantised() ? fmt::format("{} says {}", config.source, config.method_name)
                            : std::string("config.json says nothing of it");
}

// One layer's tensors and how they are refused.
class Finder {
 public:
  Finder(const TensorStore& store, const QuantConfig& config, const std::string& module)
      : store_(store), config_(config), module_(module) {}

  LinearLayout find() const {
    if (has("qweight")) return awq_or_gptq();
    if (has("weight_packed")) return packed();
    if (!has("weight"))
      fail(ErrorKind::kInvalid, "tensor {}.weight is missing, and no quantised form of it is there", module_);
    const TensorInfo& weight = info("weight");
    if (is_float(weight.dtype)) return {.form = LinearForm::kDense, .tensors = {weight.name}};
    if (weight.dtype == DType::kF8E4M3 && has("weight_scale_inv")) return fp8();
    unsupported(weight, weight.dtype == DType::kF8E4M3
                            ? "FP8 needs block scales in .weight_scale_inv"
                            : "need bfloat16, float16, float32 or block-wise FP8 e4m3");
  }

 private:
  bool has(std::string_view suffix) const { return store_.contains(fmt::format("{}.{}", module_, suffix)); }
  const TensorInfo& info(std::string_view suffix) const {
    const std::string name = fmt::format("{}.{}", module_, suffix);
    const TensorInfo* found = store_.find(name);
    if (found == nullptr)
      fail(ErrorKind::kInvalid, "tensor {} is missing: {} needs it", name, to_string(info_of_codes()));
    return *found;
  }
  const TensorInfo& info_of_codes() const {
    for (const char* suffix : {"qweight", "weight_packed", "weight"})
      if (has(suffix)) return store_.info(fmt::format("{}.{}", module_, suffix));
    CHECK_MSG(false, "{} has no codes", module_);
    __builtin_unreachable();
  }

  [[noreturn]] void unsupported(const TensorInfo& what, std::string_view need) const {
    fail(ErrorKind::kUnsupported, "quantised weights: got {}; {}; {}", to_string(what), claim(config_), need);
  }

  void expect(const TensorInfo& tensor, std::vector<Index> dims, std::string_view rule) const {
    if (tensor.dims != dims)
      fail(ErrorKind::kInvalid, "tensor {}: got [{}], need [{}] ({})", tensor.name,
           fmt::join(tensor.dims, ", "), fmt::join(dims, ", "), rule);
  }
  const TensorInfo& words(std::string_view suffix) const {
    const TensorInfo& tensor = info(suffix);
    if (tensor.dtype != DType::kI32 || tensor.dims.size() != 2)
      unsupported(tensor, "need int32 [rows, columns]");
    return tensor;
  }
  const TensorInfo& scales(std::string_view suffix) const {
    const TensorInfo& tensor = info(suffix);
    if (!is_float(tensor.dtype) || tensor.dims.size() != 2)
      unsupported(tensor, "need scales of float16, bfloat16 or float32 [rows, columns]");
    return tensor;
  }

  // The group size behind `groups` scales a row: the config's where it fits, else what divides evenly when
  // the config says nothing.
  Index group_size(const TensorInfo& tensor, Index groups, Index in_features) const {
    std::vector<Index> stated;
    for (const QuantGroup& group : config_.groups) stated.push_back(group.group_size);
    if (config_.group_size != 0 && stated.empty()) stated.push_back(config_.group_size);
    for (Index& size : stated) {
      if (size <= 0) size = in_features;
      if (ceil_div(in_features, size) == groups) return std::min(size, in_features);
    }
    if (groups > 0 && in_features % groups == 0 && stated.empty()) return in_features / groups;
    fail(ErrorKind::kInvalid, "tensor {}: got {} groups of {} inputs, need groups of {}", tensor.name, groups,
         in_features,
         stated.empty() ? std::string("equal size") : fmt::format("{}", fmt::join(stated, " or ")));
  }

  LinearLayout awq_or_gptq() const {
    const TensorInfo& codes = words("qweight");
    const TensorInfo& scale = scales("scales");
    const Index out = scale.dims[1];
    if (config_.bits != 0 && config_.bits != 4)
      unsupported(codes, fmt::format("got {}-bit codes, need 4-bit ones", config_.bits));
    if (codes.dims[1] * kCodesPerWord == out) return awq(codes, scale);
    if (codes.dims[1] == out) return gptq(codes, scale);
    for (const Index per_word : {2, 4, 16})
      if (codes.dims[1] * per_word == out)
        unsupported(codes, fmt::format("got {}-bit codes, need 4-bit ones", 32 / per_word));
    fail(ErrorKind::kInvalid, "tensor {}: got [{}], need [K, {}] (awq) or [K / 8, {}] (gptq) by {}",
         codes.name, fmt::join(codes.dims, ", "), ceil_div(out, kCodesPerWord), out, to_string(scale));
  }

  LinearLayout awq(const TensorInfo& codes, const TensorInfo& scale) const {
    if (config_.quantised() && config_.method != QuantMethod::kAwq)
      unsupported(codes, "the shape is that of awq");
    if (config_.quantised() && config_.format != "gemm")
      unsupported(codes, fmt::format("got awq version {}, need gemm", config_.format));
    LinearLayout layout{
        .form = LinearForm::kAwq, .out_features = scale.dims[1], .in_features = codes.dims[0]};
    layout.group_size = group_size(scale, scale.dims[0], layout.in_features);
    layout.tensors = {codes.name, scale.name};
    if (!config_.quantised() || !config_.symmetric || has("qzeros")) add_column_zeros(layout);
    return layout;
  }

  LinearLayout gptq(const TensorInfo& codes, const TensorInfo& scale) const {
    const bool auto_round = config_.method == QuantMethod::kAutoRound;
    if (config_.method != QuantMethod::kGptq && !auto_round) unsupported(codes, "the shape is that of gptq");
    if (auto_round && config_.format != "auto_round:auto_gptq")
      unsupported(codes, fmt::format("got packing_format {}, need auto_round:auto_gptq", config_.format));
    if (!auto_round && config_.format != "gptq" && config_.format != "gptq_v2")
      unsupported(codes, fmt::format("got checkpoint_format {}, need gptq or gptq_v2", config_.format));
    LinearLayout layout{.form = LinearForm::kGptq,
                        .out_features = scale.dims[1],
                        .in_features = codes.dims[0] * kCodesPerWord};
    layout.group_size = group_size(scale, scale.dims[0], layout.in_features);
    layout.zero_offset = config_.format == "gptq_v2" ? 0 : 1;
    layout.tensors = {codes.name, scale.name};
    add_column_zeros(layout);
    add_group_index(layout, "g_idx", /*needed=*/config_.desc_act);
    return layout;
  }

  void add_column_zeros(LinearLayout& layout) const {
    const TensorInfo& zeros = words("qzeros");
    expect(zeros, {layout.num_groups(), ceil_div(layout.out_features, kCodesPerWord)}, "[groups, N / 8]");
    layout.has_zeros = true;
    layout.tensors.push_back(zeros.name);
  }

  void add_group_index(LinearLayout& layout, std::string_view suffix, bool needed) const {
    if (!needed && !has(suffix)) return;
    const TensorInfo& index = info(suffix);
    if (index.dtype != DType::kI32) unsupported(index, "need int32");
    expect(index, {layout.in_features}, "[K]");
    layout.group_index = index.name;
    layout.tensors.push_back(index.name);
  }

  LinearLayout packed() const {
    const TensorInfo& codes = info("weight_packed");
    if (codes.dtype == DType::kU8) unsupported(codes, "NVFP4 is not read, need int32 words of eight codes");
    words("weight_packed");
    if (config_.quantised() && config_.method != QuantMethod::kCompressedTensors)
      unsupported(codes, "the names are those of compressed-tensors");
    const auto [out, in] = stored_shape();
    if (codes.dims[0] != out)
      fail(ErrorKind::kInvalid, "tensor {}: got {} rows, need {} (weight_shape)", codes.name, codes.dims[0],
           out);
    if (codes.dims[1] != ceil_div(in, kCodesPerWord))
      for (const Index per_word : {2, 4, 16})
        if (codes.dims[1] == ceil_div(in, per_word))
          unsupported(codes, fmt::format("got {}-bit codes, need 4-bit ones", 32 / per_word));
    expect(codes, {out, ceil_div(in, kCodesPerWord)}, "[N, K / 8]");
    const TensorInfo& scale = scales("weight_scale");
    if (scale.dims[0] != out) expect(scale, {out, scale.dims[1]}, "[N, groups]");
    LinearLayout layout{.form = LinearForm::kPacked, .out_features = out, .in_features = in};
    layout.group_size = group_size(scale, scale.dims[1], in);
    layout.tensors = {codes.name, scale.name, info("weight_shape").name};
    if (has("weight_zero_point") || asymmetric_everywhere()) {
      const TensorInfo& zeros = words("weight_zero_point");
      expect(zeros, {ceil_div(out, kCodesPerWord), layout.num_groups()}, "[N / 8, groups]");
      layout.has_zeros = true;
      layout.tensors.push_back(zeros.name);
    }
    const auto by_activation = [](const QuantGroup& group) { return group.actorder == "group"; };
    add_group_index(
        layout, "weight_g_idx",
        !config_.groups.empty() && std::all_of(config_.groups.begin(), config_.groups.end(), by_activation));
    return layout;
  }

  bool asymmetric_everywhere() const {
    return !config_.groups.empty() && std::none_of(config_.groups.begin(), config_.groups.end(),
                                                   [](const QuantGroup& group) { return group.symmetric; });
  }

  // weight_shape, i64 or i32 [2]: the only header-sized values read here.
  std::pair<Index, Index> stored_shape() const {
    const TensorInfo& shape = info("weight_shape");
    expect(shape, {2}, "[N, K]");
    std::pair<Index, Index> dims;
    if (shape.dtype == DType::kI64) {
      const auto* values = store_.view(shape.name).as<int64_t>();
      dims = {values[0], values[1]};
    } else if (shape.dtype == DType::kI32) {
      const auto* values = store_.view(shape.name).as<int32_t>();
      dims = {values[0], values[1]};
    } else {
      unsupported(shape, "need int64 or int32");
    }
    if (dims.first < 1 || dims.second < 1 || dims.first > kMaxTensorDim || dims.second > kMaxTensorDim)
      fail(ErrorKind::kInvalid, "tensor {}: got {} x {}, need positive sizes", shape.name, dims.first,
           dims.second);
    return dims;
  }

  LinearLayout fp8() const {
    const TensorInfo& codes = info("weight");
    const TensorInfo& scale = scales("weight_scale_inv");
    if (codes.dims.size() != 2) unsupported(codes, "need [N, K]");
    if (config_.quantised() && config_.method != QuantMethod::kFp8)
      unsupported(codes, "the names are those of block-wise fp8");
    LinearLayout layout{
        .form = LinearForm::kFp8, .out_features = codes.dims[0], .in_features = codes.dims[1]};
    constexpr Index kUsual = 128;
    layout.scale_rows = config_.block[0] > 0 ? config_.block[0] : kUsual;
    layout.group_size = config_.block[1] > 0 ? config_.block[1] : kUsual;
    expect(scale, {ceil_div(layout.out_features, layout.scale_rows), layout.num_groups()},
           fmt::format("one scale for {} x {}", layout.scale_rows, layout.group_size));
    layout.tensors = {codes.name, scale.name};
    return layout;
  }

  const TensorStore& store_;
  const QuantConfig& config_;
  const std::string& module_;
};

// Python's re.match: anchored at the start. A pattern this dialect cannot read names nothing.
bool matches(const std::string& pattern, const std::string& module) {
  try {
    return std::regex_search(module, std::regex(pattern), std::regex_constants::match_continuous);
  } catch (const std::regex_error&) {
    return false;
  }
}

bool names(QuantMethod method, const std::string& entry, const std::string& module) {
  switch (method) {
    case QuantMethod::kAwq:
    case QuantMethod::kFp8:
      return module.find(entry) != std::string::npos;
    case QuantMethod::kGptq:
      return matches(entry, module);
    default:
      return entry.starts_with("re:") ? matches(entry.substr(3), module) : entry == module;
  }
}

// What a name ends with when its layer may be quantised.
constexpr std::string_view kMarks[] = {"qweight",
                                       "qzeros",
                                       "scales",
                                       "g_idx",
                                       "weight_packed",
                                       "weight_scale",
                                       "weight_shape",
                                       "weight_zero_point",
                                       "weight_g_idx",
                                       "weight_scale_inv",
                                       "weight_scale_2",
                                       "weight_global_scale",
                                       "input_global_scale",
                                       "biases",
                                       "absmax"};

bool is_mark(std::string_view suffix) {
  return std::find(std::begin(kMarks), std::end(kMarks), suffix) != std::end(kMarks);
}

}  // namespace

std::string_view to_string(LinearForm form) {
  constexpr std::string_view kNames[] = {"dense", "awq", "gptq", "compressed-tensors", "fp8"};
  return kNames[static_cast<size_t>(form)];
}

LinearLayout find_linear(const TensorStore& store, const QuantConfig& config, const std::string& module) {
  return Finder(store, config, module).find();
}

bool is_projection(std::string_view module) {
  constexpr std::string_view kNames[] = {"q_proj",  "k_proj",    "v_proj",      "o_proj",    "gate_proj",
                                         "up_proj", "down_proj", "in_proj_qkv", "in_proj_z", "out_proj"};
  const std::string_view last = module.substr(module.rfind('.') + 1);
  return std::find(std::begin(kNames), std::end(kNames), last) != std::end(kNames);
}

bool left_dense(const QuantConfig& config, const std::string& module) {
  return std::any_of(config.ignore.begin(), config.ignore.end(),
                     [&](const std::string& entry) { return names(config.method, entry, module); });
}

QuantSurvey survey_quantisation(const TensorStore& store, const QuantConfig& config,
                                const std::vector<std::string>& tensors) {
  std::set<std::string> modules;  // that bear a mark
  QuantSurvey survey;
  for (const std::string& name : tensors) {
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos) continue;
    const std::string module = name.substr(0, dot);
    const std::string_view suffix = std::string_view(name).substr(dot + 1);
    const TensorInfo& info = store.info(name);
    const bool is_weight = suffix == "weight";
    if (is_mark(suffix) || (is_weight && !is_float(info.dtype))) modules.insert(module);
    if (is_weight && is_projection(module) && is_float(info.dtype) && config.quantised() &&
        !left_dense(config, module))
      survey.dense_against_config.push_back(module);
  }
  for (const std::string& module : modules) {
    LinearLayout layout = find_linear(store, config, module);
    if (layout.form == LinearForm::kDense) continue;
    if (left_dense(config, module)) survey.quantised_against_config.push_back(module);
    survey.quantised.emplace(module, std::move(layout));
  }
  return survey;
}

std::string QuantSurvey::describe() const {
  std::map<std::string, size_t> counts;
  for (const auto& [module, layout] : quantised) {
    const std::string size = layout.form == LinearForm::kFp8
                                 ? fmt::format("{} x {}", layout.scale_rows, layout.group_size)
                             : layout.num_groups() == 1 ? std::string("one group a row")
                                                        : fmt::format("group {}", layout.group_size);
    ++counts[fmt::format("{} ({}{}{})", to_string(layout.form), size, layout.has_zeros ? ", zeros" : "",
                         layout.group_index.empty() ? "" : ", group index")];
  }
  std::string text;
  for (const auto& [kind, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, kind);
  return text;
}

}  // namespace longspan::io
