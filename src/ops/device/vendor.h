// The only file that asks which compiler this is. Device code is one source, compiled as CUDA, as HIP or, for
// the emulator, as plain C++; this header gives all three the same few primitives under the same names.
#pragma once

#include <cstdint>

#include "ops/device/grid.h"

#if defined(__CUDACC__) || defined(__HIPCC__)

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#else
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#endif

// What hopper.h has: the compiler works for sm_90a, or for the host.
#if defined(__CUDACC__) && (defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__))
#define LONGSPAN_HOPPER
#endif

#define DEVICE_FN __device__ __forceinline__
#define HOST_DEVICE_FN __host__ __device__ __forceinline__  // for both sides of the launch

namespace longspan::ops::device {

#if defined(__CUDACC__)
constexpr int kMaxWave = 32;  // lanes
#else
constexpr int kMaxWave = 64;  // and 32 on some
#endif

// Float to 16 bits and back, round to nearest even.
DEVICE_FN float half_to_float(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
DEVICE_FN uint16_t float_to_half(float value) { return __half_as_ushort(__float2half_rn(value)); }
DEVICE_FN float bfloat_to_float(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
DEVICE_FN uint16_t float_to_bfloat(float value) {
#if defined(__CUDACC__)
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
  const uint32_t u = __float_as_uint(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
}

// Two of them, the first in the low half.
DEVICE_FN uint32_t floats_to_bfloats(float low, float high) {
#if defined(__CUDACC__)
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);  // one instruction, unlike two of the above
  return *reinterpret_cast<const uint32_t*>(&pair);
#else
  return float_to_bfloat(low) | static_cast<uint32_t>(float_to_bfloat(high)) << 16;
#endif
}

DEVICE_FN int thread_idx() { return static_cast<int>(threadIdx.x); }
DEVICE_FN Grid block_idx() {
  return {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z)};
}
DEVICE_FN Grid grid_size() {
  return {static_cast<int>(gridDim.x), static_cast<int>(gridDim.y), static_cast<int>(gridDim.z)};
}

// Every thread of the block, or nobody.
DEVICE_FN void block_sync() { __syncthreads(); }

// The same, where threads come from different branches: `num_threads` is the whole block, and waves are
// whole.
DEVICE_FN void block_sync_branches(int num_threads) {
#if defined(__CUDACC__)
  asm volatile("barrier.sync 1, %0;" ::"r"(num_threads) : "memory");
#else
  (void)num_threads;
  __syncthreads();
#endif
}

// Every lane of the wave: orders their accesses to shared memory. NVIDIA's lanes do not run in lock step.
DEVICE_FN void wave_sync() {
#if defined(__CUDACC__)
  __syncwarp();
#else
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
#endif
}

// For kernels with kOverlaps, which start while the kernel before them still runs, where the card can do that
// (sm_90). Before await_previous(), which returns when all earlier kernels are done, they may only read what
// no earlier kernel of the step writes and prefetch: weights, and what was there when the step's first
// operation started (its inputs, states, K and V of earlier tokens), which a copy or advance_inputs precedes,
// and neither overlaps. Every block calls it. release_next() lets the next kernel start, and may come first.
DEVICE_FN void await_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE_FN void release_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// A hint that the line will be read.
DEVICE_FN void prefetch_global(const void* address) {
#if defined(__CUDACC__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#endif
}

// value of lane (lane ^ mask) and of lane `from`; all lanes of the wave take part, `width` of them form a
// group.
template <class T>
DEVICE_FN T shuffle_xor(T value, int mask, int width) {
#if defined(__CUDACC__)
  return __shfl_xor_sync(~0u, value, mask, width);
#else
  return __shfl_xor(value, mask, width);
#endif
}
template <class T>
DEVICE_FN T shuffle(T value, int from, int width) {
#if defined(__CUDACC__)
  return __shfl_sync(~0u, value, from, width);
#else
  return __shfl(value, from, width);
#endif
}

// Sum and maximum over groups of kWidth lanes, the same bits in each lane.
template <int kWidth>
DEVICE_FN float group_sum(float value) {
#pragma unroll
  for (int mask = kWidth / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask, kWidth);
  return value;
}
template <int kWidth>
DEVICE_FN float group_max(float value) {
#pragma unroll
  for (int mask = kWidth / 2; mask > 0; mask /= 2) value = fmaxf(value, shuffle_xor(value, mask, kWidth));
  return value;
}

// Memory. kBytes is 1, 2, 4, 8 or 16 and the address a multiple of it.
template <int kBytes>
struct Words;
template <>
struct Words<1> {
  using Type = uint8_t;
};
template <>
struct Words<2> {
  using Type = uint16_t;
};
template <>
struct Words<4> {
  using Type = uint32_t;
};
template <>
struct Words<8> {
  using Type = uint2;
};
template <>
struct Words<16> {
  using Type = uint4;
};
template <class T>
DEVICE_FN T plain_load(const void* address) {
  using Word = typename Words<sizeof(T)>::Type;
  T value;
  *reinterpret_cast<Word*>(&value) = *static_cast<const Word*>(address);
  return value;
}
template <class T>
DEVICE_FN void plain_store(void* address, T value) {
  using Word = typename Words<sizeof(T)>::Type;
  *static_cast<Word*>(address) = *reinterpret_cast<const Word*>(&value);
}
template <class T>
DEVICE_FN T load_global(const void* address) {
  return plain_load<T>(address);
}
// Data that is read once: weights.
template <class T>
DEVICE_FN T load_stream(const void* address) {
#if defined(__CUDACC__)
  using Word = typename Words<sizeof(T)>::Type;
  T value;
  *reinterpret_cast<Word*>(&value) = __ldcs(static_cast<const Word*>(address));
  return value;
#else
  return plain_load<T>(address);
#endif
}
template <class T>
DEVICE_FN void store_global(void* address, T value) {
  plain_store(address, value);
}
template <class T>
DEVICE_FN T load_shared(const void* address) {
  return plain_load<T>(address);
}
template <class T>
DEVICE_FN void store_shared(void* address, T value) {
  plain_store(address, value);
}

// One more, from many threads.
DEVICE_FN void add_global(int64_t* address, int64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
}
DEVICE_FN void add_global(uint32_t* address, uint32_t value) { atomicAdd(address, value); }

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
constexpr bool kConvertsE4M3 = true;  // one instruction for e4m3_pair_to_halves()
#else
constexpr bool kConvertsE4M3 = false;
#endif
#if !defined(__CUDACC__)
__device__ uint32_t e4m3_pair_to_halves(uint16_t);  // has no body: nobody asks
#endif

// 2^x and 1 / x to 22 bits; 0 for what is smaller than 2^-126.
#if defined(__CUDACC__)
DEVICE_FN float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE_FN float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#else
DEVICE_FN float exp2_approx(float x) { return exp2f(x); }
DEVICE_FN float reciprocal_approx(float x) { return __builtin_amdgcn_rcpf(x); }
#endif

#if defined(__CUDACC__)
// Two e4m3 codes as two f16, exactly, the first in the low half.
DEVICE_FN uint32_t e4m3_pair_to_halves(uint16_t codes) {
  const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3);
  return pair.x | static_cast<uint32_t>(pair.y) << 16;
}
// Two differences at once.
DEVICE_FN uint32_t subtract_bf16_pairs(uint32_t a, uint32_t b) {
  const __nv_bfloat162 difference =
      __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&difference);
}
DEVICE_FN uint32_t subtract_f16_pairs(uint32_t a, uint32_t b) {
  const __half2 difference =
      __hsub2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&difference);
}
// Matrix units and copies that pass by the registers; mma.h and its kernels are not compiled for HIP.

