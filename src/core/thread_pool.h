// A fixed set of threads that share one loop at a time. parallel_for is called from one thread at a time (the
// engine's), which works along; it allocates nothing. Idle threads spin for a moment, then sleep.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace longspan {

// Processors this process may run on (affinity and cgroup cpusets included).
int usable_cpus();

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // >= 1, the caller counted in
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(task, thread) for each task in 0 .. num_tasks - 1 (below 2^32), tasks handed out in order,
  // thread in 0 .. num_threads - 1. Which thread gets a task is not fixed: results must not depend on it.
  // Returns when all are done. fn must not throw, and must not call parallel_for.
  template <class Fn>
  void parallel_for(int64_t num_tasks, const Fn& fn) {
    run(
        num_tasks,
        [](const void* context, int64_t task, int thread) {
          (*static_cast<const Fn*>(context))(task, thread);
        },
        &fn);
  }

  // fn(begin, end) for the stretches of 0 .. count - 1, each of `length` but the last, as tasks.
  template <class Fn>
  void parallel_ranges(int64_t count, int64_t length, const Fn& fn) {
    parallel_for((count + length - 1) / length,
                 [&](int64_t task, int) { fn(task * length, std::min(count, (task + 1) * length)); });
  }

  // The lowest of what find(begin, end) gives for such stretches, each the lowest within it, or -1: what one
  // thread would find.
  template <class Fn>
  int64_t find_first(int64_t count, int64_t length, const Fn& find) {
    std::atomic<int64_t> first{count};
    parallel_ranges(count, length, [&](int64_t begin, int64_t end) {
      if (begin >= first.load(std::memory_order_relaxed)) return;
      const int64_t found = find(begin, end);
      int64_t best = first.load(std::memory_order_relaxed);
      while (found >= 0 && found < best && !first.compare_exchange_weak(best, found)) {
      }
    });
    return first.load() < count ? first.load() : -1;
  }

 private:
  using TaskFn = void (*)(const void* context, int64_t task, int thread);

  void run(int64_t num_tasks, TaskFn fn, const void* context);
  void work(int thread);
  void worker_main(int thread);

  const int num_threads_;
  std::vector<std::thread> threads_;

  // The loop's body. Read only by a thread that has claimed one of its tasks, and the loop cannot end before
  // that task is done: a thread that comes late finds nothing to claim and never looks.
  TaskFn fn_ = nullptr;
  const void* context_ = nullptr;

  // num_tasks in the high half, the next task in the low half: one word, so that a claim is checked against
  // the loop it belongs to.
  std::atomic<uint64_t> tickets_{0};
  std::atomic<int64_t> num_unfinished_{0};
  std::atomic<uint32_t> num_loops_{0};  // raised once a loop; sleepers wait on it
  std::atomic<bool> stop_{false};
};

}  // namespace longspan
