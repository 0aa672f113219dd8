// Matrix products by cublasLt. Of the kernels that it proposes for a shape the fastest serves all numbers of
// rows: measured once and kept in a file, and only one that gives a row the same bits in blocks of any size.
#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/cache_folder.h"
#include "core/log.h"
#include "core/units.h"
#include "ops/device/backend.h"
#include "ops/device/gemm_choices.h"
#include "ops/device/gemm_library.h"
#include "ops/device/gemm_trial.h"
#include "ops/device/launch.h"
#include "ops/device/weight.h"

namespace longspan::ops::device {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr Index kTunedRows = 4096;  // the kernel that is best here serves every number of rows
constexpr int kMaxProposals = 16;
constexpr double kWorthIt = 0.97;  // of the first proposal's time: less is the card's mood

void check(const char* what, cublasStatus_t status) {
  CHECK_MSG(status == CUBLAS_STATUS_SUCCESS, "[cublasLt] {}: {}", what, cublasLtGetStatusString(status));
}

std::string library_name() {
  const size_t version = cublasLtGetVersion();
  return fmt::format("cublasLt {}.{}", version / 10000, version / 100 % 100);
}

cudaDataType_t data_type(DType dtype) {
  if (dtype == DType::kF32) return CUDA_R_32F;
  return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
}

// Row-major [rows, cols] with `stride` elements a row is column-major [cols, rows].
class Layout {
 public:
  Layout(DType dtype, Index rows, Index cols, Index stride) {
    check("layout", cublasLtMatrixLayoutCreate(&layout_, data_type(dtype), static_cast<uint64_t>(cols),
                                               static_cast<uint64_t>(rows), stride));
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

}  // namespace

struct GemmLibrary::Impl {
  explicit Impl(Device& on)
      : device(on), workspace(on.allocate(DType::kU8, {static_cast<Index>(kWorkspaceBytes)})) {
    check("create", cublasLtCreate(&handle));
    // fp32 sums; tensor cores round fp32 operands to tf32, which "fp32 sums" do not allow.
    check("describe", cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transpose = CUBLAS_OP_T;
    check("describe", cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                                     sizeof(transpose)));
    check("prefer", cublasLtMatmulPreferenceCreate(&preference));
    const size_t limit = kWorkspaceBytes;
    check("prefer", cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                         &limit, sizeof(limit)));
    const uint32_t alignment = 16;
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      check("prefer",
            cublasLtMatmulPreferenceSetAttribute(preference, attribute, &alignment, sizeof(alignment)));
    name = library_name();
  }
  ~Impl() {
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(product);
    cublasLtDestroy(handle);
  }

  struct Algorithm {  // nvcc 13.0 does not compile a vector of what has no name of its own
    cublasLtMatmulAlgo_t algo;
  };

  bool multiply(const Matmul& args, const Algorithm& algorithm) const {
    const DeviceWeight& weight = device_weight(args.weight);
    const DType dtype = args.x.dtype;
    const Index m = args.x.dim(0), n = weight.out_features, k = weight.in_features;
    const Layout w(dtype, n, k, weight.stride()), x(dtype, m, k, args.x.stride(0)),
        out(dtype, m, n, args.out.stride(0));
    const float one = 1.0f, zero = 0.0f;
    device.before_launch();
    if (cublasLtMatmul(handle, product, &one, weight.view().data, w.get(), args.x.data, x.get(), &zero,
                       args.out.data, out.get(), args.out.data, out.get(), &algorithm.algo, workspace.data(),
                       kWorkspaceBytes, static_cast<cudaStream_t>(device.stream())) != CUBLAS_STATUS_SUCCESS)
      return false;
    device.after_launch(
        "cublas", static_cast<double>(weight.size_bytes() + args.x.size_bytes() + args.out.size_bytes()),
        2.0 * static_cast<double>(m * n * k));
    return true;
  }

