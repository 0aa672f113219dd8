// Ten thousand random serving histories in small pools. SimulatedEngine checks every plan; here every answer
// must be that of the solo run, and every page must come back.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "schedule/simulated_engine.h"

namespace longspan::schedule {
namespace {

constexpr int64_t kMaxPrompt = 300;
constexpr int64_t kMaxAnswer = 200;
constexpr int64_t kMaxModelLen = kMaxPrompt + kMaxAnswer;

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t in(int64_t low, int64_t high) {  // both included
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return in(1, 100) <= percent; }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return list.begin()[in(0, static_cast<int64_t>(list.size()) - 1)];
  }

 private:
  std::mt19937 engine_;
};

struct Job {
  Tokens prompt;
  int64_t max_new_tokens = 0;
  bool cancelled = false;
};

struct Trace {
  SimulatedModel model;
  cache::CacheCapacity capacity;
  SchedulerOptions options;
};

Trace random_trace(Random& random) {
  Trace trace;
  trace.model = {.layout = random.one_of({cache::Layout::kUnified, cache::Layout::kSplit}),
                 .page_tokens = random.one_of<int64_t>({16, 16, 48, 64, 80, 128}),
                 .prefix_caching = random.chance(60),
                 .has_state = !random.chance(15)};
  const int32_t pages_of_longest = static_cast<int32_t>(kMaxModelLen / trace.model.page_tokens + 1);
  trace.capacity.num_pages = pages_of_longest + 2 + static_cast<int32_t>(random.in(0, pages_of_longest / 2));
  trace.capacity.num_state_slots = static_cast<int32_t>(random.in(1, 12));
  if (random.chance(65)) {
    trace.capacity.num_host_pages = static_cast<int32_t>(random.in(1, 2 * pages_of_longest));
    trace.capacity.num_host_slots = static_cast<int32_t>(random.in(0, 3));
  }
  trace.options = {.max_num_seqs = static_cast<int32_t>(random.in(1, 12)),
                   .max_num_batched_tokens = random.one_of<int64_t>({64, 100, 256, 1024}),
                   .max_model_len = kMaxModelLen,
                   .reuse_decoded = random.chance(10),
                   .min_checkpoint_tokens = random.one_of<int64_t>({64, 64, 128, 512})};
  return trace;
}

// Prompts that share beginnings, some of them whole.
Tokens random_prompt(Random& random) {
  Tokens prompt(static_cast<size_t>(random.chance(30) ? random.in(1, 70) : random.in(1, kMaxPrompt)));
  const int64_t family = random.in(0, 2);
  const int64_t own = random.one_of<int64_t>({0, random.in(0, 20), random.in(0, kMaxPrompt)});
  const int64_t shared = std::ssize(prompt) - own;
  for (int64_t i = 0; i < std::ssize(prompt); ++i)
    prompt[static_cast<size_t>(i)] = static_cast<int32_t>(i < shared ? family * 1000 + i : random.in(0, 50));
  return prompt;
}

// Over all histories, so that the test knows what they reached.
struct Totals {
  int64_t num_swap_outs = 0;
  int64_t num_replays = 0;
  int64_t num_cached_tokens = 0;
};

class History {
 public:
  explicit History(uint32_t seed)
      : random_(seed),
        trace_(random_trace(random_)),
        engine_(trace_.model, trace_.capacity, trace_.options) {}

  void run(Totals& totals) {
    const int64_t num_jobs = random_.in(1, 12);
    const int arrivals_percent = static_cast<int>(random_.one_of<int64_t>({5, 25, 90}));
    int64_t num_steps = 0;
    while (std::ssize(jobs_) < num_jobs || engine_.scheduler().has_work()) {
      if (std::ssize(jobs_) < num_jobs && random_.chance(arrivals_percent)) add_job();
      maybe_cancel();
      if (!engine_.begin_step(random_limit())) {
        ASSERT_FALSE(engine_.scheduler().has_work()) << "stuck: " << description();
        continue;
      }
      maybe_cancel();
      engine_.finish_step();
      ASSERT_LT(++num_steps, 20000) << "starved";
    }
    check_answers();
    check_pages();
    const SchedulerStats stats = engine_.scheduler().stats();
    totals.num_swap_outs += stats.num_swap_outs;
    totals.num_replays += stats.num_replays;
    totals.num_cached_tokens += stats.num_cached_tokens;
  }

