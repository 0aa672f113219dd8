// After warm-up a step allocates nothing. This program counts every operator new of the process.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "support/fixture.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> num_allocations{0};

void* counted(std::size_t size, std::size_t alignment) {
  if (counting.load(std::memory_order_relaxed)) num_allocations.fetch_add(1, std::memory_order_relaxed);
  void* pointer = alignment > alignof(std::max_align_t)
                      ? std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment)
                      : std::malloc(size == 0 ? 1 : size);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

}  // namespace

void* operator new(std::size_t size) { return counted(size, 0); }
void* operator new[](std::size_t size) { return counted(size, 0); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete[](void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::align_val_t) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t, std::align_val_t) noexcept { std::free(pointer); }

namespace longspan {
namespace {

// Counts while request after request prefills (several chunks) and decodes; what the consumer allocates is
// kept out by counting only between two looks at the response, while this thread sleeps.
int64_t allocations_of(engine::Engine& engine, const std::vector<int32_t>& prompt, int64_t max_new_tokens) {
  // Owned by the callback too: it may still run when the end has been seen.
  const auto num_changes = std::make_shared<std::atomic<int64_t>>(0);
  engine::Response response =
      engine.submit({.prompt = prompt, .max_new_tokens = max_new_tokens, .ignore_eos = true},
                    [num_changes] { num_changes->fetch_add(1); });
  while (num_changes->load() < 1) std::this_thread::yield();  // admitted, its first chunk done
  num_allocations = 0;
  counting = true;
  const int64_t last = num_changes->load() + max_new_tokens - 2;
  while (num_changes->load() < last) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  counting = false;
  const int64_t seen = num_allocations.load();
  testing::collect(response);
  return seen;
}

TEST(Allocation, CounterWorks) {
  counting = true;
  num_allocations = 0;
  operator delete(operator new(4));  // unlike a new-expression, no compiler may leave it out
  counting = false;
  EXPECT_EQ(num_allocations.load(), 1);
}

TEST(Allocation, StepsAllocateNothing) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    engine::Engine engine({.model = testing::model_dir("tiny"),
                           .dtype = dtype,
                           .max_model_len = 8192,
                           .max_num_seqs = 4,
                           .max_num_batched_tokens = 256});
    std::vector<int32_t> prompt = testing::Reference("tiny").at(8).prompt;
    prompt.resize(2000);
    testing::generate(engine, prompt, 3);  // what logs its first use has done so: paths, steady inputs
    EXPECT_EQ(allocations_of(engine, prompt, 300), 0) << dtype_name(dtype);
  }
}

}  // namespace
}  // namespace longspan
