// A librocblas for tests, as far as rocblas.h knows one: multiplies in host memory, which is the emulator's.
// FAKE_ROCBLAS says what is wrong with it. Solution 3 is wrong, solution 7 right.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <string_view>
#include <thread>
#include <vector>

#include "core/dtype.h"

namespace {

using longspan::bf16;
using longspan::f16;

std::map<int32_t, int64_t> num_calls;  // by solution
int64_t num_other_rows = 0;            // calls with other than 512 rows
bool odd_call = false;

bool has_fault(std::string_view name) {
  const char* const fault = std::getenv("FAKE_ROCBLAS");
  return fault != nullptr && fault == name;
}

float factor(int32_t solution, int32_t row) {
  if (solution == 3 || has_fault("wrong")) return 1.1f;
  if (has_fault("by-position") && row >= 256) return 1.0005f;
  if (has_fault("by-turns") && odd_call) return 1.0005f;
  return 1.0f;
}

struct Rows {
  const void* data;
  int32_t stride;
};

template <class T>
std::vector<float> floats(Rows rows, int32_t count, int32_t k) {
  std::vector<float> values;
  for (int32_t i = 0; i < count; ++i)
    for (int32_t kk = 0; kk < k; ++kk)
      values.push_back(static_cast<float>(static_cast<const T*>(rows.data)[int64_t{i} * rows.stride + kk]));
  return values;
}

template <class T>
void multiply(int32_t n, int32_t m, int32_t k, Rows w, Rows x, void* out, int32_t out_stride,
              int32_t solution) {
  const std::vector<float> a = floats<T>(w, n, k), b = floats<T>(x, m, k);
  for (int32_t i = 0; i < m; ++i)
    for (int32_t j = 0; j < n; ++j) {
      const float* const row = b.data() + int64_t{i} * k;
      const float sum = std::inner_product(row, row + k, a.data() + int64_t{j} * k, 0.0f);
      static_cast<T*>(out)[int64_t{i} * out_stride + j] = T(sum * factor(solution, i));
    }
}

constexpr int32_t kProbeColumns = 64;

}  // namespace

extern "C" {

int64_t fake_num_calls(int32_t solution) { return num_calls[solution]; }
int64_t fake_num_other_rows() { return num_other_rows; }

int rocblas_create_handle(void** handle) {
  *handle = &num_calls;
  return has_fault("no-handle") ? 1 : 0;
}
int rocblas_destroy_handle(void*) { return 0; }
int rocblas_set_stream(void*, void*) { return 0; }
int rocblas_set_atomics_mode(void*, int mode) { return mode == 0 ? 0 : 11; }
int rocblas_get_version_string(char* out, size_t size) {
  std::strncpy(out, "9.8.7", size);
  return 0;
}

#ifndef FAKE_WITHOUT_GEMM
int rocblas_gemm_ex(void*, int a_op, int b_op, int32_t n, int32_t m, int32_t k, const void* alpha,
                    const void* a, int a_type, int32_t lda, const void* b, int, int32_t ldb, const void* beta,
                    const void*, int, int32_t, void* d, int, int32_t ldd, int compute_type, int algo,
                    int32_t solution, uint32_t flags) {
  const bool as_agreed = a_op == 112 && b_op == 111 && compute_type == 151 && flags == 0 &&
                         *static_cast<const float*>(alpha) == 1.0f &&
                         *static_cast<const float*>(beta) == 0.0f && (algo == 1) == (solution > 0);
  if (!as_agreed) return 11;
  ++num_calls[solution];
  if (m != 512) ++num_other_rows;
  odd_call = !odd_call;
  if (has_fault("fails")) return 6;
  if (has_fault("fails-later") && num_calls[solution] > 8) return 6;
  // Longer than the own kernel takes, however busy the machine; the probe's product is none of it.
  if (has_fault("slow") && n != kProbeColumns) std::this_thread::sleep_for(std::chrono::seconds(3));
#ifdef FAKE_WITH_SOLUTIONS
  if (solution == 0 && n != kProbeColumns) return 2;  // one less to be timed
#endif
  if (a_type == 151) multiply<float>(n, m, k, {a, lda}, {b, ldb}, d, ldd, solution);
  if (a_type == 150) multiply<f16>(n, m, k, {a, lda}, {b, ldb}, d, ldd, solution);
  if (a_type == 168) multiply<bf16>(n, m, k, {a, lda}, {b, ldb}, d, ldd, solution);
  return 0;
}
#endif

#ifdef FAKE_WITH_SOLUTIONS
int rocblas_gemm_ex_get_solutions(void*, int, int, int32_t, int32_t, int32_t, const void*, const void*, int,
                                  int32_t, const void*, int, int32_t, const void*, const void*, int, int32_t,
                                  void*, int, int32_t, int, int, uint32_t, int32_t* list, int32_t* size) {
  constexpr int32_t kSolutions[] = {3, -2, 7};
  if (list == nullptr) {
    *size = 3;
    return 0;
  }
  for (int32_t i = 0; i < *size && i < 3; ++i) list[i] = kSolutions[i];
  return 0;
}
#endif

}  // extern "C"
