// What Hopper (sm_90a) has beside mma.h: products of a group of four waves that run on their own (wgmma), the
// engine that copies tiles, barriers in shared memory on which both are awaited, registers that move between
// groups. Only files that are compiled for sm_90a include it.
//
// A tile in shared memory is made of panels: 64 columns of 16 bits, so rows of 128 bytes, in which the
// 16-byte words of row r lie at word ^ (r % 8); a panel starts at a multiple of kPanelAlignment. A group's
// lane l of wave w holds what mma.h says of rows 16 w .. 16 w + 15.
#pragma once

#include <cudaTypedefs.h>

#include "ops/device/mma.h"

namespace longspan::ops::device {

constexpr int kGroupThreads = 128;
constexpr int kPanelCols = 64;
constexpr int kPanelRowBytes = 128;
constexpr int kPanelAlignment = 1024;

// Kernels with kWholeUnit have a multiprocessor for themselves: as many registers as there are, and arguments
// that the copy engine reads where they are. Those with kPairs as well run in pairs of blocks, 2 x and 2 x +
// 1, that see each other's shared memory.
template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1) run_whole_unit(const __grid_constant__ Kernel kernel) {
  kernel();
}
template <class Kernel>
requires(Kernel::kWholeUnit) api::Error
    start_kernel(const Kernel& kernel, const char*, Grid grid, int, size_t shared_bytes, void* stream) {
  static const api::Error allowed =
      cudaFuncSetAttribute(run_whole_unit<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(Kernel::kSharedBytes));
  if (allowed != api::kSuccess) return allowed;
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  if constexpr (requires { Kernel::kPairs; }) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {2, 1, 1};
  }
  if constexpr (overlaps<Kernel>()) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  config.gridDim =
      dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z));
  config.blockDim = dim3(Kernel::kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<api::Stream>(stream);
  config.attrs = attributes;
  return cudaLaunchKernelEx(&config, run_whole_unit<Kernel>, kernel);
}

// A tensor of up to five dimensions, innermost first, as boxes that the copy engine brings into panels. False
// where the driver cannot.
struct BoxTensor {
  CUtensorMapDataType type;
  void* data;
  cuuint64_t shape[5];
  cuuint64_t stride_bytes[4];  // of all but the first
  cuuint32_t box[5];           // box[0] is kPanelCols
};
inline bool describe_boxes(const BoxTensor& tensor, CUtensorMap& map) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const bool there = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                        cudaEnableDefault, &found) == cudaSuccess;
    return there ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function) : nullptr;
  }();
  constexpr cuuint32_t kSteps[] = {1, 1, 1, 1, 1};
  return encode != nullptr &&
         encode(&map, tensor.type, 5, tensor.data, tensor.shape, tensor.stride_bytes, tensor.box, kSteps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

#if defined(LONGSPAN_HOPPER)

DEVICE_FN char* align_panels(char* shared) {
  return shared + (kPanelAlignment - shared_address(shared) % kPanelAlignment) % kPanelAlignment;
}

// Byte of column `col` (a multiple of 8) of row `row` of a panel.
DEVICE_FN int panel_byte(int row, int col) { return row * kPanelRowBytes + ((col / 8 ^ row % 8) * 16); }

// Barriers in shared memory. A phase ends when all arrivals and all announced bytes are there.
DEVICE_FN void init_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// After init_barrier(), before others use them.
DEVICE_FN void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE_FN void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
DEVICE_FN void arrive_with_bytes(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Until the phase of this parity is over; phases alternate, the first is 0.
DEVICE_FN void wait_barrier(uint64_t* barrier, int parity) {
  asm volatile(
      "{.reg .pred done; again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1; @!done bra again;}" ::"r"(
          shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Pairs of blocks. Both wait for each other, all threads.
DEVICE_FN void pair_sync() {
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}
// Where block `rank` of the pair has what lies at `shared` in this one.
DEVICE_FN uint32_t pair_address(const void* shared, int rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(shared)), "r"(rank));
  return address;
}
// Its bytes, 8, arrive at the barrier, which is of the same block.
DEVICE_FN void store_pair(uint32_t address, float a, float b, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
          address),
      "f"(a), "f"(b), "r"(barrier)
      : "memory");
}
// arrive() at a barrier of either block. Says that something was read; of what was written it orders nothing
// between blocks.
DEVICE_FN void arrive_pair(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Threads that meet: `id` 1 .. 15, whole waves, num_threads of both kinds together.
DEVICE_FN void meet(int id, int num_threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}
DEVICE_FN void announce(int id, int num_threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

// What this thread wrote to shared memory, for products and copies of tiles.
DEVICE_FN void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers a thread, from here on; all threads of the group.
template <int kCount>
DEVICE_FN void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
DEVICE_FN void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// One box of a five-dimensional tensor, its first element at `at`, to shared memory; its bytes arrive at the
// barrier.
struct BoxIndex {
  int v[5];
};
DEVICE_FN void copy_box(void* to, const CUtensorMap& tensor, const BoxIndex& at, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(to)),
      "l"(&tensor), "r"(shared_address(barrier)), "r"(at.v[0]), "r"(at.v[1]), "r"(at.v[2]), "r"(at.v[3]),
      "r"(at.v[4])
      : "memory");
}

// The same to both blocks of a pair, at the same place in each; each one's barrier gets the bytes.
DEVICE_FN void copy_box_pair(void* to, const CUtensorMap& tensor, const BoxIndex& at, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(shared_address(to)),
      "l"(&tensor), "r"(shared_address(barrier)), "r"(at.v[0]), "r"(at.v[1]), "r"(at.v[2]), "r"(at.v[3]),
      "r"(at.v[4]), "h"(static_cast<uint16_t>(3))
      : "memory");
}
// To the second-level cache.
DEVICE_FN void prefetch_box(const CUtensorMap& tensor, const BoxIndex& at) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(&tensor),
               "r"(at.v[0]), "r"(at.v[1]), "r"(at.v[2]), "r"(at.v[3]), "r"(at.v[4])
               : "memory");
}

