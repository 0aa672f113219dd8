// A fixed set of threads that share one loop at a time. parallel_for is called from one thread (the
// engine's), which works along; it allocates nothing. Threads spin for a moment, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace longspan::ops::cpu {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // >= 1, the caller counted in
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(task, thread) for each task in 0 .. num_tasks - 1, tasks handed out in order, thread in 0 ..
  // num_threads - 1. Which thread gets a task is not fixed: results must not depend on it. Returns when all
  // are done.
  template <class Fn>
  void parallel_for(int64_t num_tasks, const Fn& fn) {
    run(
        num_tasks,
        [](const void* context, int64_t task, int thread) {
          (*static_cast<const Fn*>(context))(task, thread);
        },
        &fn);
  }

 private:
  using TaskFn = void (*)(const void* context, int64_t task, int thread);

  void run(int64_t num_tasks, TaskFn fn, const void* context);
  void work(int thread);
  void worker_main(int thread);

  const int num_threads_;
  std::vector<std::thread> threads_;

  TaskFn fn_ = nullptr;  // written before generation_ is raised
  const void* context_ = nullptr;
  int64_t num_tasks_ = 0;
  std::atomic<int64_t> next_task_{0};
  std::atomic<int> num_busy_{0};
  std::atomic<uint32_t> generation_{0};  // raised once a loop; workers wait on it
  std::atomic<bool> stop_{false};
};

}  // namespace longspan::ops::cpu
