// out = x W^T for up to 16 rows of x on matrix units: 16-bit floats, weights of the same or FP8 codes. Rows
// of x are A's and rows of the weight B's columns, so that up to 16 rows of x cost the same multiplications.
// Bound by memory. gemv.cc and packed_gemv.cc take what this one does not.
#include "ops/device/gemv_mma.h"

namespace longspan::ops::device {
namespace {

template <class Kernel, class Rows>
Launch how_to_run(const Matmul& args, const Streamed<Rows>& weight, const char* name) {
  return {.name = name,
          .grid = {ceil_div(args.out.dim(1), Kernel::kOutputs)},
          .shared_bytes = Kernel::kSharedBytes,
          .bytes = weight.bytes,
          .flops = 2.0 *
                   static_cast<double>(args.x.dim(0) * args.weight->out_features * args.weight->in_features)};
}

// Two tiles a block; where that leaves few blocks, one.
template <class T, int kHalves, bool kSwiGlu, class Rows>
void run_halves(const Context& context, const Matmul& args, const Streamed<Rows>& weight,
                const Matmul* beside) {
  constexpr int kManyBlocks = 4;  // a unit
  if constexpr (!kSwiGlu)
    if (ceil_div(args.out.dim(1), 2 * kMmaRows) <= kManyBlocks * context.device.info().num_units) {
      using Kernel = MmaGemvKernel<T, Rows, 1, Rows::kScalesOfTile == 1 ? 4 : 3, kHalves, false>;
      if (beside != nullptr) gemv_mma(context, *beside);
      return launch(context.device, how_to_run<Kernel>(args, weight, Rows::kName),
                    gemv_kernel<Kernel, T>(args, weight));
    }
  using Kernel = MmaGemvKernel<T, Rows, 2, 3, kHalves, kSwiGlu>;
  const Launch how = how_to_run<Kernel>(args, weight, kSwiGlu ? Rows::kSwiGluName : Rows::kName);
  const Kernel kernel = gemv_kernel<Kernel, T>(args, weight);
  if constexpr (Rows::kScaled && !kSwiGlu)
    launch_beside<T, kHalves>(context, how, kernel, beside);
  else
    launch(context.device, how, kernel);
}

template <class T, bool kSwiGlu, class Rows>
void run_rows(const Context& context, const Matmul& args, const Streamed<Rows>& weight,
              const Matmul* beside = nullptr) {
  if (args.x.dim(0) <= 8) return run_halves<T, 1, kSwiGlu>(context, args, weight, beside);
  run_halves<T, 2, kSwiGlu>(context, args, weight, beside);
}

template <class T, bool kTileScales, bool kSwiGlu>
void run_codes(const Context& context, const Matmul& args, const CodeRows& rows, const Matmul* beside) {
  const E4M3Rows<T, kTileScales> form{
      rows, rows.groups == 1 ? rows.k / kScaledCodes + 1 : rows.group_size / kScaledCodes};
  run_rows<T, kSwiGlu>(context, args,
                       Streamed<E4M3Rows<T, kTileScales>>{.form = form,
                                                          .rows = {rows.codes, rows.stride},
                                                          .words = rows.stride / 4,
                                                          .bytes = rows.n * rows.row_bytes()},
                       beside);
}
template <class T, bool kSwiGlu>
void run_any_scales(const Context& context, const Matmul& args, const CodeRows& rows, const Matmul* beside) {
  // Up rows begin at any row of a tile where there are not whole ones of gate rows.
  const bool tiles = rows.scale_rows % (2 * kMmaRows) == 0 && rows.groups > 1 &&
                     rows.group_size == kScaledCodes && (!kSwiGlu || args.out.dim(1) % kMmaRows == 0);
  if (tiles) return run_codes<T, true, kSwiGlu>(context, args, rows, beside);
  run_codes<T, false, kSwiGlu>(context, args, rows, beside);
}
template <bool kSwiGlu>
bool run_any_code(const Context& context, const Matmul& args, const CodeRows& rows,
                  const Matmul* beside = nullptr) {
  if (context.device.info().wave != kMmaWave || !takes_words(args.x)) return false;
  if (rows.groups != 1 && rows.group_size % kScaledCodes != 0) return false;
  if (args.x.dtype == DType::kBF16) return run_any_scales<bf16_t, kSwiGlu>(context, args, rows, beside), true;
  if (args.x.dtype == DType::kF16) return run_any_scales<f16_t, kSwiGlu>(context, args, rows, beside), true;
  return false;
}

template <bool kSwiGlu>
bool run_any_type(const Context& context, const Matmul& args) {
  if (context.device.info().wave != kMmaWave) return false;
  if (args.x.dtype == DType::kBF16)
    return run_rows<bf16_t, kSwiGlu>(context, args, plain_rows<bf16_t>(args)), true;
  if (args.x.dtype == DType::kF16)
    return run_rows<f16_t, kSwiGlu>(context, args, plain_rows<f16_t>(args)), true;
  return false;
}

}  // namespace

bool gemv_mma(const Context& context, const Matmul& args) { return run_any_type<false>(context, args); }
bool gemv_mma_swiglu(const Context& context, const Matmul& args) { return run_any_type<true>(context, args); }

bool w8a16_mma(const Context& context, const Matmul& args, const CodeRows& rows, const Matmul* beside) {
  return run_any_code<false>(context, args, rows, beside);
}
bool w8a16_mma_swiglu(const Context& context, const Matmul& args, const CodeRows& rows) {
  return run_any_code<true>(context, args, rows);
}

}  // namespace longspan::ops::device
