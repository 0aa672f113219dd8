// oneDNN's matmul with a weight it reordered to its own liking beforehand.
#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "measure/peaks.h"
#include "yardstick.h"

namespace longspan::bench {
namespace {

using dnnl::memory;

// out [m, n] = x [m, k] w [k, n], all of one type.
dnnl::matmul::primitive_desc describe(memory::data_type type, Index m, Index n, Index k,
                                      const dnnl::engine& engine) {
  const memory::desc x_desc({m, k}, type, memory::format_tag::ab);
  const memory::desc any_weight({k, n}, type, memory::format_tag::any);
  const memory::desc out_desc({m, n}, type, memory::format_tag::ab);
  return {{x_desc, any_weight, out_desc}, engine};
}

bool has_bf16() {
  try {
    describe(memory::data_type::bf16, 64, 64, 64, {dnnl::engine::kind::cpu, 0});
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

}  // namespace

DType yardstick_dtype() {
  static const DType dtype = has_bf16() ? DType::kBF16 : DType::kF32;
  return dtype;
}

double yardstick_seconds(Index m, Index n, Index k, size_t num_weights, double budget_seconds) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto type = yardstick_dtype() == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
  const dnnl::matmul::primitive_desc description = describe(type, m, n, k, engine);
  const dnnl::matmul product(description);
  memory x(description.src_desc(), engine), out(description.dst_desc(), engine);
  std::vector<std::unordered_map<int, memory>> args;
  for (size_t i = 0; i < num_weights; ++i)
    args.push_back({{DNNL_ARG_SRC, x},
                    {DNNL_ARG_WEIGHTS, memory(description.weights_desc(), engine)},
                    {DNNL_ARG_DST, out}});
  for (const auto& each : args)
    for (const auto& [name, memory_object] : each)
      std::memset(memory_object.get_data_handle(), 0, memory_object.get_desc().get_size());
  double best = 1e30;
  const double end = measure::now_seconds() + budget_seconds;
  for (size_t i = 0; i < 3 || measure::now_seconds() < end; ++i) {
    const double start = measure::now_seconds();
    product.execute(stream, args[i % num_weights]);
    stream.wait();
    best = std::min(best, measure::now_seconds() - start);
  }
  return best;
}

}  // namespace longspan::bench
