// Linear layers: which kernel takes which rows, and rows made fit for 16-byte words.
#include "ops/device/kernels.h"
#include "ops/device/launch.h"
#include "ops/device/quantized_weight.h"
#include "ops/device/weight.h"

namespace longspan::ops::device {
namespace {

constexpr Index kMaxGemvRows = 16;

// [rows, n] of T copied to padded rows; what lies behind n becomes zero.
template <class T>
struct PadRowsKernel {
  static constexpr int kThreads = 256;
  Matrix<T> x;    // [rows, n]
  Matrix<T> out;  // [rows, out.stride]
  int64_t n;

  DEVICE_FN void operator()() const {
    const int64_t row = block_idx().x;
    for (int64_t j = thread_idx(); j < out.stride; j += kThreads)
      out.row(row).put(j, j < n ? x.row(row).get(j) : from_float<T>(0.0f));
  }
};

TensorView padded(const Context& context, const TensorView& x) {
  const Index stride = padded_columns(x.dim(1), x.dtype);
  TensorView out(context.scratch.reserve(static_cast<size_t>(x.dim(0) * stride) * dtype_size(x.dtype)),
                 x.dtype, {x.dim(0), stride});
  dispatch_element(x.dtype, [&]<class T>() {
    launch(context.device, {.name = "pad_rows", .grid = {static_cast<int>(x.dim(0))}},
           PadRowsKernel<T>{matrix<T>(x), matrix<T>(out), x.dim(1)});
  });
  TensorView view(out.data, x.dtype, {x.dim(0), x.dim(1)});
  view.strides[0] = stride;
  return view;
}

Matmul rows_of(const Matmul& args, Index begin, Index count) {
  Matmul part = args;
  part.x = args.x.rows(begin, count);
  part.out = args.out.rows(begin, count);
  return part;
}

Index decode_rows(Index said, Index num_rows) {
  if (said >= 0) return said;
  return num_rows <= kMaxGemvRows ? num_rows : 0;
}

}  // namespace

void matmul(const Context& context, const Matmul& args) {
  const QuantizedDeviceWeight* quantised = quantized_weight(args.weight);
  const DType dtype = quantised != nullptr ? quantised->dtype() : device_weight(args.weight).dtype();
  CHECK_MSG(dtype == args.x.dtype, "[matmul] weight: got {}, need {}", dtype_name(dtype),
            dtype_name(args.x.dtype));
  const Index num_rows = args.x.dim(0);
  if (num_rows == 0) return;
  Matmul all = args;
  if (!takes_words(args.x)) all.x = padded(context, args.x);
  const Index small = decode_rows(args.num_decode_rows, num_rows);
  if (quantised != nullptr) return matmul_quantized(context, all, *quantised, small);
  if (small > 0) gemv(context, rows_of(all, 0, small));
  if (small == num_rows) return;
  const Matmul large = rows_of(all, small, num_rows - small);
  if (!context.library.matmul(large)) gemm(context, large);
}

// Decode rows pass gate_up by; the others go through it.
void matmul_swiglu(const Context& context, const MatmulSwiGlu& args) {
  const QuantizedDeviceWeight* quantised = quantized_weight(args.weight);
  const Index num_rows = args.x.dim(0);
  const Index said = decode_rows(args.num_decode_rows, num_rows);
  Index small = takes_words(args.x) ? said : 0;
  if (quantised != nullptr)
    small = matmul_swiglu_quantized(context, args, *quantised, small);
  else if (small > 0)
    gemv_swiglu(context, {.x = args.x.rows(0, small), .weight = args.weight, .out = args.out.rows(0, small)});
  const Index large = num_rows - small;
  if (large == 0) return;
  const TensorView gate_up = args.gate_up.rows(small, large);
  matmul(context, {.x = args.x.rows(small, large),
                   .num_decode_rows = said - small,
                   .weight = args.weight,
                   .out = gate_up});
  swiglu(context, {.gate_up = gate_up, .out = args.out.rows(small, large)});
}

}  // namespace longspan::ops::device
