// Matrix products by cublasLt.
#include <cublasLt.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "ops/device/backend.h"
#include "ops/device/gemm_library.h"
#include "ops/device/launch.h"
#include "ops/device/weight.h"

namespace longspan::ops::device {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr Index kTunedRows = 4096;  // the kernel that is best here serves every number of rows

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

  // The kernel for (dtype, N, K), or none.
  const std::optional<cublasLtMatmulAlgo_t>& algorithm(DType dtype, Index n, Index k, Index stride) {
    const auto [found, fresh] = algorithms.try_emplace({dtype, n, k});
    if (!fresh) return found->second;
    const Layout w(dtype, n, k, stride), x(dtype, kTunedRows, k, stride), out(dtype, kTunedRows, n, n);
    cublasLtMatmulHeuristicResult_t best{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, product, w.get(), x.get(), out.get(),
                                                                 out.get(), preference, 1, &best, &count);
    if (status == CUBLAS_STATUS_SUCCESS && count > 0) found->second = best.algo;
    return found->second;
  }

  Device& device;
  Buffer workspace;
  std::string name;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  std::map<std::tuple<DType, Index, Index>, std::optional<cublasLtMatmulAlgo_t>> algorithms;
};

GemmLibrary::GemmLibrary(Device& device) : impl_(std::make_unique<Impl>(device)) {}
GemmLibrary::~GemmLibrary() = default;
const char* GemmLibrary::name() const { return impl_->name.c_str(); }

std::string find_gemm_library(const DeviceInfo&) { return library_name(); }

bool GemmLibrary::matmul(const Matmul& args) {
  const DeviceWeight& weight = device_weight(args.weight);
  const Index m = args.x.dim(0), n = weight.out_features, k = weight.in_features;
  if (!args.bias.empty() || !takes_words(args.x) || !takes_words(args.out)) return false;
  const std::optional<cublasLtMatmulAlgo_t>& algorithm =
      impl_->algorithm(args.x.dtype, n, k, weight.stride());
  if (!algorithm) return false;
  const Layout w(args.x.dtype, n, k, weight.stride()), x(args.x.dtype, m, k, args.x.stride(0)),
      out(args.x.dtype, m, n, args.out.stride(0));
  const float one = 1.0f, zero = 0.0f;
  Device& device = impl_->device;
  device.before_launch();
  const cublasStatus_t status =
      cublasLtMatmul(impl_->handle, impl_->product, &one, weight.view().data, w.get(), args.x.data, x.get(),
                     &zero, args.out.data, out.get(), args.out.data, out.get(), &*algorithm,
                     impl_->workspace.data(), kWorkspaceBytes, static_cast<cudaStream_t>(device.stream()));
  if (status != CUBLAS_STATUS_SUCCESS) return false;
  device.after_launch("cublas",
                      static_cast<double>(weight.size_bytes() + args.x.size_bytes() + args.out.size_bytes()),
                      2.0 * static_cast<double>(m * n * k));
  return true;
}

}  // namespace longspan::ops::device
