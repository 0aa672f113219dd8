#include "core/thread_pool.h"

#include <hwy/cache_control.h>
#include <sched.h>

#include "core/error.h"

namespace longspan {
namespace {

// About 20 us of waiting before a thread sleeps: the loops of one step follow each other faster.
constexpr int kSpins = 1000;

constexpr uint64_t tickets_of(int64_t num_tasks) { return static_cast<uint64_t>(num_tasks) << 32; }
constexpr uint32_t num_tasks_in(uint64_t tickets) { return static_cast<uint32_t>(tickets >> 32); }
constexpr uint32_t next_task_in(uint64_t tickets) { return static_cast<uint32_t>(tickets); }

}  // namespace

int usable_cpus() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  CHECK_MSG(num_threads >= 1, "got {} threads", num_threads);
  for (int thread = 1; thread < num_threads; ++thread)
    threads_.emplace_back([this, thread] { worker_main(thread); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  num_loops_.fetch_add(1, std::memory_order_release);
  num_loops_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(int64_t num_tasks, TaskFn fn, const void* context) {
  if (num_tasks <= 1 || num_threads_ == 1) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(context, task, 0);
    return;
  }
  CHECK_MSG(num_tasks <= UINT32_MAX, "got {} tasks", num_tasks);
  fn_ = fn;
  context_ = context;
  num_unfinished_.store(num_tasks, std::memory_order_relaxed);
  tickets_.store(tickets_of(num_tasks), std::memory_order_release);
  num_loops_.fetch_add(1, std::memory_order_release);
  num_loops_.notify_all();
  work(0);
  // What is left runs on other threads, and each has one task at most.
  for (int spins = 0; num_unfinished_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins)
      hwy::Pause();
    else
      std::this_thread::yield();
  }
}

void ThreadPool::work(int thread) {
  uint64_t tickets = tickets_.load(std::memory_order_relaxed);
  while (next_task_in(tickets) < num_tasks_in(tickets)) {
    // Acquire: a claim makes the loop's fn_ and context_ visible.
    if (!tickets_.compare_exchange_weak(tickets, tickets + 1, std::memory_order_acquire,
                                        std::memory_order_relaxed))
      continue;
    fn_(context_, next_task_in(tickets), thread);
    num_unfinished_.fetch_sub(1, std::memory_order_release);
    tickets = tickets_.load(std::memory_order_relaxed);
  }
}

void ThreadPool::worker_main(int thread) {
  uint32_t seen = 0;
  for (;;) {
    uint32_t current = num_loops_.load(std::memory_order_acquire);
    for (int spins = 0; current == seen && spins < kSpins; ++spins) {
      hwy::Pause();
      current = num_loops_.load(std::memory_order_acquire);
    }
    if (current == seen) {
      num_loops_.wait(seen, std::memory_order_acquire);
      continue;
    }
    seen = current;
    if (stop_.load(std::memory_order_relaxed)) return;
    work(thread);
  }
}

}  // namespace longspan