DEVICE_FN uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
// Four 8 x 8 matrices of 16-bit elements; lane 8 i + r names row r of matrix i. A lane gets elements 2t and
// 2t + 1 of row g of each (g = lane / 4, t = lane % 4); of the transposed, of column g.
DEVICE_FN void load_matrices(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}
DEVICE_FN void load_matrices_transposed(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}
DEVICE_FN void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE_FN void mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// 16 bytes from global to shared memory, or 16 zeros. They are there after wait_copies() of this thread, and
// for other threads after a block_sync() behind that.
DEVICE_FN void copy_async(void* shared, const void* global, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(present ? 16 : 0)
               : "memory");
}
DEVICE_FN void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the last kOpen commits are there.
template <int kOpen>
DEVICE_FN void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}
#endif

// The block's shared memory, as many bytes as the launch said.
DEVICE_FN char* shared_memory() {
  extern __shared__ uint4 shared_words[];
  return reinterpret_cast<char*>(shared_words);
}
DEVICE_FN void check_shared(size_t) {}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads) run_kernel(const Kernel kernel) {
  kernel();
}

// The vendor's runtime under one set of names.
namespace api {
#if defined(__CUDACC__)
using Error = cudaError_t;
using Stream = cudaStream_t;
using Event = cudaEvent_t;
using Graph = cudaGraph_t;
using Recorded = cudaGraphExec_t;
using Properties = cudaDeviceProp;
constexpr Error kSuccess = cudaSuccess;
constexpr const char* kName = "cuda";
inline const char* error_text(Error error) { return cudaGetErrorString(error); }
inline Error last_error() { return cudaGetLastError(); }
inline Error num_devices(int* count) { return cudaGetDeviceCount(count); }
inline Error set_device(int index) { return cudaSetDevice(index); }
inline Error properties(Properties* out, int index) { return cudaGetDeviceProperties(out, index); }
inline Error allocate(void** out, size_t bytes) { return cudaMalloc(out, bytes); }
inline Error free(void* pointer) { return cudaFree(pointer); }
inline Error memory(size_t* free_bytes, size_t* total) { return cudaMemGetInfo(free_bytes, total); }
inline Error copy(void* to, const void* from, size_t bytes, Stream stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}
inline Error fill(void* to, int byte, size_t bytes, Stream stream) {
  return cudaMemsetAsync(to, byte, bytes, stream);
}
inline Error make_stream(Stream* out) { return cudaStreamCreateWithFlags(out, cudaStreamNonBlocking); }
inline Error destroy(Stream stream) { return cudaStreamDestroy(stream); }
inline Error wait(Stream stream) { return cudaStreamSynchronize(stream); }
inline Error make_event(Event* out) { return cudaEventCreate(out); }
inline Error destroy(Event event) { return cudaEventDestroy(event); }
inline Error record(Event event, Stream stream) { return cudaEventRecord(event, stream); }
inline Error wait(Event event) { return cudaEventSynchronize(event); }
inline Error elapsed_ms(float* out, Event from, Event to) { return cudaEventElapsedTime(out, from, to); }
inline Error begin_capture(Stream stream) {
  return cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
}
inline Error end_capture(Graph* out, Stream stream) { return cudaStreamEndCapture(stream, out); }
// Nodes of the graph that is being captured; 0 where none is.
inline Error num_captured(Stream stream, size_t* out) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Graph graph = nullptr;
#if CUDART_VERSION >= 13000
  const Error error = cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph);
