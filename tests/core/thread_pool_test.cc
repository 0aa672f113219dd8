// The pool: every task exactly once, whatever the threads are doing when a loop starts. Run it under
// -DLONGSPAN_SANITIZE=thread too.
#include "core/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <numeric>
#include <thread>
#include <vector>

namespace longspan {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const int num_threads : {1, 2, 3, 8}) {
    ThreadPool pool(num_threads);
    for (const int64_t num_tasks : {0, 1, 2, 3, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(num_tasks));
      pool.parallel_for(num_tasks, [&](int64_t task, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, num_threads);
        runs[static_cast<size_t>(task)].fetch_add(1);
      });
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, OneThreadTakesTasksInOrder) {
  ThreadPool pool(1);
  std::vector<int64_t> order;
  pool.parallel_for(5, [&](int64_t task, int) { order.push_back(task); });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

TEST(ThreadPool, ResultsAreVisibleToTheCaller) {
  ThreadPool pool(4);
  std::vector<int64_t> values(64);
  for (int64_t round = 1; round <= 2000; ++round) {
    pool.parallel_for(64, [&](int64_t task, int) { values[static_cast<size_t>(task)] = round * task; });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), round * 63 * 64 / 2);
  }
}

// A thread that comes late to one loop must not touch the next. Loops of changing length follow each other at
// once, more threads than processors, the loop's data dies with the loop.
TEST(ThreadPool, LateThreadsNeverTouchALaterLoop) {
  ThreadPool pool(6);
  for (int64_t round = 0; round < 5000; ++round) {
    const int64_t num_tasks = 2 + round % 9;
    std::vector<int> runs(static_cast<size_t>(num_tasks), 0);
    pool.parallel_for(num_tasks, [&runs, round, num_tasks](int64_t task, int) {
      ASSERT_LT(task, num_tasks) << "round " << round;
      runs[static_cast<size_t>(task)] += 1;
    });
    for (const int count : runs) ASSERT_EQ(count, 1) << "round " << round;
  }
}

TEST(ThreadPool, RangesCoverEverythingOnce) {
  ThreadPool pool(3);
  for (const int64_t count : {0, 1, 9, 10, 11, 95}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
    pool.parallel_ranges(count, 10, [&](int64_t begin, int64_t end) {
      EXPECT_LE(end - begin, 10);
      for (int64_t i = begin; i < end; ++i) runs[static_cast<size_t>(i)].fetch_add(1);
    });
    for (const auto& each : runs) ASSERT_EQ(each.load(), 1) << "of " << count;
  }
}

TEST(ThreadPool, FindsWhatOneThreadFindsFirst) {
  ThreadPool pool(4);
  const auto first = [&](const std::vector<int64_t>& wanted) {
    return pool.find_first(1000, 7, [&](int64_t begin, int64_t end) -> int64_t {
      for (int64_t i = begin; i < end; ++i)
        if (std::find(wanted.begin(), wanted.end(), i) != wanted.end()) return i;
      return -1;
    });
  };
  for (int round = 0; round < 200; ++round) {
    EXPECT_EQ(first({}), -1);
    EXPECT_EQ(first({999}), 999);
    EXPECT_EQ(first({0, 500}), 0);
    EXPECT_EQ(first({998, 400, 399, 700}), 399);
  }
}

TEST(ThreadPool, WakesAfterASleep) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.parallel_for(10, [&](int64_t task, int) { sum += task; });
  }
  EXPECT_EQ(sum.load(), 5 * 45);
}

TEST(ThreadPool, IdleThreadsSleep) {
  ThreadPool pool(4);
  pool.parallel_for(100, [](int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::clock_t before = std::clock();  // processor time of all threads
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 0.1) << "three threads that look for work take 0.9";
}

}  // namespace
}  // namespace longspan
