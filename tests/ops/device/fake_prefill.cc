// A library of prompt attention for tests, as prefill_interface.h has them: the slow formula in host memory,
// which is the emulator's. FAKE_PREFILL says what is wrong with it.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "ops/device/prefill_interface.h"

namespace {

using longspan::bf16;
using longspan::f16;

int64_t num_calls = 0;

bool has_fault(std::string_view name) {
  const char* const fault = std::getenv("FAKE_PREFILL");
  return fault != nullptr && fault == name;
}

struct Row {
  int32_t seq;
  int32_t row;
  int32_t num_keys;
};

template <class T>
class Attend {
 public:
  explicit Attend(const LongspanPrefill& call) : c_(call) {}

  void run() const {
    for (int32_t seq = 0; seq < c_.num_seqs; ++seq) {
      const int32_t first = has_fault("rows-from-zero") ? 0 : c_.query_start_loc[seq];
      const int32_t count = c_.query_start_loc[seq + 1] - c_.query_start_loc[seq];
      for (int32_t i = 0; i < count; ++i) {
        int32_t num_keys = c_.seq_lens[seq] - count + i + 1;
        if (has_fault("no-prefix")) num_keys = i + 1;
        if (has_fault("not-causal")) num_keys = c_.seq_lens[seq];
        if (has_fault("reads-behind")) num_keys = (num_keys + 63) / 64 * 64;
        for (int32_t head = 0; head < c_.num_q_heads; ++head) one({seq, first + i, num_keys}, head, count);
      }
    }
  }

 private:
  const T* token(const void* plane, int32_t seq, int32_t position, int32_t kv_head) const {
    const int32_t page = c_.block_table[seq * c_.max_pages + position / c_.page_tokens];
    if (page < 0 || page >= c_.num_pages) std::abort();
    const int64_t at = int64_t{page} * c_.page_tokens + position % c_.page_tokens;
    return static_cast<const T*>(plane) + (at * c_.num_kv_heads + kv_head) * c_.head_dim;
  }

  void one(const Row& row, int32_t head, int32_t count) const {
    int32_t kv_head = head / (c_.num_q_heads / c_.num_kv_heads);
    if (has_fault("other-head")) kv_head = head % c_.num_kv_heads;
    const T* const q = static_cast<const T*>(c_.q) + row.row * c_.q_row_stride + head * c_.q_head_stride;
    std::vector<float> sum(static_cast<size_t>(c_.head_dim));
    float weights = 0;
    for (int32_t key = 0; key < row.num_keys; ++key) {
      const T* const k = token(c_.k, row.seq, key, kv_head);
      const T* const v = token(c_.v, row.seq, key, kv_head);
      float score = 0;
      for (int32_t i = 0; i < c_.head_dim; ++i) score += static_cast<float>(q[i]) * static_cast<float>(k[i]);
      const float weight = std::exp(score * c_.scale);
      weights += weight;
      for (int32_t i = 0; i < c_.head_dim; ++i)
        sum[static_cast<size_t>(i)] += weight * static_cast<float>(v[i]);
    }
    if (has_fault("by-turns") && num_calls % 2 == 0) weights *= 1.004f;
    if (has_fault("by-count") && count < 65) weights *= 1.004f;
    if (has_fault("by-crowd") && c_.num_seqs > 1) weights *= 1.004f;
    if (has_fault("by-page") && c_.block_table[0] % 4 == 0) weights *= 1.004f;
    T* const out = static_cast<T*>(c_.out) + row.row * c_.out_row_stride + head * c_.out_head_stride;
    for (int32_t i = 0; i < c_.head_dim; ++i) out[i] = T(sum[static_cast<size_t>(i)] / weights);
  }

  const LongspanPrefill& c_;
};

}  // namespace

extern "C" {

int64_t fake_num_calls() { return num_calls; }

int32_t longspan_prefill_version() { return has_fault("old") ? 0 : LONGSPAN_PREFILL_VERSION; }
const char* longspan_prefill_name() { return "fake attention 9.8.7"; }

#ifndef FAKE_WITHOUT_CALL
int32_t longspan_prefill(const LongspanPrefill* call, char* error, size_t error_size) {
  ++num_calls;
  if (has_fault("fails") || (has_fault("fails-later") && num_calls > 7)) {
    std::snprintf(error, error_size, "no kernel for %d tokens a page", call->page_tokens);
    return 3;
  }
  if (has_fault("does-nothing")) return 0;
  if (call->dtype == LONGSPAN_PREFILL_BF16)
    Attend<bf16>(*call).run();
  else
    Attend<f16>(*call).run();
  if (has_fault("writes-more") && call->num_seqs > 1) *static_cast<bf16*>(call->out) = bf16(1);
  return 0;
}
#endif

}  // extern "C"