#else
  const Error error = cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph);
#endif
  return error == kSuccess && graph != nullptr ? cudaGraphGetNodes(graph, nullptr, out) : error;
}
inline Error instantiate(Recorded* out, Graph graph) { return cudaGraphInstantiate(out, graph, 0); }
inline Error launch(Recorded recorded, Stream stream) { return cudaGraphLaunch(recorded, stream); }
inline Error destroy(Graph graph) { return cudaGraphDestroy(graph); }
inline Error destroy(Recorded recorded) { return cudaGraphExecDestroy(recorded); }
// Shared memory beyond the default needs permission, once a kernel.
template <class Kernel>
Error allow_shared(size_t bytes) {
  return cudaFuncSetAttribute(run_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}
#else
using Error = hipError_t;
using Stream = hipStream_t;
using Event = hipEvent_t;
using Graph = hipGraph_t;
using Recorded = hipGraphExec_t;
using Properties = hipDeviceProp_t;
constexpr Error kSuccess = hipSuccess;
constexpr const char* kName = "hip";
inline const char* error_text(Error error) { return hipGetErrorString(error); }
inline Error last_error() { return hipGetLastError(); }
inline Error num_devices(int* count) { return hipGetDeviceCount(count); }
inline Error set_device(int index) { return hipSetDevice(index); }
inline Error properties(Properties* out, int index) { return hipGetDeviceProperties(out, index); }
inline Error allocate(void** out, size_t bytes) { return hipMalloc(out, bytes); }
inline Error free(void* pointer) { return hipFree(pointer); }
inline Error memory(size_t* free_bytes, size_t* total) { return hipMemGetInfo(free_bytes, total); }
inline Error copy(void* to, const void* from, size_t bytes, Stream stream) {
  return hipMemcpyAsync(to, from, bytes, hipMemcpyDefault, stream);
}
inline Error fill(void* to, int byte, size_t bytes, Stream stream) {
  return hipMemsetAsync(to, byte, bytes, stream);
}
inline Error make_stream(Stream* out) { return hipStreamCreateWithFlags(out, hipStreamNonBlocking); }
inline Error destroy(Stream stream) { return hipStreamDestroy(stream); }
inline Error wait(Stream stream) { return hipStreamSynchronize(stream); }
inline Error make_event(Event* out) { return hipEventCreate(out); }
inline Error destroy(Event event) { return hipEventDestroy(event); }
inline Error record(Event event, Stream stream) { return hipEventRecord(event, stream); }
inline Error wait(Event event) { return hipEventSynchronize(event); }
inline Error elapsed_ms(float* out, Event from, Event to) { return hipEventElapsedTime(out, from, to); }
inline Error begin_capture(Stream stream) {
  return hipStreamBeginCapture(stream, hipStreamCaptureModeThreadLocal);
}
inline Error end_capture(Graph* out, Stream stream) { return hipStreamEndCapture(stream, out); }
inline Error num_captured(Stream, size_t*) { return kSuccess; }  // nobody asks: there are no kernel times
inline Error instantiate(Recorded* out, Graph graph) {
  return hipGraphInstantiate(out, graph, nullptr, nullptr, 0);
}
inline Error launch(Recorded recorded, Stream stream) { return hipGraphLaunch(recorded, stream); }
inline Error destroy(Graph graph) { return hipGraphDestroy(graph); }
inline Error destroy(Recorded recorded) { return hipGraphExecDestroy(recorded); }
template <class Kernel>
Error allow_shared(size_t) {
  return kSuccess;  // all of the 64 KiB is there
}
#endif
// Compute capability as "sm_90"; the first field of gcnArchName ("gfx936:sramecc+:xnack-") on HIP.
inline const char* arch_text(const Properties& properties, char (&out)[256]) {
#if defined(__CUDACC__)
  int n = 0;
  for (const char* p = "sm_"; *p != '\0'; ++p) out[n++] = *p;
  if (properties.major >= 10) out[n++] = static_cast<char>('0' + properties.major / 10);
  out[n++] = static_cast<char>('0' + properties.major % 10);
  out[n++] = static_cast<char>('0' + properties.minor);
#else
  int n = 0;
  for (const char* p = properties.gcnArchName; *p != '\0' && *p != ':'; ++p) out[n++] = *p;
#endif
  out[n] = '\0';
  return out;
}
inline size_t max_shared_bytes(const Properties& properties) {
#if defined(__CUDACC__)
  return properties.sharedMemPerBlockOptin;
#else
  return properties.sharedMemPerBlock;
#endif
}

// For people. 0 where the runtime does not say.
struct Version {
  int major = 0;
  int minor = 0;
  int patch = 0;
};
#if defined(__CUDACC__)
inline int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, index) == cudaSuccess ? value : 0;
}
inline int clock_khz(int index) { return attribute(cudaDevAttrClockRate, index); }
inline int memory_clock_khz(int index) { return attribute(cudaDevAttrMemoryClockRate, index); }
inline const char* full_arch(const Properties&) { return ""; }
inline Version version_of(int number) { return {number / 1000, number % 1000 / 10, 0}; }
inline Version driver_version() {
  int number = 0;
  return cudaDriverGetVersion(&number) == cudaSuccess ? version_of(number) : Version();
}
inline Version runtime_version() {
  int number = 0;
  return cudaRuntimeGetVersion(&number) == cudaSuccess ? version_of(number) : Version();
}
#else
inline int attribute(hipDeviceAttribute_t which, int index) {
  int value = 0;
  return hipDeviceGetAttribute(&value, which, index) == hipSuccess ? value : 0;
}
inline int clock_khz(int index) { return attribute(hipDeviceAttributeClockRate, index); }
inline int memory_clock_khz(int index) { return attribute(hipDeviceAttributeMemoryClockRate, index); }
inline const char* full_arch(const Properties& properties) { return properties.gcnArchName; }
inline Version version_of(int number) { return {number / 10000000, number / 100000 % 100, number % 100000}; }
inline Version driver_version() {
  int number = 0;
  return hipDriverGetVersion(&number) == hipSuccess ? version_of(number) : Version();
}
inline Version runtime_version() {
  int number = 0;
  return hipRuntimeGetVersion(&number) == hipSuccess ? version_of(number) : Version();
}
#endif
}  // namespace api

