// The table behind tile_gemm.h: one entry an instruction set, chosen once at run time. Tests walk the whole
// list.
#pragma once

#include <string_view>
#include <type_traits>
#include <vector>

#include "core/unroll.h"
#include "ops/cpu/tile_gemm.h"

namespace longspan::ops::cpu {

struct CodePanel;  // quantized_kernels.h
struct CodeRows;

template <class T>
using GemmFn = void (*)(const T* a, Index lda, const T* packed, float* c, Index ldc, Index m, Index n,
                        Index k, Accumulate accumulate);
template <class T>
using PackFn = void (*)(const T* b, Index ldb, Index k, Index n, T* packed);
template <class T>
using RoundFn = void (*)(const float* c, Index ldc, const float* bias, T* out, Index ldo, Index m, Index n);
template <class T>
using SwiGluFn = void (*)(const float* c, Index ldc, T* out, Index ldo, Index m, Index n);

// Every function but the last has the contract of its namesake in tile_gemm.h.
template <class T>
struct TypedKernels {
  GemmFn<T> gemm = nullptr;
  PackFn<T> pack_b = nullptr;
  PackFn<T> pack_b_transposed = nullptr;
  RoundFn<T> round_rows = nullptr;
  // out[i, j] = rnd(silu(rnd(gate)) * rnd(up)) for i < m, j < n. Columns of c come in turns: a panel of gate,
  // the same panel of up.
  SwiGluFn<T> swiglu_rows = nullptr;
};

inline constexpr Index kPackedRows = 32;

// out [m, n] = rnd(A B + bias) over rows of A packed beforehand as [m / 32][k / 32][32][32], k padded with
// zeros: gemm and round_rows in one, the same bits. With swiglu_rows: gemm and that.
struct PackedProduct {
  const bf16* rows;
  const bf16* panels;
  Index panel_elems;  // from one panel to the next; one block of 32 rows is twice as long
  const float* bias;  // [n] or nullptr
  bf16* out;
  Index ldo;
  Index m;
  Index n;                     // of out
  SwiGluFn<bf16> swiglu_rows;  // or nullptr
  bool out_past_caches;        // out is larger than the caches: do not read it in only to write it
};

// What a matrix unit offers for bf16; all null without one.
struct MatrixUnit {
  GemmFn<bf16> gemm = nullptr;
  // packed <- a [m, k] as PackedProduct wants it: worth it from a few hundred columns on.
  void (*pack_rows)(const bf16* a, Index lda, Index m, Index k, bf16* packed) = nullptr;
  void (*multiply_packed)(const PackedProduct& args) = nullptr;
  // multiply_panel for up to kCodePanels neighbours of one group size, a multiple of 32 as k is.
  void (*multiply_codes)(const CodePanel* panels, Index num_panels, const CodeRows& rows, float* sums,
                         Index ld_sums) = nullptr;
};
inline constexpr Index kCodePanels = 4;

struct GemmKernels {
  std::string_view name;        // the value of LONGSPAN_CPU_ISA that asks for it
  std::string_view vector_isa;  // runs all but the bf16 product; the same as name without a special one
  TypedKernels<bf16> for_bf16;
  TypedKernels<float> for_float;
  MatrixUnit matrix_unit;
  int64_t simd_target = 0;  // Highway's name of vector_isa

  template <class T>
  const TypedKernels<T>& of() const {
    if constexpr (std::is_same_v<T, float>)
      return for_float;
    else
      return for_bf16;
  }
};

// What this build and this processor can run, best first; the last one always runs.
const std::vector<GemmKernels>& available_kernels();

// The first available one, or the one LONGSPAN_CPU_ISA names (throws kInvalid for a name this machine does
// not have). Fixed at the first call, which holds every Highway kernel of the process to vector_isa.
const GemmKernels& chosen_kernels();

// quantized_amx.cc; what the last member above points to.
void multiply_codes_amx(const CodePanel* panels, Index num_panels, const CodeRows& rows, float* sums,
                        Index ld_sums);

// Null members where the build or the processor lacks the instructions.
MatrixUnit amx();
struct BFloat16Unit {
  GemmFn<bf16> gemm = nullptr;
  RoundFn<bf16> round_rows = nullptr;
  SwiGluFn<bf16> swiglu_rows = nullptr;
  bool beats_float = false;  // its products are faster than fp32 multiply-adds
};
BFloat16Unit avx512bf16();

// Portable kernels, one entry a Highway target of this processor, best first.
std::vector<GemmKernels> portable_kernels();
void use_simd_target(int64_t target);

}  // namespace longspan::ops::cpu
