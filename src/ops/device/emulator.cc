#include "ops/device/emulator.h"

#include <fmt/format.h>
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <boost/context/fiber.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>

#include "core/error.h"

namespace longspan::ops::device::emulator {
namespace {

namespace context = boost::context;

constexpr int kMaxThreads = 1024;
constexpr int kMinWave = 32;
constexpr size_t kStackBytes = size_t{128} << 10;
constexpr int kMaxFindings = 4;  // of a kind in a launch; one bug repeats in every thread

// Stacks outlive fibers: making one costs two system calls.
class Stacks {
 public:
  context::stack_context allocate() {
    if (!free_.empty()) {
      const context::stack_context stack = free_.back();
      free_.pop_back();
      // A fiber that was unwound left AddressSanitizer's marks on it.
      ASAN_UNPOISON_MEMORY_REGION(static_cast<char*>(stack.sp) - stack.size, stack.size);
      return stack;
    }
    void* pointer = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pointer != MAP_FAILED);
    CHECK(::mprotect(pointer, 4096, PROT_NONE) == 0);  // an overflow faults instead of spoiling a neighbour
    context::stack_context stack;
    stack.size = kStackBytes;
    stack.sp = static_cast<char*>(pointer) + kStackBytes;
    return stack;
  }
  void deallocate(context::stack_context& stack) { free_.push_back(stack); }

 private:
  std::vector<context::stack_context> free_;
};
Stacks& stacks() {
  static Stacks all;
  return all;
}
struct StackSource {
  context::stack_context allocate() { return stacks().allocate(); }
  void deallocate(context::stack_context& stack) { stacks().deallocate(stack); }
};

// Where an allocation begins and how long it is.
std::map<uintptr_t, size_t>& allocations() {
  static std::map<uintptr_t, size_t> all;
  return all;
}

enum class State : uint8_t { kRunnable, kAtBarrier, kInWave, kDone };

struct AsyncCopy {
  void* to;
  const void* from;  // null: zeros
};

struct Fiber {
  Lane lane;
  context::fiber self;
  context::fiber scheduler;
  State state = State::kDone;
  Site where;
  std::vector<std::vector<AsyncCopy>> copies;  // commit groups under way; the last one is open
};

// Last accesses of one cell of shared memory. Epochs count block barriers, over all blocks and launches;
// wave epochs count wave_sync() of one wave.
constexpr size_t kCellBytes = 2;
struct Cell {
  uint32_t write_epoch = 0;
  uint32_t write_wave_epoch = 0;
  uint32_t read_epoch = 0;
  uint32_t read_wave_epoch = 0;
  int16_t writer = -1;       // thread
  int16_t reader = -1;       // thread, or kMany
  int16_t reader_wave = -1;  // wave, or kMany
};
constexpr int16_t kMany = -2;

struct WaveState {
  int waiting = 0;
  int parity = 0;
  uint32_t epoch = 0;
  Collective what = Collective::kExchange;
  int width = 0;
  Site where;
  uint64_t values[2][kMaxWave] = {};
};

bool same_place(const Site& a, const Site& b) { return a.line == b.line && std::strcmp(a.file, b.file) == 0; }
std::string place(const Site& where) {
  const char* slash = std::strrchr(where.file, '/');
  return fmt::format("{}:{}", slash ? slash + 1 : where.file, where.line);
}

class Machine {
 public:
  Machine() { stacks(); }  // they outlive the fibers

