// The third vendor: runs device code on the host, one fiber a thread, and checks what a card does not.
// Included by vendor.h only where neither CUDA nor HIP compiles; tests include it for Findings.
//
// It finds: accesses outside allocations and misaligned words; races on shared memory (two threads, one of
// them writing, with no barrier between); shared memory that is read before it is written; barriers and
// collectives that not all threads reach; shared memory beyond what the launch asked for. Fresh memory is
// full of NaN. Threads and blocks run in an order drawn from a seed, which every report names.
// It cannot find: anything about time, races between blocks, what a real memory model reorders.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "ops/device/grid.h"

#define DEVICE_FN inline
#define HOST_DEVICE_FN inline

namespace longspan::ops::device {

constexpr int kMaxWave = 64;

namespace emulator {

enum class Kind : uint8_t {
  kGlobalBounds,
  kGlobalAlignment,
  kSharedBounds,
  kSharedRace,
  kSharedUnwritten,
  kBarrierDivergence,
  kWaveDivergence,
};
const char* kind_name(Kind kind);

struct Finding {
  Kind kind;
  std::string text;  // kernel, block, thread, what, seed
};

// Findings of launches inside its life are kept instead of being fatal. Not thread-safe, not nested.
class Findings {
 public:
  Findings();
  ~Findings();
  Findings(const Findings&) = delete;
  Findings& operator=(const Findings&) = delete;

  const std::vector<Finding>& all() const { return all_; }
  bool has(Kind kind) const;

 private:
  friend void add_finding(Finding finding);
  std::vector<Finding> all_;
};
void add_finding(Finding finding);

// Of the schedules that follow; drawn anew for each launch from it.
void set_seed(uint64_t seed);

struct LaunchShape {
  const char* name = "";
  Grid grid;
  int threads = 1;
  int wave = 32;
  size_t shared_bytes = 0;
};
// Runs every block. One launch at a time in a process.
void run(const LaunchShape& shape, const std::function<void()>& kernel);

// Work kept to be run later, in order. While there is one to record to, launches go there instead.
using Recorded = std::vector<std::function<void()>>;
Recorded*& recording();

// Hears of each launch and each copy (name null) that has run. One at a time: false where there is one
// already. A null one ends that, and has been heard from for the last time on return.
using Listener = std::function<void(const char* name, int64_t begin_ns, int64_t end_ns)>;
bool listen(Listener listener);
// Runs `copy`, of device memory, and tells the listener.
void run_copy(const std::function<void()>& copy);

// Makes what lives as long as the process. Whoever frees device memory at its end calls this first.
void prepare();

// Device memory: NaN-filled, with room on both sides that nobody may touch.
void* allocate(size_t size_bytes);  // null when there is none
void free(void* pointer);
size_t allocated_bytes();

// A line of a kernel: what clang 14 has of std::source_location.
struct Site {
  const char* file = "";
  int line = 0;

