#include "ops/device/emulator.h"

#include <fmt/format.h>
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
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
  context::fiber self;  // empty while it runs
  State state = State::kDone;
  Site where;
  std::vector<std::vector<AsyncCopy>> copies;  // commit groups under way; the last one is open
};

// An access to shared memory in one word. Epochs count block barriers, over all blocks and launches; wave
// epochs count wave_sync() of one wave in one block. Of several readers one is kept, and what they do not
// share.
class Access {
 public:
  Access() = default;
  Access(uint32_t epoch, uint32_t wave_epoch, int thread)
      : word_(uint64_t{epoch} << 32 | uint64_t{wave_epoch} << kWaveEpochShift |
              static_cast<uint64_t>(thread)) {}

  uint32_t epoch() const { return static_cast<uint32_t>(word_ >> 32); }
  int thread() const { return static_cast<int>(word_ & kThread); }
  bool by_many() const { return (word_ & kManyThreads) != 0; }
  bool by(const Access& other) const { return ((word_ ^ other.word_) & (kThread | kManyThreads)) == 0; }
  bool operator==(const Access&) const = default;

  // `later` is of the same wave, behind a wave_sync(); a wave is 1 << wave_shift threads.
  bool ordered_before(const Access& later, int wave_shift) const {
    return (word_ & kManyWaves) == 0 && thread() >> wave_shift == later.thread() >> wave_shift &&
           wave_epoch() < later.wave_epoch();
  }
  // A reader in the same epoch comes to those before it.
  Access joined_by(const Access& other, int wave_shift) const {
    Access both = other;
    both.word_ &= ~kThread;
    both.word_ |= word_ & (kThread | kManyThreads | kManyWaves);
    if (thread() != other.thread()) both.word_ |= kManyThreads;
    if (thread() >> wave_shift != other.thread() >> wave_shift) both.word_ |= kManyWaves;
    return both;
  }

  static constexpr uint32_t kMaxWaveEpoch = (1u << 20) - 1;

 private:
  static constexpr uint64_t kThread = kMaxThreads - 1;
  static constexpr uint64_t kManyThreads = kMaxThreads;
  static constexpr uint64_t kManyWaves = 2 * kMaxThreads;
  static constexpr int kWaveEpochShift = 12;

  uint32_t wave_epoch() const { return static_cast<uint32_t>(word_) >> kWaveEpochShift; }

  uint64_t word_ = 0;
};

// The last accesses to a piece of shared memory. Where all cells of a word are alike, the first one stands
// for them: most accesses are of whole words.
constexpr size_t kCellBytes = 2;
constexpr size_t kWordBytes = 16;
constexpr size_t kWordCells = kWordBytes / kCellBytes;
struct Cell {
  Access write;
  Access read;
};

struct WaveState {
  int waiting = 0;
  int parity = 0;
  uint32_t epoch = 0;
  Collective what = Collective::kExchange;
  int width = 0;
  WaveWork work = nullptr;
  bool diverged = false;  // the lanes that wait
  Site where;
  uint64_t values[2][kMaxWave] = {};
};

bool same_place(const Site& a, const Site& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}
std::string place(const Site& where) {
  const char* slash = std::strrchr(where.file, '/');
  return fmt::format("{}:{}", slash ? slash + 1 : where.file, where.line);
}

class Machine;
Machine* running = nullptr;  // the one whose kernel runs

class Machine {
 public:
  Machine() { stacks(); }  // they outlive the fibers

  void run(const LaunchShape& shape, const std::function<void()>& kernel) {
    CHECK_MSG(current_ == nullptr && kernel_ == nullptr, "[{}] a launch inside a launch", shape.name);
    CHECK_MSG(shape.threads > 0 && shape.threads <= kMaxThreads && shape.threads % shape.wave == 0,
              "[{}] block: got {} threads, need a multiple of {} up to {}", shape.name, shape.threads,
              shape.wave, kMaxThreads);
    running = this;
    shape_ = shape;
    CHECK(std::has_single_bit(static_cast<unsigned>(shape.wave)));
    wave_shift_ = std::countr_zero(static_cast<unsigned>(shape.wave));
    kernel_ = &kernel;
    launch_seed_ = seeds_();
    random_.seed(static_cast<uint32_t>(launch_seed_));
    num_findings_ = {};
    shared_.resize(shape.shared_bytes + 16);
    shared_begin_ = shared_.data() + (16 - reinterpret_cast<uintptr_t>(shared_.data()) % 16) % 16;
    const size_t num_words = (shape.shared_bytes + kWordBytes - 1) / kWordBytes;
    cells_.resize(num_words * kWordCells);
    is_split_.resize(num_words);
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
  char* shared() { return shared_begin_; }

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
                             bool orders_memory, WaveWork work = nullptr) {
    Fiber& fiber = *current_;
    const int wave_idx = fiber.lane.thread >> wave_shift_;
    const int lane = fiber.lane.thread & (shape_.wave - 1);
    WaveState& wave = waves_[static_cast<size_t>(wave_idx)];
    uint64_t* values = wave.values[wave.parity];
    // shuffles index by thread % kMaxWave: a wave of 32 sits in its half.
    const int base = fiber.lane.thread % kMaxWave - lane;
    if (width > shape_.wave)
      find(Kind::kWaveDivergence, fmt::format("group of {} in a wave of {}", width, shape_.wave));
    if (wave.waiting > 0 &&
        (!same_place(wave.where, where) || wave.what != what || wave.width != width || wave.work != work)) {
      find(Kind::kWaveDivergence, fmt::format("is at {}, others at {}", place(where), place(wave.where)));
      wave.diverged = true;
    }
    wave.where = where;
    wave.what = what;
    wave.width = width;
    wave.work = work;
    values[base + lane] = value;
    if (++wave.waiting < shape_.wave) {
      block_current(State::kInWave, where);
      return values;
    }
    if (what != Collective::kExchange) reduce(what, values + base, width);
    if (work != nullptr && !wave.diverged) work(values + base, shape_.wave);
    wave.diverged = false;
    wave.waiting = 0;
    wave.parity ^= 1;
    if (orders_memory) CHECK(++wave.epoch <= Access::kMaxWaveEpoch);
    for (int i = 0; i < shape_.wave; ++i)
      if (i != lane) wake(fibers_[static_cast<size_t>(wave_idx) * shape_.wave + i]);
    return values;
  }

