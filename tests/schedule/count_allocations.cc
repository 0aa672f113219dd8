#include "schedule/count_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> count = 0;
}  // namespace

int64_t longspan::num_allocations() { return count; }

// ThreadSanitizer brings an operator new of its own: nothing is counted there.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LONGSPAN_NO_COUNT
#endif
#endif

#ifndef LONGSPAN_NO_COUNT
void* operator new(size_t size) {
  ++count;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif
