// The physical limits products are measured against, on the calling thread or over the pool.
#pragma once

#include "core/buffer.h"
#include "ops/cpu/thread_pool.h"

namespace longspan::bench {

double amx_peak_gflops(double seconds);    // raw TDPBF16PS, one thread; 0 without AMX
double float_peak_gflops(double seconds);  // raw fp32 multiply-add, one thread
double read_gbytes(ops::cpu::ThreadPool& pool, const Buffer& memory);  // GB/s of a plain reader, all threads

double now();  // seconds, steady

}  // namespace longspan::bench