  void run(const LaunchShape& shape, const std::function<void()>& kernel) {
    CHECK_MSG(current_ == nullptr && kernel_ == nullptr, "[{}] a launch inside a launch", shape.name);
    CHECK_MSG(shape.threads > 0 && shape.threads <= kMaxThreads && shape.threads % shape.wave == 0,
              "[{}] block: got {} threads, need a multiple of {} up to {}", shape.name, shape.threads,
              shape.wave, kMaxThreads);
    shape_ = shape;
    kernel_ = &kernel;
    launch_seed_ = seeds_();
    random_.seed(static_cast<uint32_t>(launch_seed_));
    num_findings_ = {};
    shared_.resize(shape.shared_bytes + 16);
    cells_.resize(shape.shared_bytes / kCellBytes + 1);
    const int64_t num_blocks = int64_t{shape.grid.x} * shape.grid.y * shape.grid.z;
    std::vector<int64_t> order(static_cast<size_t>(num_blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    for (const int64_t block : order) {
      const int64_t xy = int64_t{shape.grid.x} * shape.grid.y;
      run_block({static_cast<int>(block % shape.grid.x), static_cast<int>(block % xy / shape.grid.x),
                 static_cast<int>(block / xy)});
    }
    kernel_ = nullptr;
  }

  void seed(uint64_t value) { seeds_.seed(static_cast<uint32_t>(value)); }

  // Called by kernels.
  Fiber& current() { return *current_; }
  const LaunchShape& shape() const { return shape_; }
  char* shared() {
    const auto address = reinterpret_cast<uintptr_t>(shared_.data());
    return shared_.data() + (16 - address % 16) % 16;
  }

  void barrier(const Site& where) {
    Fiber& fiber = *current_;
    if (num_at_barrier_ > 0 && !same_place(barrier_where_, where))
      find(Kind::kBarrierDivergence,
           fmt::format("waits at {}, others at {}", place(where), place(barrier_where_)));
    barrier_where_ = where;
    if (++num_at_barrier_ == shape_.threads) {
      num_at_barrier_ = 0;
      ++epoch_;
      for (int i = 0; i < shape_.threads; ++i)
        if (i != fiber.lane.thread) wake(fibers_[static_cast<size_t>(i)]);
      return;
    }
    block_current(State::kAtBarrier, where);
  }

  const uint64_t* collective(Collective what, uint64_t value, int width, const Site& where,
                             bool orders_memory) {
    Fiber& fiber = *current_;
    const int wave_idx = fiber.lane.thread / shape_.wave;
    const int lane = fiber.lane.thread % shape_.wave;
    WaveState& wave = waves_[static_cast<size_t>(wave_idx)];
    uint64_t* values = wave.values[wave.parity];
    // shuffles index by thread % kMaxWave: a wave of 32 sits in its half.
    const int base = fiber.lane.thread % kMaxWave - lane;
    if (width > shape_.wave)
      find(Kind::kWaveDivergence, fmt::format("group of {} in a wave of {}", width, shape_.wave));
    if (wave.waiting > 0 && (!same_place(wave.where, where) || wave.what != what || wave.width != width))
      find(Kind::kWaveDivergence, fmt::format("is at {}, others at {}", place(where), place(wave.where)));
    wave.where = where;
    wave.what = what;
    wave.width = width;
    values[base + lane] = value;
    if (++wave.waiting < shape_.wave) {
      block_current(State::kInWave, where);
      return values;
    }
    if (what != Collective::kExchange) reduce(what, values + base, width);
    wave.waiting = 0;
    wave.parity ^= 1;
    if (orders_memory) ++wave.epoch;
    for (int i = 0; i < shape_.wave; ++i)
      if (i != lane) wake(fibers_[static_cast<size_t>(wave_idx) * shape_.wave + i]);
    return values;
  }

  bool access_shared(const void* address, size_t size, bool write) {
    const auto offset = static_cast<const char*>(address) - shared();
    if (offset < 0 || static_cast<size_t>(offset) + size > shape_.shared_bytes ||
        reinterpret_cast<uintptr_t>(address) % size != 0) {
      find(Kind::kSharedBounds, fmt::format("{} {} bytes at {} of {}", write ? "writes" : "reads", size,
                                            offset, shape_.shared_bytes));
      return false;
    }
    for (size_t i = 0; i < size; i += kCellBytes) {
      Cell& cell = cells_[(static_cast<size_t>(offset) + i) / kCellBytes];
      if (!(write ? write_cell(cell, offset) : read_cell(cell, offset))) break;  // one finding an access
    }
    return true;
  }

  bool access_global(const void* address, size_t size, bool write) {
    const auto begin = reinterpret_cast<uintptr_t>(address);
    if (begin % size != 0) {
      find(Kind::kGlobalAlignment, fmt::format("{} {} bytes at an address that is {} modulo them",
                                               write ? "writes" : "reads", size, begin % size));
      return false;
    }
    for (const Range& range : recent_)
      if (begin >= range.begin && begin + size <= range.end) return true;
    const auto after = allocations().upper_bound(begin);
    if (after != allocations().begin()) {
      const auto& [start, length] = *std::prev(after);
      if (begin + size <= start + length) {
        recent_[next_recent_++ % recent_.size()] = {start, start + length};
        return true;
      }
      find(Kind::kGlobalBounds, fmt::format("{} {} bytes {} past the start of an allocation of {}",
                                            write ? "writes" : "reads", size, begin - start, length));
      return false;
    }
    find(Kind::kGlobalBounds,
         fmt::format("{} {} bytes before all allocations", write ? "writes" : "reads", size));
    return false;
  }
  void forget_allocations() { recent_ = {}; }

  void find(Kind kind, const std::string& what) {
    if (++num_findings_[static_cast<size_t>(kind)] > kMaxFindings) return;
    const Lane& lane = current_->lane;
    add_finding({kind, fmt::format("[{}] {}: block {},{},{} thread {} {} (wave {}, seed {})", shape_.name,
                                   kind_name(kind), lane.block.x, lane.block.y, lane.block.z, lane.thread,
                                   what, shape_.wave, launch_seed_)});
  }

 private:
  void run_block(Grid block) {
    ++epoch_;
    block_epoch_ = epoch_;
    num_at_barrier_ = 0;
    std::memset(shared(), 0xff, shape_.shared_bytes);
    for (WaveState& wave : waves_) wave = {};
    runnable_.clear();
    for (int i = 0; i < shape_.threads; ++i) {
      Fiber& fiber = fibers_[static_cast<size_t>(i)];
      fiber.lane = {i, block};
      fiber.copies.assign(1, {});
      if (!fiber.self) fiber.self = make_fiber(fiber);
      wake(fiber);
    }
    int num_done = 0;
    while (!runnable_.empty()) {
      const size_t pick = random_() % runnable_.size();
      Fiber* fiber = runnable_[pick];
      runnable_[pick] = runnable_.back();
      runnable_.pop_back();
      current_ = fiber;
      fiber->self = std::move(fiber->self).resume();
      if (fiber->state == State::kDone) ++num_done;
    }
    if (num_done < shape_.threads) report_stuck();
    current_ = nullptr;
  }

  context::fiber make_fiber(Fiber& fiber) {
    return context::fiber(std::allocator_arg, StackSource{}, [this, &fiber](context::fiber&& scheduler) {
      fiber.scheduler = std::move(scheduler);
      while (true) {
        (*kernel_)();
        fiber.state = State::kDone;
        fiber.scheduler = std::move(fiber.scheduler).resume();
      }
      return std::move(fiber.scheduler);
    });
  }

  void wake(Fiber& fiber) {
    fiber.state = State::kRunnable;
    runnable_.push_back(&fiber);
  }

  void block_current(State state, const Site& where) {
    Fiber& fiber = *current_;
    fiber.state = state;
    fiber.where = where;
    fiber.scheduler = std::move(fiber.scheduler).resume();
  }

  // Nobody can go on and not everybody is done.
  void report_stuck() {
    int done = 0, in_barrier = 0, in_wave = 0;
    Fiber* stuck = nullptr;
    for (int i = 0; i < shape_.threads; ++i) {
      Fiber& fiber = fibers_[static_cast<size_t>(i)];
      done += fiber.state == State::kDone;
      in_barrier += fiber.state == State::kAtBarrier;
      in_wave += fiber.state == State::kInWave;
      if (fiber.state == State::kDone) continue;
      // A wave that waits for lanes is the cause of those that wait for the wave.
      if (stuck == nullptr || (stuck->state == State::kAtBarrier && fiber.state == State::kInWave))
        stuck = &fiber;
    }
    current_ = stuck;
    find(stuck->state == State::kInWave ? Kind::kWaveDivergence : Kind::kBarrierDivergence,
         fmt::format(
             "waits at {} for ever: of {} threads {} are at a barrier, {} at a collective, {} have returned",
             place(stuck->where), shape_.threads, in_barrier, in_wave, done));
    for (Fiber& fiber : fibers_)  // destruction unwinds the stacks
      if (fiber.state != State::kDone) {
        fiber.self = {};
        fiber.state = State::kDone;
      }
  }

  // The butterfly of a card: every lane of a group ends with the same bits.
  void reduce(Collective what, uint64_t* values, int width) const {
    float next[kMaxWave];
    for (int group = 0; group < shape_.wave; group += width)
      for (int mask = width / 2; mask > 0; mask /= 2) {
        for (int i = 0; i < width; ++i) {
          const auto a = from_bits<float>(values[group + i]);
          const auto b = from_bits<float>(values[group + (i ^ mask)]);
          next[i] = what == Collective::kSum ? a + b : std::fmax(a, b);
        }
        for (int i = 0; i < width; ++i) values[group + i] = to_bits(next[i]);
      }
  }

  bool wave_ordered(int wave, uint32_t wave_epoch) const {
    const int mine = current_->lane.thread / shape_.wave;
    return wave == mine && wave_epoch < waves_[static_cast<size_t>(mine)].epoch;
  }

  bool read_cell(Cell& cell, std::ptrdiff_t offset) {
    const auto thread = static_cast<int16_t>(current_->lane.thread);
    const auto wave = static_cast<int16_t>(thread / shape_.wave);
    const uint32_t wave_epoch = waves_[static_cast<size_t>(wave)].epoch;
    bool good = true;
    if (cell.write_epoch < block_epoch_) {
      find(Kind::kSharedUnwritten, fmt::format("reads byte {} that nobody wrote", offset));
      good = false;
    } else if (cell.write_epoch == epoch_ && cell.writer != thread &&
               !wave_ordered(cell.writer / shape_.wave, cell.write_wave_epoch)) {
      find(Kind::kSharedRace,
           fmt::format("reads byte {} that thread {} wrote, no barrier between", offset, cell.writer));
      good = false;
    }
    if (cell.read_epoch != epoch_ || wave_ordered(cell.reader_wave, cell.read_wave_epoch)) {
      cell.reader = thread;
      cell.reader_wave = wave;
    } else {
      if (cell.reader != thread) cell.reader = kMany;
      if (cell.reader_wave != wave) cell.reader_wave = kMany;
    }
    cell.read_epoch = epoch_;
    cell.read_wave_epoch = wave_epoch;
    return good;
  }

  bool write_cell(Cell& cell, std::ptrdiff_t offset) {
    const auto thread = static_cast<int16_t>(current_->lane.thread);
    const uint32_t wave_epoch = waves_[static_cast<size_t>(thread / shape_.wave)].epoch;
    bool good = true;
    if (cell.write_epoch == epoch_ && cell.writer != thread &&
        !wave_ordered(cell.writer / shape_.wave, cell.write_wave_epoch)) {
      find(Kind::kSharedRace,
           fmt::format("writes byte {} that thread {} wrote, no barrier between", offset, cell.writer));
      good = false;
    } else if (cell.read_epoch == epoch_ && cell.reader != thread &&
               !wave_ordered(cell.reader_wave, cell.read_wave_epoch)) {
      find(Kind::kSharedRace,
           fmt::format("writes byte {} that {} read, no barrier between", offset,
                       cell.reader == kMany ? "others" : fmt::format("thread {}", cell.reader)));
      good = false;
    }
    cell.write_epoch = epoch_;
    cell.write_wave_epoch = wave_epoch;
    cell.writer = thread;
    return good;
  }

  LaunchShape shape_;
  const std::function<void()>* kernel_ = nullptr;
  std::mt19937 seeds_{1};
  std::mt19937 random_;
  uint64_t launch_seed_ = 0;
  std::array<int, 7> num_findings_{};  // of each kind
  std::vector<Fiber> fibers_{kMaxThreads};
  std::vector<Fiber*> runnable_;
  Fiber* current_ = nullptr;
  std::vector<WaveState> waves_{kMaxThreads / kMinWave + 1};
  std::vector<char> shared_;
  std::vector<Cell> cells_;
  uint32_t epoch_ = 0;
  uint32_t block_epoch_ = 0;  // the first epoch of this block
  int num_at_barrier_ = 0;
  Site barrier_where_;
  struct Range {
    uintptr_t begin = 1, end = 0;
  };
  std::array<Range, 8> recent_;  // allocations that were hit last
  size_t next_recent_ = 0;
};

Machine& machine() {
  static Machine one;
  return one;
}

Findings* open_findings = nullptr;

}  // namespace

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kGlobalBounds:
      return "out of bounds";
    case Kind::kGlobalAlignment:
      return "misaligned";
    case Kind::kSharedBounds:
      return "shared memory out of bounds";
    case Kind::kSharedRace:
      return "shared memory race";
    case Kind::kSharedUnwritten:
      return "unwritten shared memory";
    case Kind::kBarrierDivergence:
      return "barrier divergence";
    case Kind::kWaveDivergence:
      return "divergent collective";
  }
  return "?";
}