  bool access_shared(const void* address, size_t size, bool write) {
    const auto offset = static_cast<size_t>(static_cast<const char*>(address) - shared_begin_);
    if (offset > shape_.shared_bytes || size > shape_.shared_bytes - offset || !is_aligned(address, size)) {
      find(Kind::kSharedBounds, fmt::format("{} {} bytes at {} of {}", write ? "writes" : "reads", size,
                                            static_cast<int64_t>(offset), shape_.shared_bytes));
      return false;
    }
    const int thread = current_->lane.thread;
    const Access mine(epoch_, waves_[static_cast<size_t>(thread >> wave_shift_)].epoch, thread);
    const size_t end = offset + size;
    for (size_t at = offset; at < end;) {
      const size_t word = at / kWordBytes;
      const size_t next = std::min(end, (word + 1) * kWordBytes);
      Cell* cell = access_word(word, at % kWordBytes, next - at, mine, write);
      if (cell != nullptr) {
        find_fault(*cell, mine, offset, write);
        break;  // one finding an access
      }
      at = next;
    }
    return true;
  }

  bool access_global(const void* address, size_t size, bool write) {
    const auto begin = reinterpret_cast<uintptr_t>(address);
    if (!is_aligned(address, size)) {
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
    std::fill(is_split_.begin(), is_split_.end(), char{0});  // all cells are of earlier blocks, and so alike
    for (WaveState& wave : waves_) wave = {};
    runnable_.clear();
    for (int i = 0; i < shape_.threads; ++i) {
      Fiber& fiber = fibers_[static_cast<size_t>(i)];
      fiber.lane = {i, block};
      fiber.copies.assign(1, {});
      if (!fiber.self) fiber.self = make_fiber(fiber);
      wake(fiber);
    }
    num_done_ = 0;
    current_ = &host_;
    run_another();  // comes back when nobody can go on
    if (num_done_ < shape_.threads) report_stuck();
    current_ = nullptr;
  }

  context::fiber make_fiber(Fiber& fiber) {
    return context::fiber(std::allocator_arg, StackSource{},
                          [this, &fiber](context::fiber&& before) -> context::fiber {
                            left_->self = std::move(before);
                            while (true) {
                              (*kernel_)();
                              fiber.state = State::kDone;
                              ++num_done_;
                              run_another();
                            }
                          });
  }

  // From fiber to fiber, without a way back to the host in between. Returns when somebody chooses the caller.
  void run_another() {
    Fiber* next = &host_;
    if (!runnable_.empty()) {
      const size_t pick = random_() * runnable_.size() >> 32;
      next = runnable_[pick];
      runnable_[pick] = runnable_.back();
      runnable_.pop_back();
    }
    if (next == current_) return;
    left_ = current_;
    current_ = next;
    context::fiber before = std::move(next->self).resume();
    left_->self = std::move(before);
  }

  void wake(Fiber& fiber) {
    fiber.state = State::kRunnable;
    runnable_.push_back(&fiber);
  }

  void block_current(State state, const Site& where) {
    Fiber& fiber = *current_;
    fiber.state = state;
    fiber.where = where;
    run_another();
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

  static bool is_aligned(const void* address, size_t size) {  // a size is nearly always a power of two
    const auto at = reinterpret_cast<uintptr_t>(address);
    return (size & (size - 1)) == 0 ? (at & (size - 1)) == 0 : at % size == 0;
  }

  // Of another thread, with nothing between that orders it before `mine`.
  bool races(const Access& before, const Access& mine) const {
    return before.epoch() == epoch_ && !before.by(mine) && !before.ordered_before(mine, wave_shift_);
  }

  // The first cell where the access is at fault; null where there is none.
  Cell* access_word(size_t word, size_t offset, size_t size, const Access& mine, bool write) {
    Cell* const cells = &cells_[word * kWordCells];
    char& is_split = is_split_[word];
    if (size == kWordBytes && is_split == 0) return access_cell(cells[0], mine, write) ? nullptr : cells;
    if (is_split == 0) {
      std::fill_n(cells + 1, kWordCells - 1, cells[0]);
      is_split = 1;
    }
    Cell* const end = cells + (offset + size + kCellBytes - 1) / kCellBytes;
    bool settled = size == kWordBytes;
    for (Cell* cell = cells + offset / kCellBytes; cell != end; ++cell) {
      if (!access_cell(*cell, mine, write)) return cell;
      settled = settled && (write || (cell->write.epoch() != epoch_ && cell->read == cells[0].read));
    }
    // Nothing can race any more with writes behind a barrier, whoever made them; nor with what read a cell
    // before `mine` wrote it that does not race with that write.
    if (settled) is_split = 0;
    return nullptr;
  }

  bool access_cell(Cell& cell, const Access& mine, bool write) const {
    return write ? write_cell(cell, mine) : read_cell(cell, mine);
  }

  bool read_cell(Cell& cell, const Access& mine) const {
    if (cell.write.epoch() < block_epoch_ || races(cell.write, mine)) return false;
    if (cell.read.epoch() != epoch_)
      cell.read = mine;
    else if (cell.read != mine)
      cell.read = cell.read.ordered_before(mine, wave_shift_) ? mine : cell.read.joined_by(mine, wave_shift_);
    return true;
  }

  bool write_cell(Cell& cell, const Access& mine) const {
    if (races(cell.write, mine) || races(cell.read, mine)) return false;
    cell.write = mine;
    return true;
  }

  // What was wrong with an access; the cell then takes it for one in good order.
  [[gnu::noinline]] void find_fault(Cell& cell, const Access& mine, size_t offset, bool write) {
    if (!write && cell.write.epoch() < block_epoch_)
      find(Kind::kSharedUnwritten, fmt::format("reads byte {} that nobody wrote", offset));
    else if (races(cell.write, mine))
      find(Kind::kSharedRace, fmt::format("{} byte {} that thread {} wrote, no barrier between",
                                          write ? "writes" : "reads", offset, cell.write.thread()));
    else
      find(Kind::kSharedRace,
           fmt::format("writes byte {} that {} read, no barrier between", offset,
                       cell.read.by_many() ? "others" : fmt::format("thread {}", cell.read.thread())));
    (write ? cell.write : cell.read) = mine;
  }

  LaunchShape shape_;
  int wave_shift_ = 5;
  const std::function<void()>* kernel_ = nullptr;
  std::mt19937 seeds_{1};
  std::mt19937 random_;
  uint64_t launch_seed_ = 0;
  std::array<int, 7> num_findings_{};  // of each kind
  std::vector<Fiber> fibers_{kMaxThreads};
  std::vector<Fiber*> runnable_;
  Fiber host_;                // run() itself
  Fiber* current_ = nullptr;  // who runs
  Fiber* left_ = nullptr;     // who ran before
  int num_done_ = 0;
  std::vector<WaveState> waves_{kMaxThreads / kMinWave + 1};
  std::vector<char> shared_;
  char* shared_begin_ = nullptr;
  std::vector<Cell> cells_;     // of shared memory
  std::vector<char> is_split_;  // words whose cells differ
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

const Lane& current_lane() { return running->current().lane; }
Grid current_grid() { return running->shape().grid; }
char* current_shared() { return running->shared(); }

void require_shared(size_t size_bytes) {
  if (size_bytes > running->shape().shared_bytes)
    running->find(Kind::kSharedBounds, fmt::format("takes {} bytes, the launch gave {}", size_bytes,
                                                   running->shape().shared_bytes));
}

void barrier(const Site& where) { running->barrier(where); }
void wave_barrier(const Site& where) {
  running->collective(Collective::kExchange, 0, 1, where, /*orders_memory=*/true);
}
const uint64_t* collective(Collective what, uint64_t value, int width, const Site& where) {
  return running->collective(what, value, width, where, /*orders_memory=*/false);
}
void work_together(WaveWork work, uint64_t value, int width, const Site& where) {
  running->collective(Collective::kExchange, value, width, where, /*orders_memory=*/false, work);
}
bool may_access_global(const void* address, size_t size_bytes, bool write) {
  return running->access_global(address, size_bytes, write);
}
bool may_access_shared(const void* address, size_t size_bytes, bool write) {
  return running->access_shared(address, size_bytes, write);
}

void add_copy(void* to, const void* from) { running->current().copies.back().push_back({to, from}); }

void commit_copies() { running->current().copies.emplace_back(); }

void wait_copies(int num_open) {
  struct Word {
    uint64_t v[2];
  };
  std::vector<std::vector<AsyncCopy>>& copies = running->current().copies;
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
