/* The C interface between this program and a library that attends prompt rows: what PrefillLibrary looks for
 * at run time. No header of ours or of a vendor is needed to implement it (deploy/dtk_attention.cc does). */
#pragma once

#include <stddef.h> /* NOLINT(modernize-deprecated-headers): also for C */
#include <stdint.h> /* NOLINT(modernize-deprecated-headers) */

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with the struct, the functions and what they mean. */
#define LONGSPAN_PREFILL_VERSION 1

/* Of `dtype`. */
#define LONGSPAN_PREFILL_F16 1
#define LONGSPAN_PREFILL_BF16 2

/* Causal grouped-query attention of num_seqs sequences over a paged cache. Token i of a sequence's n rows
 * sees positions 0 .. seq_len - n + i; query head h reads KV head h / (num_q_heads / num_kv_heads). All
 * pointers are device memory and belong to the caller; strides count elements, the innermost is 1. T: of
 * dtype. */
struct LongspanPrefill {
  void* stream; /* hipStream_t; all work goes there, and is not waited for */
  int32_t device;
  int32_t dtype;
  const void* q; /* T [num_rows, num_q_heads, head_dim] */
  void* out;     /* T, the same shape */
  int64_t q_row_stride;
  int64_t q_head_stride;
  int64_t out_row_stride;
  int64_t out_head_stride;
  const void* k; /* T [num_pages, page_tokens, num_kv_heads, head_dim], contiguous */
  const void* v; /* T, the same shape, in the same order of pages; it may overlap k's pages */
  int64_t num_pages;
  const int32_t* block_table;     /* [num_seqs, max_pages], contiguous, -1 where unset */
  const int32_t* query_start_loc; /* [num_seqs + 1]: first row of each; the first need not be 0 */
  const int32_t* seq_lens;        /* [num_seqs]: keys of each, this call's rows included */
  int32_t num_rows;               /* no sequence has more */
  int32_t num_seqs;
  int32_t max_pages; /* no sequence has more than page_tokens * max_pages keys */
  int32_t page_tokens;
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  float scale; /* of the scores */
};

/* LONGSPAN_PREFILL_VERSION of the header it was made with. */
int32_t longspan_prefill_version(void);
/* Of what does the work: "hg_prefix_prefill_varlen_fwd, torch 2.9.1". Static memory. */
const char* longspan_prefill_name(void);
/* 0; or another number, nothing being done, and why as text in `error`, cut to error_size bytes with its 0.
 * Throws nothing. Called by one thread at a time. */
int32_t longspan_prefill(const struct LongspanPrefill* call, char* error, size_t error_size);

#ifdef __cplusplus
}
#endif