  static constexpr Site current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

// What kernels call, by way of the names below.
struct Lane {
  int thread = 0;
  Grid block;
};
const Lane& current_lane();
Grid current_grid();
char* current_shared();
void require_shared(size_t size_bytes);
void barrier(const Site& where);
void wave_barrier(const Site& where);
enum class Collective : uint8_t { kExchange, kSum, kMax };
// Deposits the lane's value; returns the wave's values, for kSum and kMax already reduced over `width` lanes.
const uint64_t* collective(Collective what, uint64_t value, int width, const Site& where);
// Every lane deposits a value; the last to come does `work` with all of them, while the others wait and what
// they point to lies still.
using WaveWork = void (*)(uint64_t* values, int num_lanes);
void work_together(WaveWork work, uint64_t value, int width, const Site& where);
bool may_access_global(const void* address, size_t size_bytes, bool write);
bool may_access_shared(const void* address, size_t size_bytes, bool write);

void add_copy(void* to, const void* from);  // 16 bytes; from null: zeros
void commit_copies();
void wait_copies(int num_open);

template <class T>
uint64_t to_bits(T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
T poison() {
  T value;
  std::memset(static_cast<void*>(&value), 0xff, sizeof(T));
  return value;
}

float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);

}  // namespace emulator

inline float exp2_approx(float x) { return std::exp2(x); }
inline float reciprocal_approx(float x) { return 1.0f / x; }
inline float half_to_float(uint16_t bits) { return emulator::half_to_float(bits); }
inline uint16_t float_to_half(float value) { return emulator::float_to_half(value); }
inline float bfloat_to_float(uint16_t bits) {
  return emulator::from_bits<float>(static_cast<uint64_t>(bits) << 16);
}
inline uint16_t float_to_bfloat(float value) {
  const auto u = static_cast<uint32_t>(emulator::to_bits(value));
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

inline uint32_t floats_to_bfloats(float low, float high) {
  return float_to_bfloat(low) | static_cast<uint32_t>(float_to_bfloat(high)) << 16;
}

constexpr bool kConvertsE4M3 = false;  // what it cannot show is one instruction; what the others do, it can
inline uint32_t e4m3_pair_to_halves(uint16_t codes) {
  uint32_t halves = 0;
  for (int i = 0; i < 2; ++i) {
    f8e4m3 code;
    code.bits = static_cast<uint8_t>(codes >> 8 * i);
    halves |= static_cast<uint32_t>(float_to_half(static_cast<float>(code))) << 16 * i;
  }
  return halves;
}

inline uint32_t subtract_bf16_pairs(uint32_t a, uint32_t b) {
  return floats_to_bfloats(
      bfloat_to_float(static_cast<uint16_t>(a)) - bfloat_to_float(static_cast<uint16_t>(b)),
      bfloat_to_float(static_cast<uint16_t>(a >> 16)) - bfloat_to_float(static_cast<uint16_t>(b >> 16)));
}
inline uint32_t subtract_f16_pairs(uint32_t a, uint32_t b) {
  const auto difference = [&](int shift) {
    return float_to_half(half_to_float(static_cast<uint16_t>(a >> shift)) -
                         half_to_float(static_cast<uint16_t>(b >> shift)));
  };
  return difference(0) | static_cast<uint32_t>(difference(16)) << 16;
}

inline int thread_idx() { return emulator::current_lane().thread; }
inline Grid block_idx() { return emulator::current_lane().block; }
inline Grid grid_size() { return emulator::current_grid(); }

using emulator::Site;
inline void block_sync(const Site& where = Site::current()) { emulator::barrier(where); }
inline void block_sync_branches(int /*num_threads*/) { emulator::barrier(Site::current()); }
inline void wave_sync(const Site& where = Site::current()) { emulator::wave_barrier(where); }
inline void await_previous() {}  // one kernel at a time
inline void release_next() {}
inline void prefetch_global(const void*) {}

template <class T>
T shuffle_xor(T value, int mask, int width, const Site& where = Site::current()) {
  const uint64_t* values =
      emulator::collective(emulator::Collective::kExchange, emulator::to_bits(value), width, where);
  const int thread = thread_idx() % kMaxWave;
  return emulator::from_bits<T>(values[thread ^ mask]);
}
template <class T>
T shuffle(T value, int from, int width, const Site& where = Site::current()) {
  const uint64_t* values =
      emulator::collective(emulator::Collective::kExchange, emulator::to_bits(value), width, where);
  const int thread = thread_idx() % kMaxWave;
  return emulator::from_bits<T>(values[thread / width * width + from % width]);
}
template <int kWidth>
float group_sum(float value, const Site& where = Site::current()) {
  const uint64_t* values =
      emulator::collective(emulator::Collective::kSum, emulator::to_bits(value), kWidth, where);
  return emulator::from_bits<float>(values[thread_idx() % kMaxWave]);
}
template <int kWidth>
float group_max(float value, const Site& where = Site::current()) {
  const uint64_t* values =
      emulator::collective(emulator::Collective::kMax, emulator::to_bits(value), kWidth, where);
  return emulator::from_bits<float>(values[thread_idx() % kMaxWave]);
}

template <class T>
T load_global(const void* address) {
  if (!emulator::may_access_global(address, sizeof(T), /*write=*/false)) return emulator::poison<T>();
  T value;
  std::memcpy(static_cast<void*>(&value), address, sizeof(T));
  return value;
}
template <class T>
T load_stream(const void* address) {
  return load_global<T>(address);
}
template <class T>
void store_global(void* address, T value) {
  if (emulator::may_access_global(address, sizeof(T), /*write=*/true))
    std::memcpy(address, static_cast<const void*>(&value), sizeof(T));
}
template <class T>
T load_shared(const void* address) {
  if (!emulator::may_access_shared(address, sizeof(T), /*write=*/false)) return emulator::poison<T>();
  T value;
  std::memcpy(static_cast<void*>(&value), address, sizeof(T));
  return value;
}
template <class T>
void store_shared(void* address, T value) {
  if (emulator::may_access_shared(address, sizeof(T), /*write=*/true))
    std::memcpy(address, static_cast<const void*>(&value), sizeof(T));
}

template <class T>
void add_global(T* address, T value) {
  if (emulator::may_access_global(address, sizeof(T), /*write=*/true)) *address += value;
}

namespace api {
enum class Error : uint8_t { kSuccess };
constexpr Error kSuccess = Error::kSuccess;
constexpr const char* kName = "emulator";
inline const char* error_text(Error) { return "none"; }
}  // namespace api

template <class Kernel>
api::Error start_kernel(const Kernel& kernel, const char* name, Grid grid, int wave, size_t shared_bytes,
                        void*) {
  const emulator::LaunchShape shape{name, grid, Kernel::kThreads, wave, shared_bytes};
  if (emulator::Recorded* const to = emulator::recording())
    to->push_back([=] { emulator::run(shape, kernel); });
  else
    emulator::run(shape, [&] { kernel(); });
  return api::kSuccess;
}

// Matrix units of NVIDIA's kind (mma.h), on waves of 32.
void load_matrices(uint32_t (&out)[4], const void* row, const Site& where = Site::current());
void load_matrices_transposed(uint32_t (&out)[4], const void* row, const Site& where = Site::current());
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
              const Site& where = Site::current());
void mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
             const Site& where = Site::current());
// Copies arrive when they are waited for: a missing wait reads what was there before.
void copy_async(void* shared, const void* global, bool present);
void commit_copies();
void wait_copies_but(int num_open);
template <int kOpen>
void wait_copies() {
  wait_copies_but(kOpen);
}

inline char* shared_memory() { return emulator::current_shared(); }
inline void check_shared(size_t size_bytes) { emulator::require_shared(size_bytes); }

}  // namespace longspan::ops::device