Findings::Findings() {
  CHECK(open_findings == nullptr);
  open_findings = this;
}
Findings::~Findings() { open_findings = nullptr; }

bool Findings::has(Kind kind) const {
  return std::any_of(all_.begin(), all_.end(), [&](const Finding& finding) { return finding.kind == kind; });
}

void add_finding(Finding finding) {
  CHECK_MSG(open_findings != nullptr, "{}", finding.text);
  open_findings->all_.push_back(std::move(finding));
}

void set_seed(uint64_t seed) { machine().seed(seed); }

namespace {

struct Ear {
  std::mutex mutex;
  Listener listener;  // guarded by mutex
};
Ear& ear() {
  static Ear one;
  return one;
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void run_and_tell(const char* name, const std::function<void()>& work) {
  const int64_t begin_ns = now_ns();
  work();
  const std::lock_guard lock(ear().mutex);
  if (ear().listener) ear().listener(name, begin_ns, now_ns());
}

}  // namespace

bool listen(Listener listener) {
  const std::lock_guard lock(ear().mutex);
  if (listener && ear().listener) return false;
  ear().listener = std::move(listener);
  return true;
}

void run(const LaunchShape& shape, const std::function<void()>& kernel) {
  run_and_tell(shape.name, [&] { machine().run(shape, kernel); });
}

void run_copy(const std::function<void()>& copy) { run_and_tell(nullptr, copy); }

Recorded*& recording() {
  static Recorded* to = nullptr;
  return to;
}

void prepare() {
  machine();
  allocations();
  ear();
}

constexpr size_t kRedZoneBytes = 256;

void* allocate(size_t size_bytes) {
  const size_t total = size_bytes + 2 * kRedZoneBytes;
  void* pointer =
      std::aligned_alloc(kRedZoneBytes, (total + kRedZoneBytes - 1) / kRedZoneBytes * kRedZoneBytes);
  if (pointer == nullptr) return nullptr;
  char* data = static_cast<char*>(pointer) + kRedZoneBytes;
  std::memset(data, 0xff, size_bytes);
  allocations()[reinterpret_cast<uintptr_t>(data)] = size_bytes;
  return data;
}

void free(void* pointer) {
  if (pointer == nullptr) return;
  CHECK(allocations().erase(reinterpret_cast<uintptr_t>(pointer)) == 1);
  machine().forget_allocations();
  std::free(static_cast<char*>(pointer) - kRedZoneBytes);
}

size_t allocated_bytes() {
  size_t bytes = 0;
  for (const auto& [start, length] : allocations()) bytes += length;
  return bytes;
}

const Lane& current_lane() { return machine().current().lane; }
Grid current_grid() { return machine().shape().grid; }
char* current_shared() { return machine().shared(); }

void require_shared(size_t size_bytes) {
  if (size_bytes > machine().shape().shared_bytes)
    machine().find(Kind::kSharedBounds, fmt::format("takes {} bytes, the launch gave {}", size_bytes,
                                                    machine().shape().shared_bytes));
}

void barrier(const Site& where) { machine().barrier(where); }
void wave_barrier(const Site& where) {
  machine().collective(Collective::kExchange, 0, 1, where, /*orders_memory=*/true);
}
const uint64_t* collective(Collective what, uint64_t value, int width, const Site& where) {
  return machine().collective(what, value, width, where, /*orders_memory=*/false);
}
bool may_access_global(const void* address, size_t size_bytes, bool write) {
  return machine().access_global(address, size_bytes, write);
}
bool may_access_shared(const void* address, size_t size_bytes, bool write) {
  return machine().access_shared(address, size_bytes, write);
}

void add_copy(void* to, const void* from) { machine().current().copies.back().push_back({to, from}); }

void commit_copies() { machine().current().copies.emplace_back(); }

void wait_copies(int num_open) {
  struct Word {
    uint64_t v[2];
  };
  std::vector<std::vector<AsyncCopy>>& copies = machine().current().copies;
  while (std::ssize(copies) > num_open + 1) {
    for (const AsyncCopy& copy : copies.front())
      store_shared<Word>(copy.to, copy.from == nullptr ? Word{} : load_global<Word>(copy.from));
    copies.erase(copies.begin());
  }
}

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return from_bits<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // The exponent moves over with a bias 112 too small; the product is exact, subnormals included.
  return from_bits<float>(sign | to_bits(from_bits<float>(rest << 13) * 0x1p112f));
}

