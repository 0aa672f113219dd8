// Products by a library that is found at run time: what stands in its way, how its kernel is chosen, and that
// a row does not see how many share its product. The emulator's memory is the host's: a fake library serves.
#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "device/devices.h"
#include "gdn_case.h"
#include "ops/device/gemm.h"
#include "ops/device/gemm_choices.h"
#include "ops/device/gemm_trial.h"
#include "ops/device/weight.h"

namespace longspan::ops::test {
namespace {

namespace fs = std::filesystem;
using device::GemmChoices;

constexpr Index kN = 72, kK = 64;  // of the weight

// A folder with a copy of the library and its files of kernels, and a cache of its own.
class GemmLibrary : public ::testing::Test {
 protected:
  GemmLibrary() {
    std::string name = (fs::temp_directory_path() / "longspan-gemm-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    ::setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
    ::unsetenv("FAKE_ROCBLAS");
    ::unsetenv("ROCBLAS_TENSILE_LIBPATH");
    ::unsetenv("LONGSPAN_ROCBLAS");
  }
  ~GemmLibrary() override {
    ::unsetenv("LONGSPAN_ROCBLAS");
    fs::remove_all(folder_);
  }

  void install(const char* library) {
    fs::copy_file(library, folder_ / "librocblas.so.4");
    fs::create_directories(folder_ / "rocblas/library");
    std::ofstream(folder_ / "rocblas/library/TensileLibrary_lazy_wave32.dat") << "-";
    ::setenv("LONGSPAN_ROCBLAS", (folder_ / "librocblas.so.4").c_str(), 1);
  }

  template <class Fn>
  Fn* function(const char* name) {
    void* const library = ::dlopen((folder_ / "librocblas.so.4").c_str(), RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<Fn*>(::dlsym(library, name));
  }
  int64_t num_calls(int32_t solution) { return function<int64_t(int32_t)>("fake_num_calls")(solution); }

  std::string choices() const {
    std::ifstream in(folder_ / "longspan/gemm-choices.txt");
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path folder_;
};

// A product that changes an element in blocks of some kind is found out.
TEST(GemmTrial, ARowsBitsMustNotDependOnItsBlock) {
  device::Device emulated(0);
  const device::DeviceWeight weight(device::drawn_rows(emulated, DType::kBF16, kN, kK), kN, kK, kK);
  const TensorView x(nullptr, DType::kBF16, {1, kK}), out(nullptr, DType::kBF16, {1, kN});
  device::GemmTrial trial(emulated, {.x = x, .num_decode_rows = 0, .weight = &weight, .out = out}, 64);
  const auto product_that_lies = [&](const std::function<bool(const Matmul&)>& lies) {
    return [&emulated, lies](const Matmul& block) {
      device::gemm(emulated, block);
      const uint16_t other = 0x4321;
      char* const last_row = static_cast<char*>(block.out.data) +
                             (block.out.dim(0) - 1) * block.out.stride(0) * static_cast<Index>(sizeof other);
      if (lies(block)) emulated.upload(last_row + 2 * (kN - 1), &other, sizeof other);
      return true;
    };
  };
  EXPECT_EQ(trial.fault_of(product_that_lies([](const Matmul&) { return false; }), {1, 10, 32}), "");
  EXPECT_EQ(
      trial.fault_of(product_that_lies([](const Matmul& block) { return block.x.dim(0) == 10; }), {1, 10}),
      "gives row 9 other bits among 10 rows, 144 bytes apart");
  EXPECT_EQ(trial.fault_of(product_that_lies([](const Matmul& block) { return block.out.stride(0) != kN; }),
                           {1, 32}),
            "gives row 0 other bits among 1 rows, 160 bytes apart");
  EXPECT_EQ(trial.fault_of(product_that_lies([](const Matmul& block) { return block.x.dim(0) == 64; })),
            "gives row 63 other bits than row 7, which is the same");
}

TestTensor rows(DType dtype, Index num_rows, Index n, unsigned seed) {
  std::mt19937 rng(seed);
  TestTensor tensor(dtype, {num_rows, n});
  tensor.fill([&] { return std::normal_distribution<float>()(rng); });
  return tensor;
}

// Prompt rows of one fixed matrix times one fixed weight.
struct Answer {
  std::string device;
  std::vector<float> values;
};
Answer multiply(StagedBackend& backend, Index num_rows, DType dtype = DType::kF16, bool has_bias = false) {
  const TestTensor weight = rows(dtype, kN, kK, 1), x = rows(dtype, num_rows, kK, 2),
                   bias = rows(DType::kF32, 1, kN, 3);
  const TestTensor out(dtype, {num_rows, kN});
  const auto packed = backend.pack({&weight.view(), 1}, dtype);
  Matmul args{.x = x.view(), .num_decode_rows = 0, .weight = packed.get(), .out = out.view()};
  if (has_bias) args.bias = TensorView(bias.view().data, DType::kF32, {kN});
  backend.matmul(args);
  return {backend.name(), out.values()};
}
Answer multiply(Index num_rows) {
  StagedBackend backend(device::make_backend(0));
  return multiply(backend, num_rows);
}

void expect_own(const std::string& reason) {
  const Answer got = multiply(65);
  EXPECT_NE(got.device.find("own products: "), std::string::npos) << got.device;
  EXPECT_NE(got.device.find(reason), std::string::npos) << got.device;
  ::setenv("LONGSPAN_ROCBLAS", "none", 1);
  EXPECT_EQ(got.values, multiply(65).values);
}

TEST_F(GemmLibrary, NoneIsLookedForByTheEmulator) {
  const Answer got = multiply(65);
  EXPECT_EQ(got.device.find("own products"), std::string::npos) << got.device;
  EXPECT_EQ(got.device.find("rocBLAS"), std::string::npos) << got.device;
}

TEST_F(GemmLibrary, AMissingLibraryIsNamed) {
  ::setenv("LONGSPAN_ROCBLAS", "/nowhere/librocblas.so.4 librocblas-of-nobody.so", 1);
  expect_own("found none of /nowhere/librocblas.so.4 librocblas-of-nobody.so");
}

TEST_F(GemmLibrary, AFileThatIsNoLibraryIsNamed) {
  std::ofstream(folder_ / "librocblas.so.4") << "no library";
  ::setenv("LONGSPAN_ROCBLAS", (folder_ / "librocblas.so.4").c_str(), 1);
  expect_own("librocblas.so.4: file too short");
}

TEST_F(GemmLibrary, AMissingFunctionIsNamed) {
  install(FAKE_ROCBLAS_WITHOUT_GEMM);
  expect_own("has no rocblas_gemm_ex");
}

// It would end the process.
TEST_F(GemmLibrary, WithoutKernelsForTheCardItIsNotTouched) {
  install(FAKE_ROCBLAS_PLAIN);
  fs::remove(folder_ / "rocblas/library/TensileLibrary_lazy_wave32.dat");
  std::ofstream(folder_ / "rocblas/library/TensileLibrary_lazy_gfx90a.dat") << "-";
  expect_own("has no kernels for wave32 in " + (folder_ / "rocblas/library").string());
  EXPECT_EQ(num_calls(0), 0);
}

TEST_F(GemmLibrary, ItsKernelsMayLieElsewhere) {
  install(FAKE_ROCBLAS_PLAIN);
  fs::rename(folder_ / "rocblas/library", folder_ / "elsewhere");
  ::setenv("ROCBLAS_TENSILE_LIBPATH", (folder_ / "elsewhere").c_str(), 1);
  EXPECT_NE(multiply(65).device.find("rocBLAS 9.8.7"), std::string::npos);
}

TEST_F(GemmLibrary, WhatFailsItsProbeIsNotUsed) {
  install(FAKE_ROCBLAS_PLAIN);
  const std::pair<const char*, const char*> cases[] = {
      {"no-handle", "no handle, status 1"},
      {"fails", "refuses the product"},
      {"wrong", "away from the own kernel"},
      {"by-position", "gives row 256 other bits than row 0, which is the same"},
      {"by-turns", "gives row 0 other bits the second time"}};
  for (const auto& [fault, reason] : cases) {
    ::setenv("FAKE_ROCBLAS", fault, 1);
    ::setenv("LONGSPAN_ROCBLAS", (folder_ / "librocblas.so.4").c_str(), 1);
    expect_own(reason);
  }
  EXPECT_EQ(choices(), "");
}

TEST_F(GemmLibrary, ItsRowsAreTheReferencesAndDoNotSeeHowManyThereAre) {
  install(FAKE_ROCBLAS_PLAIN);
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    const TestTensor weight = rows(dtype, kN, kK, 1), x = rows(dtype, 1100, kK, 2);
    const TestTensor want(dtype, {1100, kN});
    const auto plain = reference().pack({&weight.view(), 1}, dtype);
    reference().matmul({.x = x.view(), .weight = plain.get(), .out = want.view()});
    const int64_t before = num_calls(0);
    StagedBackend backend(device::make_backend(0));
    const Answer all = multiply(backend, 1100, dtype);
    EXPECT_NE(all.device.find("rocBLAS 9.8.7"), std::string::npos) << all.device;
    EXPECT_GE(num_calls(0), before + 3);
    EXPECT_LT(relative_error(all.values, want.values()), dtype == DType::kF32 ? 2e-6 : 6e-4);
    for (const Index num_rows : {1, 17, 511, 512, 513}) {
      const Answer some = multiply(backend, num_rows, dtype);
      EXPECT_TRUE(std::equal(some.values.begin(), some.values.end(), all.values.begin()))
          << num_rows << " rows";
    }
  }
  EXPECT_EQ(function<int64_t()>("fake_num_other_rows")(), 0);
}

TEST_F(GemmLibrary, AProductWithABiasIsTheOwnKernels) {
  install(FAKE_ROCBLAS_PLAIN);
  StagedBackend with(device::make_backend(0));
  const std::vector<float> got = multiply(with, 20, DType::kF16, /*has_bias=*/true).values;
  EXPECT_EQ(num_calls(0), 2);  // the probe
  ::setenv("LONGSPAN_ROCBLAS", "none", 1);
  StagedBackend without(device::make_backend(0));
  EXPECT_EQ(got, multiply(without, 20, DType::kF16, /*has_bias=*/true).values);
}

TEST_F(GemmLibrary, TheFastestThatIsRightIsChosenAndKept) {
  install(FAKE_ROCBLAS_WITH_SOLUTIONS);
  multiply(65);
  EXPECT_EQ(choices().substr(0, 2), "7 ") << choices();
  EXPECT_NE(choices().find("float16 72 x 64"), std::string::npos) << choices();
  const int64_t wrong = num_calls(3), right = num_calls(7);
  EXPECT_GT(wrong, 0);
  multiply(65);
  EXPECT_EQ(num_calls(3), wrong);      // nothing is measured again
  EXPECT_EQ(num_calls(7), right + 3);  // but proved again, and used
}

TEST_F(GemmLibrary, AKeptChoiceThatIsNotRightAnyMoreIsMadeAgain) {
  install(FAKE_ROCBLAS_WITH_SOLUTIONS);
  multiply(65);
  std::string spoilt = choices();
  spoilt[0] = '3';
  std::ofstream(folder_ / "longspan/gemm-choices.txt") << spoilt;
  multiply(65);
  EXPECT_EQ(choices().substr(0, 2), "7 ") << choices();
}

TEST_F(GemmLibrary, ASlowOneIsLeftAlone) {
  install(FAKE_ROCBLAS_PLAIN);
  ::setenv("FAKE_ROCBLAS", "slow", 1);
  const std::vector<float> got = multiply(65).values;
  EXPECT_EQ(choices().substr(0, 3), "-1 ") << choices();
  const int64_t calls = num_calls(0);
  multiply(65);
  EXPECT_EQ(num_calls(0), calls + 2);  // the probe
  ::setenv("LONGSPAN_ROCBLAS", "none", 1);
  EXPECT_EQ(got, multiply(65).values);
}

TEST_F(GemmLibrary, AFailureInServiceLeavesTheRowsToTheOwnKernel) {
  install(FAKE_ROCBLAS_PLAIN);
  ::setenv("FAKE_ROCBLAS", "fails-later", 1);  // after probe, measurement and proof
  const std::vector<float> got = multiply(65).values;
  ::setenv("LONGSPAN_ROCBLAS", "none", 1);
  EXPECT_EQ(got, multiply(65).values);
}

TEST_F(GemmLibrary, ChoicesOutliveTheirObjectAndBadLinesAreNone) {
  const fs::path file = folder_ / "new/choices.txt";
  GemmChoices first(file);
  first.store("a shape", 5);
  first.store("another", -1);
  first.store("a shape", 6);
  EXPECT_EQ(GemmChoices(file).find("a shape"), 6);
  EXPECT_EQ(GemmChoices(file).find("another"), -1);
  EXPECT_EQ(GemmChoices(file).find("shape"), std::nullopt);
  std::ofstream(file, std::ios::app) << "seven a\n8\n\n99999999999 b\n9 c\n";
  const GemmChoices damaged(file);
  for (const char* key : {"a", "b", ""}) EXPECT_EQ(damaged.find(key), std::nullopt) << key;
  EXPECT_EQ(damaged.find("c"), 9);
  GemmChoices many(file);
  for (size_t i = 0; i < device::kMaxGemmChoices; ++i) many.store(std::to_string(i), 1);
  EXPECT_EQ(many.find("c"), std::nullopt);  // the oldest went
  GemmChoices nowhere{fs::path()};
  nowhere.store("a", 1);
  EXPECT_EQ(nowhere.find("a"), 1);
}

}  // namespace
}  // namespace longspan::ops::test
