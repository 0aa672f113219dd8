// What Hopper (sm_90a) has beside mma.h: products of a group of four waves that run on their own (wgmma), the
// engine that copies tiles, barriers in shared memory on which both are awaited, registers that move between
// groups. Only files that are compiled for sm_90a include it.
//
// A tile in shared memory is made of panels: 64 columns of 16 bits, so rows of 128 bytes, in which the
// 16-byte words of row r lie at word ^ (r % 8); a panel starts at a multiple of kPanelAlignment. A group's
// lane l of wave w holds what mma.h says of rows 16 w .. 16 w + 15.
#pragma once

#include <cuda.h>

#include "ops/device/mma.h"

namespace longspan::ops::device {

constexpr int kGroupThreads = 128;
constexpr int kPanelCols = 64;
constexpr int kPanelRowBytes = 128;
constexpr int kPanelAlignment = 1024;

// Kernels with kWholeUnit have a multiprocessor for themselves: as many registers as there are, and arguments
// that the copy engine reads where they are.
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
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                    static_cast<unsigned>(grid.z));
  run_whole_unit<<<blocks, Kernel::kThreads, shared_bytes, static_cast<api::Stream>(stream)>>>(kernel);
  return api::last_error();
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

#define LONGSPAN_PRODUCTS(T, kind)                                                                   \
  template <>                                                                                        \
  DEVICE_FN void add_product<T>(FragmentC(&c)[8], PanelOperand a, PanelOperand b, bool keep) {       \
    asm volatile(                                                                                    \
        "{.reg .pred keep; setp.ne.b32 keep, %34, 0; "                                               \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." kind "." kind " " LONGSPAN_NAMES_32            \
        "%32, %33, keep, 1, 1, 0, 0;}"                                                               \
        : LONGSPAN_C4(c, 0), LONGSPAN_C4(c, 4)                                                       \
        : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(keep)));                                    \
  }                                                                                                  \
  template <>                                                                                        \
  DEVICE_FN void add_product<T>(FragmentC(&c)[16], const FragmentA& a, PanelOperand b) {             \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." kind "." kind " " LONGSPAN_NAMES_64  \
                 "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"                                            \
                 : LONGSPAN_C16(c, 0)                                                                \
                 : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "l"(b.bits));                 \
  }                                                                                                  \
  template <>                                                                                        \
  DEVICE_FN void add_product<T>(FragmentC(&c)[32], const FragmentA& a, PanelOperand b) {             \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." kind "." kind " " LONGSPAN_NAMES_128 \
                 "{%128, %129, %130, %131}, %132, 1, 1, 1, 1;"                                       \
                 : LONGSPAN_C16(c, 0), LONGSPAN_C16(c, 16)                                           \
                 : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "l"(b.bits));                 \
  }
LONGSPAN_PRODUCTS(bf16_t, "bf16")
LONGSPAN_PRODUCTS(f16_t, "f16")
#undef LONGSPAN_PRODUCTS
#undef LONGSPAN_NAMES_128
#undef LONGSPAN_NAMES_64
#undef LONGSPAN_NAMES_32
#undef LONGSPAN_C16
#undef LONGSPAN_C4
#undef LONGSPAN_C1

#endif

}  // namespace longspan::ops::device
