#include "ops/cpu/thread_pool.h"

#include "core/error.h"

namespace longspan::ops::cpu {
namespace {

constexpr int kSpins =
    4000;  // about 20 us of waiting before a thread sleeps: loops of one step follow each other faster

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  CHECK_MSG(num_threads >= 1, "got {} threads", num_threads);
  for (int thread = 1; thread < num_threads; ++thread)
    threads_.emplace_back([this, thread] { worker_main(thread); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(int64_t num_tasks, TaskFn fn, const void* context) {
  if (num_tasks <= 1 || num_threads_ == 1) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(context, task, 0);
    return;
  }
  fn_ = fn;
  context_ = context;
  num_tasks_ = num_tasks;
  next_task_.store(0, std::memory_order_relaxed);
  num_busy_.store(num_threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  work(0);
  for (int spins = 0; num_busy_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins)
      pause_cpu();
    else
      std::this_thread::yield();
  }
}

void ThreadPool::work(int thread) {
  for (;;) {
    const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= num_tasks_) return;
    fn_(context_, task, thread);
  }
}

void ThreadPool::worker_main(int thread) {
  uint32_t seen = 0;
  for (;;) {
    uint32_t current = generation_.load(std::memory_order_acquire);
    for (int spins = 0; current == seen && spins < kSpins; ++spins) {
      pause_cpu();
      current = generation_.load(std::memory_order_acquire);
    }
    if (current == seen) {
      generation_.wait(seen, std::memory_order_acquire);
      continue;
    }
    seen = current;
    if (stop_.load()) return;
    work(thread);
    num_busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace longspan::ops::cpu
