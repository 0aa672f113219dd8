// The physical limits of this machine that work is measured against: what nothing can beat, whatever it
// computes. Raw loops over a pool; no kernel of Longspan.
#pragma once

#include <functional>

#include "core/buffer.h"
#include "core/thread_pool.h"

namespace longspan::measure {

// One pass of all threads at once. bf16 products of AMX tiles and fp32 multiply-adds in registers, GFLOP/s; a
// plain reader, and a copy from one half to the other, each byte counted twice, GB/s.
double amx_gflops(ThreadPool& pool);  // 0 without AMX
double float_gflops(ThreadPool& pool);
double read_gbytes(ThreadPool& pool, const Buffer& memory);
double copy_gbytes(ThreadPool& pool, const Buffer& memory);
constexpr int kTasksPerThread = 4;  // of a pass in registers

double now_seconds();                                                 // steady
double best_of(double seconds, const std::function<double()>& pass);  // of passes for so long, one at least

}  // namespace longspan::measure