 private:
  PrefillLimit random_limit() {
    if (random_.chance(50)) return {};
    return {.ms = 10,
            .token_ms = 1.0 / static_cast<double>(random_.in(1, 30)),
            .pair_ms = random_.one_of({0.0, 1e-5, 1e-3}),
            .max_end = random_.one_of<int64_t>({0, 0, 200})};
  }

  std::string description() {
    cache::CacheMemory& memory = engine_.scheduler().memory();
    return fmt::format(
        "{} layout, page {}, caching {}, {} pages ({} free), {} slots ({} free), {} rows, budget {}",
        to_string(trace_.model.layout), trace_.model.page_tokens, trace_.model.prefix_caching,
        memory.pages().num_pages(), memory.pages().num_free(), memory.states().num_pages(),
        memory.states().num_free(), trace_.options.max_num_seqs, trace_.options.max_num_batched_tokens);
  }

  void add_job() {
    const SeqId id = std::ssize(jobs_);
    Job job{.prompt = random_prompt(random_),
            .max_new_tokens = random_.chance(30) ? random_.in(1, 20) : random_.in(1, kMaxAnswer)};
    const Admission admission = engine_.scheduler().add({.id = id,
                                                         .prompt = job.prompt,
                                                         .max_new_tokens = job.max_new_tokens,
                                                         .priority = static_cast<int32_t>(random_.in(-1, 1)),
                                                         .cache_salt = random_.chance(10) ? "other" : ""});
    ASSERT_EQ(admission, Admission::kAccepted);
    jobs_.push_back(std::move(job));
  }

  void maybe_cancel() {
    if (jobs_.empty() || !random_.chance(1)) return;
    const SeqId id = random_.in(0, std::ssize(jobs_) - 1);
    if (engine_.scheduler().cancel(id)) jobs_[static_cast<size_t>(id)].cancelled = true;
  }

  void check_answers() {
    for (SeqId id = 0; id < std::ssize(jobs_); ++id) {
      const Job& job = jobs_[static_cast<size_t>(id)];
      EXPECT_EQ(engine_.is_finished(id), !job.cancelled);
      if (job.cancelled || (trace_.options.reuse_decoded && trace_.model.prefix_caching)) continue;
      EXPECT_EQ(engine_.answer(id), solo_answer(job.prompt, job.max_new_tokens, trace_.model.has_state))
          << "job " << id;
    }
  }

  void check_pages() {
    cache::CacheMemory& memory = engine_.scheduler().memory();
    if (memory.index()) memory.index()->clear();
    EXPECT_EQ(memory.pages().num_free(), memory.pages().num_pages());
    EXPECT_EQ(memory.states().num_free(), memory.states().num_pages());
    EXPECT_EQ(memory.host_pages().num_free(), memory.host_pages().num_pages());
    EXPECT_EQ(memory.host_states().num_free(), memory.host_states().num_pages());
  }

  Random random_;
  Trace trace_;
  SimulatedEngine engine_;
  std::vector<Job> jobs_;
};

void run_traces(uint32_t first_seed, uint32_t last_seed) {
  Totals totals;
  for (uint32_t seed = first_seed; seed <= last_seed; ++seed) {
    History(seed).run(totals);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
  }
  // The histories must reach what they are about.
  const int64_t num_traces = last_seed - first_seed + 1;
  EXPECT_GT(totals.num_swap_outs, num_traces / 20);
  EXPECT_GT(totals.num_replays, num_traces / 20);
  EXPECT_GT(totals.num_cached_tokens, num_traces * 10);
}

TEST(RandomTraces, EveryAnswerIsThatOfItsSoloRun) { run_traces(1, 1000); }
TEST(RandomTraces, AndSoNineThousandTimesMore) { run_traces(1001, 10000); }

}  // namespace
}  // namespace longspan::schedule
