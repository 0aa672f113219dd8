// Prompt attention by a library that is found at run time: what stands in its way, what it must prove, and
// that its rows take the place of the own kernel's. The emulator's memory is the host's: a fake library
// serves.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "device/devices.h"
#include "ops/device/prefill_library.h"
#include "paged_attention.h"

namespace longspan::ops::test {
namespace {

namespace fs = std::filesystem;
using device::PrefillShape;

// A copy of the library a test: what it counts begins anew.
class PrefillLibrary : public ::testing::Test {
 protected:
  PrefillLibrary() {
    std::string name = (fs::temp_directory_path() / "longspan-prefill-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    ::unsetenv("FAKE_PREFILL");
    ::unsetenv("LONGSPAN_PREFILL");
  }
  ~PrefillLibrary() override {
    ::unsetenv("FAKE_PREFILL");
    ::unsetenv("LONGSPAN_PREFILL");
    fs::remove_all(folder_);
  }

  fs::path file() const { return folder_ / "libattention.so"; }
  void install(const char* library = FAKE_PREFILL_PLAIN) {
    fs::copy_file(library, file());
    ::setenv("LONGSPAN_PREFILL", file().c_str(), 1);
  }
  int64_t num_calls() const {
    void* const library = ::dlopen(file().c_str(), RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<int64_t (*)()>(::dlsym(library, "fake_num_calls"))();
  }

  static PrefillShape shape(DType dtype = DType::kBF16, Index page_tokens = 64) {
    return {.dtype = dtype,
            .kv_dtype = dtype,
            .head_dim = 128,
            .page_tokens = page_tokens,
            .num_q_heads = 4,
            .num_kv_heads = 2};
  }
  static std::string obstacle(const PrefillShape& shape) {
    return device::choose_prefill_library(0, shape).obstacle;
  }

  fs::path folder_;
};

TEST_F(PrefillLibrary, IsLookedForWhereItIsNamed) {
  EXPECT_EQ(obstacle(shape()), "library: none is looked for");
  ::setenv("LONGSPAN_PREFILL", "none", 1);
  EXPECT_EQ(obstacle(shape()), "library: none is looked for");
  ::setenv("LONGSPAN_PREFILL", "/nowhere/a.so b-of-nobody.so", 1);
  EXPECT_EQ(obstacle(shape()), "library: found none of /nowhere/a.so b-of-nobody.so");
  EXPECT_EQ(device::find_prefill_library(), "none: found none of /nowhere/a.so b-of-nobody.so");
  install();
  EXPECT_EQ(device::find_prefill_library(), "fake attention 9.8.7 (" + fs::canonical(file()).string() + ")");
  EXPECT_EQ(num_calls(), 0);  // looking asks nothing of it
}

TEST_F(PrefillLibrary, OfAnotherVersionIsNotTaken) {
  install();
  ::setenv("FAKE_PREFILL", "old", 1);
  EXPECT_EQ(obstacle(shape()), "library: " + file().string() + " speaks version 0, need 1");
}

TEST_F(PrefillLibrary, WithoutTheCallIsNotTaken) {
  install(FAKE_PREFILL_WITHOUT_CALL);
  EXPECT_EQ(obstacle(shape()), "library: " + file().string() + " has no longspan_prefill");
}

TEST_F(PrefillLibrary, ThatIsRightProvesItself) {
  install();
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const Index page_tokens : {64, 192}) EXPECT_EQ(obstacle(shape(dtype, page_tokens)), "");
  EXPECT_EQ(device::choose_prefill_library(0, shape()).name, "fake attention 9.8.7");
}

TEST_F(PrefillLibrary, NamesTheFirstConditionThatFails) {
  install();
  const auto with = [](auto&& change) {
    PrefillShape one = shape();
    change(one);
    return obstacle(one);
  };
  EXPECT_EQ(obstacle(shape(DType::kF32)), "dtype: got float32, need bfloat16 or float16");
  EXPECT_EQ(with([](auto& s) { s.kv_dtype = DType::kF8E4M3; }), "kv_dtype: got fp8_e4m3, need bfloat16");
  EXPECT_EQ(with([](auto& s) { s.head_dim = 64; }), "head_dim: got 64, need 128 or 256");
  EXPECT_EQ(with([](auto& s) { s.num_q_heads = 5; }), "gqa_ratio: got 5 and 2 heads, need a multiple");
  EXPECT_EQ(with([](auto& s) { s.page_tokens = 784; }), "page_multiple: got 784, need a multiple of 64");
  EXPECT_EQ(num_calls(), 0);
}

TEST_F(PrefillLibrary, ThatLiesIsFoundOut) {
  install();
  const std::string begin = "proof: " + fs::canonical(file()).string();
  const auto fault = [&](const char* name) {
    ::setenv("FAKE_PREFILL", name, 1);
    const std::string text = obstacle(shape(DType::kBF16, 192));
    EXPECT_TRUE(text.starts_with(begin)) << name << ": " << text;
    return text.substr(std::min(text.size(), begin.size() + 1));
  };
  for (const char* name : {"no-prefix", "not-causal", "reads-behind", "other-head", "does-nothing"})
    EXPECT_TRUE(fault(name).starts_with("is off by ")) << name;
  EXPECT_EQ(fault("by-turns"), "gives other bits the second time");
  EXPECT_EQ(fault("by-count"), "gives other bits where the prompt is cut");
  EXPECT_EQ(fault("by-page"), "gives other bits where its pages lie elsewhere");
  EXPECT_EQ(fault("by-crowd"), "gives other bits beside another sequence");
  EXPECT_EQ(fault("rows-from-zero"), "gives other bits beside another sequence");
  EXPECT_EQ(fault("writes-more"), "writes a row that is none of its own");
  EXPECT_EQ(fault("fails"), "refuses a call: no kernel for 64 tokens a page");
}

Problem problem() {
  return {.num_q_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 128,
          .page_tokens = 192,
          .decode = {{1, 76, 77}},
          .prefill = {{2, 0, 5}, {3, 64, 150}, {4, 200, 201}, {5, 128, 220}},
          .page_padding = 0,
          .prefill_path = AttentionPath::kVendorPrefill};
}

TEST_F(PrefillLibrary, TakesTheRowsOfPromptsAndTheirGates) {
  install();
  for (const int index : {0, 1}) {
    StagedBackend backend(device::make_backend(index));
    for (const DType dtype : {DType::kBF16, DType::kF16})
      for (const bool gated : {true, false}) {
        Problem one = problem();
        one.dtype = dtype;
        one.gated = gated;
        const int64_t before = num_calls();
        EXPECT_LT(relative_error(Step(one).run(backend), Step(one).run(reference())), 4e-3);
        EXPECT_GT(num_calls(), before);
      }
    Problem unified = problem();
    unified.prefill_path = AttentionPath::kUnified;
    const int64_t before = num_calls();
    Step(unified).run(backend);
    EXPECT_EQ(num_calls(), before);
  }
}

TEST_F(PrefillLibrary, ThatFailsInUseIsLeft) {
  StagedBackend own(device::make_backend(0));
  const std::vector<float> expected = Step(problem()).run(own);
  install();
  ::setenv("FAKE_PREFILL", "fails-later", 1);  // the proof makes seven calls
  StagedBackend backend(device::make_backend(0));
  for (int run = 0; run < 2; ++run) EXPECT_EQ(Step(problem()).run(backend), expected);
  EXPECT_EQ(num_calls(), 8);
}

}  // namespace
}  // namespace longspan::ops::test