// A piece of memory in one, `bytes` a multiple of 16; its bytes arrive at the barrier.
DEVICE_FN void copy_piece(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

DEVICE_FN void copy_piece_pair(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"(static_cast<uint16_t>(3))
      : "memory");
}
DEVICE_FN void prefetch_piece(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// The inverse of load_matrices_transposed().
DEVICE_FN void store_matrices_transposed(void* row, const uint32_t (&v)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
      "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
      : "memory");
}

// What a product reads in shared memory.
struct PanelOperand {
  uint64_t bits;
  DEVICE_FN PanelOperand at(int byte) const { return {bits + static_cast<uint64_t>(byte / 16)}; }
};
// Rows of B [16, N], N columns in panels that lie `panel_bytes` apart.
DEVICE_FN PanelOperand panel_depth(const void* panel, int panel_bytes) {
  return {(shared_address(panel) & 0x3ffffu) >> 4 | static_cast<uint64_t>(panel_bytes / 16) << 16 |
          static_cast<uint64_t>(8 * kPanelRowBytes / 16) << 32 | uint64_t{1} << 62};
}
// Rows of A [64, 16], or columns of B [16, 64], in one panel.
DEVICE_FN PanelOperand panel_rows(const void* panel) { return panel_depth(panel, 16); }

// Columns of B [16, N] without panels: 8 x 8 blocks of 128 bytes, those of rows 0 .. 7 one after the other,
// those of rows 8 .. 15 half_bytes behind them.
DEVICE_FN PanelOperand block_rows(const void* blocks, int half_bytes) {
  return {(shared_address(blocks) & 0x3ffffu) >> 4 | static_cast<uint64_t>(half_bytes / 16) << 16 |
          static_cast<uint64_t>(128 / 16) << 32};
}

// Products run until awaited; their registers must not be touched before.
DEVICE_FN void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE_FN void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the last kOpen commits are done.
template <int kOpen>
DEVICE_FN void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOpen) : "memory");
}
// The compiler does not move uses of c over this.
template <int kCount>
DEVICE_FN void hold(FragmentC (&c)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("" : "+f"(c[i].v[0]), "+f"(c[i].v[1]), "+f"(c[i].v[2]), "+f"(c[i].v[3])::"memory");
}
// Of all lanes of the wave.
DEVICE_FN bool all_lanes(bool value) { return __all_sync(~0u, value) != 0; }

// c = a b, or c += with keep: A and B [16, 64] in panels.
template <class T>
DEVICE_FN void add_product(FragmentC (&c)[8], PanelOperand a, PanelOperand b, bool keep);
// The same: A in registers, B [16, 32] or [16, 64] by its columns.
template <class T>
DEVICE_FN void add_product(FragmentC (&c)[4], const FragmentA& a, PanelOperand b, bool keep);
template <class T>
DEVICE_FN void add_product(FragmentC (&c)[8], const FragmentA& a, PanelOperand b, bool keep);
// c += a b: A in registers, B [16, 128] or [16, 256] in panels.
template <class T>
DEVICE_FN void add_product(FragmentC (&c)[16], const FragmentA& a, PanelOperand b);
template <class T>
DEVICE_FN void add_product(FragmentC (&c)[32], const FragmentA& a, PanelOperand b);

