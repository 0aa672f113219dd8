// The engine's plan: what is refused before a weight is read, and the context that a small cache leaves.
#include <gtest/gtest.h>

#include <functional>

#include "support/fixture.h"

namespace longspan {
namespace {

engine::EngineOptions whole_context() { return {.model = testing::model_dir("tiny")}; }

TEST(EnginePlan, NumbersThatCannotWorkAreRefusedByName) {
  struct Case {
    const char* name;
    std::function<void(engine::EngineOptions&)> spoil;
  };
  const Case cases[] = {
      {"tensor_parallel_size", [](auto& o) { o.tensor_parallel = 0; }},
      {"max_num_batched_tokens", [](auto& o) { o.max_num_batched_tokens = 63; }},
      {"max_num_seqs", [](auto& o) { o.max_num_seqs = 0; }},
      {"max_num_seqs",
       [](auto& o) {
         o.max_num_batched_tokens = 64;
         o.max_num_seqs = 65;
       }},
      {"max_waiting", [](auto& o) { o.max_waiting = 0; }},
      {"threads", [](auto& o) { o.num_threads = -1; }},
      {"max_model_len", [](auto& o) { o.max_model_len = -5; }},
      {"max_model_len", [](auto& o) { o.max_model_len = 1; }},
      {"max_decode_stall_ms", [](auto& o) { o.max_decode_stall_ms = -1; }},
  };
  for (const Case& each : cases)
    for (const engine::Purpose purpose : {engine::Purpose::kRun, engine::Purpose::kExplain}) {
      engine::EngineOptions options = whole_context();
      each.spoil(options);
      try {
        engine::make_plan(options, purpose);
        ADD_FAILURE() << each.name << " was taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::kInvalid) << error.what();
        EXPECT_NE(std::string(error.what()).find(each.name), std::string::npos) << error.what();
      }
    }
}

// A cache for less than the model's context shortens the context to what one sequence can really have, state
// pages paid for.
TEST(EnginePlan, TheShortenedContextFits) {
  for (const cache::Layout layout : {cache::Layout::kUnified, cache::Layout::kSplit})
    for (const size_t mebibytes : {6, 14, 33}) {
      engine::EngineOptions options = whole_context();
      options.max_num_seqs = 1;
      options.pages.layout = layout;
      options.cache_bytes = mebibytes << 20;
      const engine::EngineInfo info = engine::make_plan(options, engine::Purpose::kRun);
      EXPECT_LT(info.max_model_len, info.config.max_position_embeddings);
      EXPECT_GE(info.memory.concurrency, 1) << cache::to_string(layout) << ", " << mebibytes << " MiB";
      EXPECT_LT(info.memory.concurrency, 1.01) << "tokens were given away";
    }
}

TEST(EnginePlan, AContextThatWasAskedForIsNotShortened) {
  engine::EngineOptions options = whole_context();
  options.max_model_len = 32768;
  options.cache_bytes = size_t{6} << 20;
  EXPECT_THROW(engine::make_plan(options, engine::Purpose::kRun), Error);
}

// Nobody is preempted where the cache holds everybody.
TEST(EnginePlan, ASmallCacheIsGivenHostMemoryToSwapTo) {
  engine::EngineOptions options = whole_context();
  options.max_model_len = 4096;
  EXPECT_EQ(engine::make_plan(options, engine::Purpose::kExplain).swap.num_pages, 0);
  options.cache_bytes = size_t{40} << 20;
  const engine::EngineInfo small = engine::make_plan(options, engine::Purpose::kExplain);
  EXPECT_GT(small.swap.num_pages, 0);
  EXPECT_LE(small.swap.size_bytes, int64_t{10} << 20);
  options.swap_bytes = 0;
  EXPECT_EQ(engine::make_plan(options, engine::Purpose::kExplain).swap.num_pages, 0);
}

TEST(EnginePlan, TheCacheTakesWhatTheBudgetLeaves) {
  engine::EngineOptions options = whole_context();
  options.memory_bytes = size_t{160} << 20;
  const engine::EngineInfo info = engine::make_plan(options, engine::Purpose::kRun);
  const size_t total = info.weight_bytes + info.workspace_bytes + info.cache_bytes;
  EXPECT_LE(total, options.memory_bytes);
  EXPECT_GT(total, options.memory_bytes - (size_t{4} << 20));
  options.memory_bytes = 0;
  options.memory_share = 1.5;
  EXPECT_THROW(engine::make_plan(options, engine::Purpose::kRun), Error);
}

constexpr auto kDevice = engine::DeviceKind::kDevice;

TEST(ChooseDType, TheCheckpointsWhereTheCardIsFastAtIt) {
  for (const char* arch : {"gfx936", "gfx936:sramecc+:xnack-", "gfx90a", "gfx928", "gfx942", "gfx1100",
                           "sm_80", "sm_90", "sm_100", "wave32", ""}) {
    const engine::DTypeChoice choice = engine::choose_dtype(std::nullopt, DType::kBF16, kDevice, arch);
    EXPECT_EQ(choice.dtype, DType::kBF16) << arch;
    EXPECT_EQ(choice.reason, "of the checkpoint") << arch;
  }
  EXPECT_EQ(engine::choose_dtype(std::nullopt, DType::kF16, kDevice, "gfx936").dtype, DType::kF16);
  for (const char* arch : {"gfx906", "sm_90"})
    EXPECT_EQ(engine::choose_dtype(std::nullopt, DType::kF32, kDevice, arch).dtype, DType::kF32) << arch;
}

TEST(ChooseDType, Float16WithItsReasonWhereThereAreNoBfloat16Instructions) {
  for (const char* arch : {"gfx906", "gfx906:sramecc+:xnack-", "gfx900", "gfx926", "gfx1030"}) {
    const engine::DTypeChoice choice = engine::choose_dtype(std::nullopt, DType::kBF16, kDevice, arch);
    EXPECT_EQ(choice.dtype, DType::kF16) << arch;
    EXPECT_TRUE(choice.reason.starts_with(std::string(arch).substr(0, std::string(arch).find(':')) +
                                          " has no bfloat16 "))
        << choice.reason;
  }
  EXPECT_EQ(engine::choose_dtype(std::nullopt, DType::kBF16, kDevice, "gfx906:sramecc-:xnack-").reason,
            "gfx906 has no bfloat16 instructions; float16 has packed ones");
  EXPECT_EQ(engine::choose_dtype(std::nullopt, DType::kF16, kDevice, "gfx906").reason, "of the checkpoint");
  EXPECT_EQ(engine::choose_dtype(std::nullopt, DType::kF16, kDevice, "sm_90").dtype, DType::kBF16);
}

TEST(ChooseDType, WhatIsAskedForIsTakenAndItsPriceNamed) {
  EXPECT_EQ(engine::choose_dtype(DType::kF16, DType::kBF16, kDevice, "gfx936").reason, "asked for");
  const engine::DTypeChoice slow = engine::choose_dtype(DType::kBF16, DType::kBF16, kDevice, "gfx906");
  EXPECT_EQ(slow.dtype, DType::kBF16);
  EXPECT_EQ(slow.reason, "asked for, though gfx906 has no bfloat16 instructions; float16 has packed ones");
}

TEST(ChooseDType, WhatADeviceDoesNotComputeInIsRefusedInOneLine) {
  const auto refusal = [](DType asked, engine::DeviceKind device) -> std::string {
    try {
      engine::choose_dtype(asked, DType::kBF16, device, "");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::kUnsupported);
      return error.what();
    }
    return "taken";
  };
  EXPECT_EQ(refusal(DType::kF16, engine::DeviceKind::kCpu),
            "dtype float16: the cpu device computes in bfloat16 or float32");
  EXPECT_EQ(refusal(DType::kF8E4M3, kDevice),
            "dtype fp8_e4m3: a device computes in bfloat16, float16 or float32");
  EXPECT_EQ(engine::choose_dtype(std::nullopt, DType::kF16, engine::DeviceKind::kCpu, "").dtype,
            DType::kBF16);
}

// Pages, state and workspace follow the products' dtype.
TEST(ChooseDType, AFloat16PlanIsAsLargeAsABfloat16One) {
  engine::EngineOptions options = whole_context();
  options.device = kDevice;
  options.pages.alignment = 64;  // else each takes its own: vendor_prefill is bfloat16's
  options.dtype = DType::kBF16;
  const engine::EngineInfo bfloat = engine::make_plan(options, engine::Purpose::kExplain);
  options.dtype = DType::kF16;
  const engine::EngineInfo half = engine::make_plan(options, engine::Purpose::kExplain);
  EXPECT_EQ(half.page_plan.kv_dtype, DType::kF16);
  EXPECT_EQ(half.page_plan.page_tokens, bfloat.page_plan.page_tokens);
  EXPECT_EQ(half.page_plan.attention_page_bytes, bfloat.page_plan.attention_page_bytes);
  EXPECT_EQ(half.page_plan.state.size_bytes, bfloat.page_plan.state.size_bytes);
  EXPECT_EQ(half.weight_bytes, bfloat.weight_bytes);
  EXPECT_GT(half.workspace_bytes, bfloat.workspace_bytes);  // its residual is float32
}

// The 27B's 4 heads of 256: a token of one layer takes 4 KiB in bfloat16.
TEST(EnginePlan, AnFp8CacheOnADeviceIsGivenRoomToBeUnpacked) {
  engine::EngineOptions options{.model = testing::fixture_dir("model-configs") / "qwen3.5-27b",
                                .random_seed = 1,
                                .device = kDevice,
                                .max_model_len = 40'000,
                                .kv_dtype = DType::kF8E4M3,
                                .memory_bytes = size_t{100} << 30};
  const engine::EngineInfo with = engine::make_plan(options, engine::Purpose::kExplain);
  const auto pages = static_cast<size_t>(with.page_plan.pages_for(40'000) + 1);
  EXPECT_EQ(with.unpacked_kv_bytes,
            pages * (static_cast<size_t>(with.page_plan.page_tokens) * 4096 + sizeof(int32_t)));
  const auto unpacked = [&](auto change) {
    engine::EngineOptions other = options;
    change(other);
    return engine::make_plan(other, engine::Purpose::kExplain).unpacked_kv_bytes;
  };
  EXPECT_EQ(unpacked([](auto& o) { o.kv_dtype.reset(); }), 0U);
  EXPECT_EQ(unpacked([](auto& o) { o.dispatch.enable_vendor_prefill = false; }), 0U);
  EXPECT_EQ(unpacked([](auto& o) { o.device = engine::DeviceKind::kCpu; }), 0U);
  options.dispatch.enable_vendor_prefill = false;
  options.pages.alignment = 64;
  const engine::EngineInfo without = engine::make_plan(options, engine::Purpose::kExplain);
  EXPECT_EQ(with.workspace_bytes, without.workspace_bytes + with.unpacked_kv_bytes);
}

TEST(EnginePlan, StopTokensLieWithinTheVocabulary) {
  engine::EngineOptions options = whole_context();
  const std::vector<int32_t> own = engine::make_plan(options, engine::Purpose::kExplain).eos_ids;
  options.tokenizer_eos_ids = {248044, -7};
  EXPECT_EQ(engine::make_plan(options, engine::Purpose::kExplain).eos_ids, own);
}

}  // namespace
}  // namespace longspan
