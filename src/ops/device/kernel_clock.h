// KernelClock: when the device began and ended each kernel and each copy, and which call of the host's asked
// for it. Whatever the vendor has for that stands behind it: kernel_clock_cupti.cc, the emulator's, or none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace longspan::ops::device {

struct KernelEvent {
  enum class Kind : uint8_t {
    kKernel,  // value: index of its name
    kCopy,    // between memories, or a fill; value: undefined
    kCall     // what carries this ticket was asked for by call `value`; no times
  };
  int64_t begin_ns = 0;  // of the steady clock
  int64_t end_ns = 0;
  uint32_t ticket = 0;  // of what put it to the device; all of a replay have the same
  uint32_t value = 0;
  Kind kind = Kind::kKernel;
};

struct KernelEvents {
  std::vector<KernelEvent> events;  // in no order: a ticket's call may come later than its kernels
  std::vector<std::string> names;   // that are new; the first of a clock has index 0
  int64_t num_lost = 0;             // since the clock started: events that found no room
};

inline constexpr size_t kMaxWaitingEvents = 4'000'000;  // for take(); then events are lost, and counted

// One at a time runs in a process, for all of its devices; the destructor stops it.
class KernelClock {
 public:
  virtual ~KernelClock() = default;

  // On the thread that puts work to the device: all of it up to close() belongs to `call`. Not nested.
  virtual void open(uint32_t call) = 0;
  virtual void close() = 0;

  // On any thread: what has ended since the last time, as far as it is known yet.
  virtual KernelEvents take() = 0;
  // Of what ended before, all is known when it returns; take() gives it. Nothing more comes.
  virtual void stop() = 0;
};

// Throws kEnvironment, saying why this build or this machine has none, or why it is refused now.
std::unique_ptr<KernelClock> start_kernel_clock();

}  // namespace longspan::ops::device