#if defined(__CUDACC__)
// Whether the current device lets a kernel begin before the one in front of it ends. One answer for all
// devices of a process: cards of one machine are alike.
inline bool can_overlap() {
  static const bool can = [] {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           major >= 9;
  }();
  return can;
}

template <class Kernel>
constexpr bool overlaps() {
  if constexpr (requires { Kernel::kOverlaps; })
    return Kernel::kOverlaps;
  else
    return false;
}

template <class Kernel>
api::Error start_overlapping(const Kernel& kernel, dim3 blocks, size_t shared_bytes, void* stream) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(Kernel::kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<api::Stream>(stream);
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, run_kernel<Kernel>, kernel);
}
#endif

// Puts one kernel into the stream.
template <class Kernel>
api::Error start_kernel(const Kernel& kernel, const char*, Grid grid, int, size_t shared_bytes,
                        void* stream) {
  static size_t allowed = size_t{48} << 10;
  if (shared_bytes > allowed) {
    if (const api::Error error = api::allow_shared<Kernel>(shared_bytes); error != api::kSuccess)
      return error;
    allowed = shared_bytes;
  }
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                    static_cast<unsigned>(grid.z));
#if defined(__CUDACC__)
  if constexpr (overlaps<Kernel>())
    if (can_overlap()) return start_overlapping(kernel, blocks, shared_bytes, stream);
#endif
  run_kernel<Kernel><<<blocks, Kernel::kThreads, shared_bytes, static_cast<api::Stream>(stream)>>>(kernel);
  return api::last_error();
}

}  // namespace longspan::ops::device

#else
#include "ops/device/emulator.h"
#endif