uint16_t float_to_half(float value) {
  const auto u = static_cast<uint32_t>(to_bits(value));
  const auto sign = static_cast<uint16_t>(u >> 16 & 0x8000u);
  const uint32_t rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 2^16 and more
  if (rest < 0x38800000u)                                                 // below 2^-14: multiples of 2^-24
    return static_cast<uint16_t>(sign |
                                 static_cast<uint16_t>(std::nearbyint(from_bits<float>(rest) * 0x1p24f)));
  return static_cast<uint16_t>(sign | ((rest + 0xfffu + (rest >> 13 & 1u)) - 0x38000000u) >> 13);
}

}  // namespace longspan::ops::device::emulator

namespace longspan::ops::device {
namespace {

using emulator::Collective;

constexpr int kMmaWave = 32;

// Every lane's value; copied out, since the wave's buffer lives for one more collective only.
struct Gathered {
  uint64_t v[kMmaWave];
};
Gathered gather(uint64_t value, const Site& where) {
  const int base = thread_idx() % kMaxWave / kMmaWave * kMmaWave;
  const uint64_t* values = emulator::collective(Collective::kExchange, value, kMmaWave, where);
  Gathered all;
  std::copy_n(values + base, kMmaWave, all.v);
  return all;
}

void load_matrices_any(uint32_t (&out)[4], const void* row, bool transposed, const Site& where) {
  const Gathered rows = gather(reinterpret_cast<uintptr_t>(row), where);
  const int lane = thread_idx() % kMmaWave;
  const auto element = [&](int matrix, int r, int c) {
    return uint32_t{load_shared<uint16_t>(reinterpret_cast<const uint16_t*>(rows.v[8 * matrix + r]) + c)};
  };
  const int g = lane / 4, t = 2 * (lane % 4);
  for (int i = 0; i < 4; ++i)
    out[i] = transposed ? element(i, t, g) | element(i, t + 1, g) << 16
                        : element(i, g, t) | element(i, g, t + 1) << 16;
}

template <class ToFloat>
void mma_any(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const ToFloat& to_float,
             const Site& where) {
  const Gathered a01 = gather(a[0] | uint64_t{a[1]} << 32, where);
  const Gathered a23 = gather(a[2] | uint64_t{a[3]} << 32, where);
  const Gathered b01 = gather(b[0] | uint64_t{b[1]} << 32, where);
  const int lane = thread_idx() % kMmaWave;
  const auto half = [&](uint64_t word, int high, int odd) {
    return to_float(static_cast<uint16_t>(word >> (32 * high + 16 * odd)));
  };
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4;
    const int col = 2 * (lane % 4) + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int from = k % 8 / 2;
      const Gathered& word = k < 8 ? a01 : a23;
      c[i] += half(word.v[row * 4 + from], i / 2, k % 2) * half(b01.v[col * 4 + from], k / 8, k % 2);
    }
  }
}

}  // namespace

void load_matrices(uint32_t (&out)[4], const void* row, const Site& where) {
  load_matrices_any(out, row, /*transposed=*/false, where);
}
void load_matrices_transposed(uint32_t (&out)[4], const void* row, const Site& where) {
  load_matrices_any(out, row, /*transposed=*/true, where);
}
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const Site& where) {
  mma_any(c, a, b, bfloat_to_float, where);
}
void mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const Site& where) {
  mma_any(
      c, a, b, [](uint16_t bits) { return half_to_float(bits); }, where);
}

void copy_async(void* shared, const void* global, bool present) {
  emulator::add_copy(shared, present ? global : nullptr);
}
void commit_copies() { emulator::commit_copies(); }
void wait_copies_but(int num_open) { emulator::wait_copies(num_open); }

}  // namespace longspan::ops::device