#define LONGSPAN_C1(c, i) "+f"(c[i].v[0]), "+f"(c[i].v[1]), "+f"(c[i].v[2]), "+f"(c[i].v[3])
#define LONGSPAN_C4(c, i) \
  LONGSPAN_C1(c, i), LONGSPAN_C1(c, (i) + 1), LONGSPAN_C1(c, (i) + 2), LONGSPAN_C1(c, (i) + 3)
#define LONGSPAN_C16(c, i) \
  LONGSPAN_C4(c, i), LONGSPAN_C4(c, (i) + 4), LONGSPAN_C4(c, (i) + 8), LONGSPAN_C4(c, (i) + 12)
#define LONGSPAN_NAMES_16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
#define LONGSPAN_NAMES_32                                                                                 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define LONGSPAN_NAMES_64                                                                                 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "  \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "  \
  "%62, %63}, "
#define LONGSPAN_NAMES_128                                                                                 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "  \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "   \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "   \
  "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "   \
  "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, " \
  "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, " \
  "%119, %120, %121, %122, %123, %124, %125, %126, %127}, "

#define LONGSPAN_PRODUCTS(T, kind)                                                                       \
  template <>                                                                                            \
  DEVICE_FN void add_product<T>(FragmentC(&c)[8], PanelOperand a, PanelOperand b, bool keep) {           \
    asm volatile(                                                                                        \
        "{.reg .pred keep; setp.ne.b32 keep, %34, 0; "                                                   \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." kind "." kind " " LONGSPAN_NAMES_32                \
        "%32, %33, keep, 1, 1, 0, 0;}"                                                                   \
        : LONGSPAN_C4(c, 0), LONGSPAN_C4(c, 4)                                                           \
        : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(keep)));                                        \
  }                                                                                                      \
  template <>                                                                                            \
  DEVICE_FN void add_product<T>(FragmentC(&c)[4], const FragmentA& a, PanelOperand b, bool keep) {       \
    asm volatile(                                                                                        \
        "{.reg .pred keep; setp.ne.b32 keep, %21, 0; "                                                   \
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." kind "." kind " " LONGSPAN_NAMES_16                \
        "{%16, %17, %18, %19}, %20, keep, 1, 1, 0;}"                                                     \
        : LONGSPAN_C4(c, 0)                                                                              \
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "l"(b.bits), "r"(static_cast<int>(keep))); \
  }                                                                                                      \
  template <>                                                                                            \
  DEVICE_FN void add_product<T>(FragmentC(&c)[8], const FragmentA& a, PanelOperand b, bool keep) {       \
    asm volatile(                                                                                        \
        "{.reg .pred keep; setp.ne.b32 keep, %37, 0; "                                                   \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." kind "." kind " " LONGSPAN_NAMES_32                \
        "{%32, %33, %34, %35}, %36, keep, 1, 1, 0;}"                                                     \
        : LONGSPAN_C4(c, 0), LONGSPAN_C4(c, 4)                                                           \
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "l"(b.bits), "r"(static_cast<int>(keep))); \
  }                                                                                                      \
  template <>                                                                                            \
  DEVICE_FN void add_product<T>(FragmentC(&c)[16], const FragmentA& a, PanelOperand b) {                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." kind "." kind " " LONGSPAN_NAMES_64      \
                 "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"                                                \
                 : LONGSPAN_C16(c, 0)                                                                    \
                 : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "l"(b.bits));                     \
  }                                                                                                      \
  template <>                                                                                            \
  DEVICE_FN void add_product<T>(FragmentC(&c)[32], const FragmentA& a, PanelOperand b) {                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." kind "." kind " " LONGSPAN_NAMES_128     \
                 "{%128, %129, %130, %131}, %132, 1, 1, 1, 1;"                                           \
                 : LONGSPAN_C16(c, 0), LONGSPAN_C16(c, 16)                                               \
                 : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "l"(b.bits));                     \
  }
LONGSPAN_PRODUCTS(bf16_t, "bf16")
LONGSPAN_PRODUCTS(f16_t, "f16")
#undef LONGSPAN_PRODUCTS
#undef LONGSPAN_NAMES_128
#undef LONGSPAN_NAMES_64
#undef LONGSPAN_NAMES_32
#undef LONGSPAN_NAMES_16
#undef LONGSPAN_C16
#undef LONGSPAN_C4
#undef LONGSPAN_C1

#endif

}  // namespace longspan::ops::device
