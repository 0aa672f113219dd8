// What a call of an operation is and costs, from its shapes alone: for profiles and benches. Knows no clock.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ops/ops.h"

namespace longspan::ops {

enum class OpKind : uint8_t {
  kEmbed,
  kGatherRows,
  kRmsNorm,
  kMatmul,
  kSwiGlu,
  kMatmulSwiGlu,
  kRopeAngles,
  kQkRopeWrite,
  kAttention,
  kCausalConv,
  kGatedDelta,
  kBestColumn,
  kDraw,
  kAdvanceInputs
};
inline constexpr size_t kNumOpKinds = 14;
std::string_view to_string(OpKind kind);  // "rms_norm"

// Where a call belongs in a table of where the time went.
enum class OpClass : uint8_t {
  kMatrixProduct,     // more than kSkinnyRows rows
  kSkinnyProduct,     // up to that many: reading the weight is the work
  kSkinnyGateUp,      // of them the products of the MLP's gate and up
  kPrefillAttention,  // any run with a prompt chunk in it
  kDecodeAttention,   // one token a sequence
  kGatedDelta,
  kConv,
  kNorm,
  kRopeAndCache,  // angles, q and k rotated, k and v written
  kRows,          // embeddings, gathers, activations on their own, a step's inputs
  kSampling       // the best column, draws
};
inline constexpr size_t kNumOpClasses = 11;
std::string_view to_string(OpClass op_class);  // "gate/up GEMV"

inline constexpr Index kSkinnyRows = 16;  // as Matmul's decode rows

struct OpWork {
  OpKind kind = OpKind::kEmbed;
  OpClass op_class = OpClass::kRows;
  AttentionPath path = AttentionPath::kUnified;  // of attention
  bool decode = false;                           // attention, conv, GDN: one token a sequence
  int16_t layer = -1;                            // of the model; -1: none, or not told
  int32_t rows = 0;                              // tokens computed
  int32_t n = 0;     // columns of the result: N of a product, heads * head_dim of attention and GDN
  int32_t k = 0;     // K of a product; the longest KV length of attention, 0 where it is not known
  double bytes = 0;  // memory that must move, each input and output once; 0: not known
  double flops = 0;  // 2 a multiply-add, of what the formula needs; 0: not known, or not what it is about
};

// The name calls are gathered under: what is the same in every call of one weight or kernel.
// "matmul 7168x1024", "attention vendor_prefill", "gated_delta decode".
std::string name_of(const OpWork& work);
std::string_view name_of(AttentionPath path);  // "vendor_prefill"

// Whether a call's tables may be read here: attention's work depends on the KV lengths in them.
enum class Tables : uint8_t { kHost, kDevice };

OpWork work_of(const Embed& args, Tables tables);
OpWork work_of(const GatherRows& args, Tables tables);
OpWork work_of(const RmsNorm& args, Tables tables);
OpWork work_of(const Matmul& args, Tables tables);
OpWork work_of(const SwiGlu& args, Tables tables);
OpWork work_of(const MatmulSwiGlu& args, Tables tables);
OpWork work_of(const RopeAngles& args, Tables tables);
OpWork work_of(const QkRopeWrite& args, Tables tables);
// Flops are the causal ones: 4 * head_dim for each visible (query, key) pair and query head.
OpWork work_of(const Attention& args, Tables tables);
OpWork work_of(const CausalConv& args, Tables tables);
// Flops are the recurrent form's, 7 * k_dim * v_dim for a token and value head, also of prompt chunks: the
// chunked form does more of them, but no more work.
OpWork work_of(const GatedDelta& args, Tables tables);
OpWork work_of(const BestColumn& args, Tables tables);
OpWork work_of(const Draw& args, Tables tables);
OpWork work_of(const AdvanceInputs& args, Tables tables);

}  // namespace longspan::ops