  // By the library's own opinion the best first.
  std::vector<Algorithm> proposals(DType dtype, const DeviceWeight& weight) const {
    const Index n = weight.out_features, k = weight.in_features;
    const Layout w(dtype, n, k, weight.stride()), x(dtype, kTunedRows, k, k), out(dtype, kTunedRows, n, n);
    cublasLtMatmulHeuristicResult_t found[kMaxProposals];
    int count = 0;
    if (cublasLtMatmulAlgoGetHeuristic(handle, product, w.get(), x.get(), out.get(), out.get(), preference,
                                       kMaxProposals, found, &count) != CUBLAS_STATUS_SUCCESS)
      count = 0;
    std::vector<Algorithm> list;
    for (int i = 0; i < count; ++i) list.push_back({found[i].algo});
    return list;
  }

  // The fastest proposal without a fault; the first where all have one, or where there is no memory for a
  // trial.
  size_t fastest(const Matmul& args, const std::vector<Algorithm>& list, const std::string& key) {
    const auto with = [&](size_t i) {
      return [this, &algorithm = list[i]](const Matmul& block) { return multiply(block, algorithm); };
    };
    try {
      GemmTrial trial(device, args, kTunedRows);
      const double own = trial.own_seconds();
      std::vector<std::pair<double, size_t>> order;
      for (size_t i = 0; i < list.size(); ++i) order.emplace_back(trial.seconds_of(with(i), own), i);
      const auto rank = [](const auto& one) { return one.first * (one.second == 0 ? kWorthIt : 1.0); };
      std::ranges::sort(order, {}, rank);
      for (const auto& [seconds, i] : order) {
        const std::string fault = trial.fault_of(with(i), {1, 100, kTunedRows / 2});
        if (fault.empty()) {
          log(LogLevel::kInfo, "{}: proposal {} of {}, {}", key, i, list.size(), format_seconds(seconds));
          choices.store(key, static_cast<int32_t>(i));
          return i;
        }
        log(LogLevel::kInfo, "{}: proposal {} {}", key, i, fault);
      }
      log(LogLevel::kWarn, "{}: no proposal without a fault; the first serves", key);
    } catch (const Error& error) {
      if (error.kind != ErrorKind::kExhausted) throw;
      log(LogLevel::kWarn, "{}: the library's first proposal, for a trial wants memory: {}", key,
          error.what());
    }
    return 0;
  }

  // The kernel for (dtype, N, K), or none.
  const std::optional<Algorithm>& algorithm(const Matmul& args) {
    const DeviceWeight& weight = device_weight(args.weight);
    const DType dtype = args.x.dtype;
    const auto [found, fresh] = algorithms.try_emplace({dtype, weight.out_features, weight.in_features});
    if (!fresh) return found->second;
    const std::vector<Algorithm> list = proposals(dtype, weight);
    if (list.empty()) return found->second;
    // In float32 the proposals differ little in time, and on an H200 some in the bits of a row.
    if (dtype == DType::kF32) return found->second = list[0];
    const std::string key =
        fmt::format("{} on {} {}, driver {}: {} {} x {}", name, device.info().name, device.info().arch,
                    device.info().driver, dtype_name(dtype), weight.out_features, weight.in_features);
    const std::optional<int32_t> kept = choices.find(key);
    const bool known = kept && *kept >= 0 && static_cast<size_t>(*kept) < list.size();
    found->second = list[known ? static_cast<size_t>(*kept) : fastest(args, list, key)];
    return found->second;
  }

  Device& device;
  Buffer workspace;
  std::string name;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  GemmChoices choices{cache_folder().empty() ? "" : cache_folder() / "gemm-choices.txt"};
  std::map<std::tuple<DType, Index, Index>, std::optional<Algorithm>> algorithms;
};

GemmLibrary::GemmLibrary(Device& device) : impl_(std::make_unique<Impl>(device)) {}
GemmLibrary::~GemmLibrary() = default;
const char* GemmLibrary::name() const { return impl_->name.c_str(); }

std::string find_gemm_library(const DeviceInfo&) { return library_name(); }

bool GemmLibrary::matmul(const Matmul& args) {
  if (!args.bias.empty() || !takes_words(args.x) || !takes_words(args.out)) return false;
  const std::optional<Impl::Algorithm>& algorithm = impl_->algorithm(args);
  return algorithm && impl_->multiply(args, *algorithm);
}

}  // namespace longspan::ops::device
