// What the device backend's files offer each other: one function an operation, put into the device's stream.
#pragma once

#include "ops/device/gemm_library.h"
#include "ops/device/runtime.h"
#include "ops/ops.h"

namespace longspan::ops::device {

// Memory for what lives between the kernels of one operation. Grows on first use of a shape and is kept.
class Scratch {
 public:
  explicit Scratch(Device& device) : device_(device) {}

  // At least size_bytes, 256-byte aligned, valid until the next call. Contents are arbitrary.
  void* reserve(size_t size_bytes) {
    if (buffer_.size_bytes() < size_bytes) {
      device_.wait();  // kernels in flight use the old one
      ++num_moves_;
      buffer_ = {};
      buffer_ = device_.allocate(DType::kU8, {static_cast<Index>(size_bytes)});
    }
    return buffer_.data();
  }
  int64_t num_moves() const { return num_moves_; }  // what was recorded before a move works in old memory

 private:
  Device& device_;
  int64_t num_moves_ = 0;
  Buffer buffer_;
};

class DequantWorkspace;
class PrefillLibrary;

struct Context {
  Device& device;
  Scratch& scratch;
  Scratch& tables;  // small arrays from the host
  GemmLibrary& library;
  PrefillLibrary& prefill_library;
  DequantWorkspace& dequantised;
  ThreadPool& pool;             // of the host, that pack weights
  TensorView unpacked_kv;       // u8, of unpacked_kv_bytes(), or empty
  bool dequant_prefill = true;  // prompt rows have quantised weights unpacked once
  int decode_segments = 0;      // parts of one decode attention, at most; 0: by the number of heads
};

std::unique_ptr<Weight> pack(const Context& context, std::span<const TensorView> parts,
                             DType dtype);  // weight.cc
std::unique_ptr<Weight> pack_quantized(const Context& context, std::span<const WeightPart> parts, DType dtype,
                                       Packing packing);  // quantized_weight.cc
std::unique_ptr<Weight> pack_random(const Context& context, std::span<const RandomRows> parts,
                                    Index in_features, DType stored, DType dtype,
                                    float deviation);  // random.cc

void embed(const Context& context, const Embed& args);  // rows.cc
void gather_rows(const Context& context, const GatherRows& args);
// out T [m, k] = x[i, column_of[j]], 0 where that is -1; column_of: i32 [k]. Rows of out are whole words.
void gather_columns(const Context& context, const TensorView& x, const TensorView& column_of,
                    const TensorView& out);
void rms_norm(const Context& context, const RmsNorm& args);
void swiglu(const Context& context, const SwiGlu& args);
void best_column(const Context& context, const BestColumn& args);  // best_column.cc
void draw(const Context& context, const Draw& args);               // draw.cc
// The same of long rows of 16-bit floats in whole words; false, and nothing done, for others. draw_counted.cc
bool draw_counted(const Context& context, const Draw& args);
void advance_inputs(const Context& context, const AdvanceInputs& args);  // advance_inputs.cc

void matmul(const Context& context, const Matmul& args);  // matmul.cc
void gemv(const Context& context, const Matmul& args);    // gemv.cc: any number of rows, 16 at a time
// The same, out [m, N / 2] = rnd(silu(gate) * up) of both halves of x W^T, each rounded.
void gemv_swiglu(const Context& context, const Matmul& args);
// Both on matrix units, up to 16 rows; false, and nothing done, where there are none for this call.
// gemv_mma.cc or gemv_mma_none.cc.
bool gemv_mma(const Context& context, const Matmul& args);
bool gemv_mma_swiglu(const Context& context, const Matmul& args);
void matmul_swiglu(const Context& context, const MatmulSwiGlu& args);  // matmul.cc
void gemm(const Context& context, const Matmul& args);                 // gemm.cc

class QuantizedDeviceWeight;  // quantized_weight.h
void matmul_quantized(const Context& context, const Matmul& args, const QuantizedDeviceWeight& weight,
                      Index num_decode);
// The fused product of decode rows with SwiGLU in its epilogue: how many of the first num_decode it took.
Index matmul_swiglu_quantized(const Context& context, const MatmulSwiGlu& args,
                              const QuantizedDeviceWeight& weight, Index num_decode);
struct CodeRows;                  // code_rows.h
constexpr Index kFusedRows = 16;  // of x that a fused product takes, at most
void packed_gemv(const Context& context, const Matmul& args, const CodeRows& rows,
                 CodeKind kind);  // packed_gemv.cc
// 4-bit and FP8 rows on matrix units; false, and nothing done, where there are none for this call.
// w4a16_mma.cc and gemv_mma.cc, or w4a16_mma_none.cc and gemv_mma_none.cc.
// beside: null, or the product of the same rows of x with a plain weight of few rows, for the same launch.
bool w4a16_mma(const Context& context, const Matmul& args, const CodeRows& rows, const Matmul* beside);
bool w8a16_mma(const Context& context, const Matmul& args, const CodeRows& rows, const Matmul* beside);
bool w4a16_mma_swiglu(const Context& context, const Matmul& args, const CodeRows& rows);  // as gemv_swiglu()
bool w8a16_mma_swiglu(const Context& context, const Matmul& args, const CodeRows& rows);
// out T [num_rows, stride] = rows first_row .. of the weight; dequantize.cc
void dequantize(const Context& context, const CodeRows& rows, CodeKind kind, Index first_row,
                const TensorView& out);

void read_memory(const Context& context, const TensorView& view);  // read_memory.cc

void rope_angles(const Context& context, const RopeAngles& args);  // rope.cc
void qk_rope_write(const Context& context, const QkRopeWrite& args);

void attention(const Context& context, const Attention& args);          // attention.cc
void attention_decode(const Context& context, const Attention& args);   // attention_decode.cc
void attention_prefill(const Context& context, const Attention& args);  // attention_prefill.cc
// Puts K and V of a prompt chunk's FP8 cache into context.unpacked_kv, and args on them; leaves args where
// there is no room, or no gain. The same bits either way. unpack_kv.cc
void unpack_kv(const Context& context, Attention& args);

// On matrix units; false, and nothing done, where there are none for this shape. attention_mma.cc and
// attention_decode_mma.cc or attention_mma_none.cc.
bool attention_mma(const Context& context, const Attention& args);

// On Hopper's matrix units, the same bits; false, and nothing done, where there are none for this call.
// attention_wgmma.cc or attention_wgmma_none.cc.
struct PrefillShape;  // backend.h
bool has_attention_wgmma(const DeviceInfo& device, const PrefillShape& shape);
bool attention_wgmma(const Context& context, const Attention& args);
struct Partials;  // decode_segments.h
bool attention_decode_mma(const Context& context, const Attention& args, const Partials& partials);

void causal_conv(const Context& context, const CausalConv& args);  // conv.cc
void conv_decode(const Context& context, const CausalConv& args);  // conv_decode.cc
void gated_delta(const Context& context, const GatedDelta& args);  // gdn.cc
void gdn_decode(const Context& context, const GatedDelta& args);   // gdn_decode.cc
void gdn_prefill(const Context& context, const GatedDelta& args);  // gdn_prefill.cc

// Prompt chunks on matrix units; false, and nothing done, where there are none for this shape. gdn_mma.cc or
// gdn_mma_none.cc.
bool gdn_mma(const Context& context, const GatedDelta& args);

}  // namespace longspan::ops::device
