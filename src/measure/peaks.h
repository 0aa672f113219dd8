// The physical limits of this machine that work is measured against: what nothing can beat, whatever it
// computes. Raw loops on the calling thread or over a pool; no kernel of Longspan.
#pragma once

#include "core/buffer.h"
#include "ops/cpu/thread_pool.h"

namespace longspan::measure {

double amx_peak_gflops(double seconds);    // raw TDPBF16PS, one thread; 0 without AMX
double float_peak_gflops(double seconds);  // raw fp32 multiply-add, one thread
// One pass of all threads, GB/s. A plain reader; a copy from one half to the other, each byte counted twice.
double read_gbytes(ops::cpu::ThreadPool& pool, const Buffer& memory);
double copy_gbytes(ops::cpu::ThreadPool& pool, const Buffer& memory);

double now_seconds();  // steady

}  // namespace longspan::measure
