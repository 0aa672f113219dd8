// Matrix products by rocBLAS, where the machine has one that knows the card and is faster than the own
// kernel.
//
// Its choice of kernel, left to itself, depends on the number of rows. So all calls have the same number:
// prompt rows go through in blocks of kBlockRows, the last one filled up. Which kernel that is, the library's
// own choice or one of its solutions or ours, is measured once a shape and kept in a file; what wins must
// give a row the same bits anywhere in a block (gemm_trial.h), and is tried again after it was read from the
// file.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
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
#include "ops/device/rocblas.h"
#include "ops/device/weight.h"

namespace longspan::ops::device {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Index kBlockRows =
    512;  // from about 330 on a gfx936 is bound by arithmetic, by its published figures
constexpr int32_t kOwnKernel = -1;
constexpr int32_t kLibrarysChoice = 0;  // larger: the solution of that index
constexpr int32_t kMaxSolutions = 512;
constexpr auto kSearchTime = std::chrono::seconds(3);  // of one shape
constexpr size_t kMaxTried = 8;                        // of the fastest, for being right

// LONGSPAN_ROCBLAS names another library, or "none"; the emulator has no other.
std::string library_names() {
  if (const char* const named = std::getenv("LONGSPAN_ROCBLAS"))
    return std::string_view(named) == "none" ? "" : named;
  const bool on_card = std::string_view(api::kName) == "hip";
  return on_card ? "librocblas.so.5 librocblas.so.4 librocblas.so.3 librocblas.so.0 librocblas.so" : "";
}

rocblas::DataType data_type(DType dtype) {
  if (dtype == DType::kF32) return rocblas::DataType::kF32;
  return dtype == DType::kBF16 ? rocblas::DataType::kBF16 : rocblas::DataType::kF16;
}

// Block: a row; threads over its words.
struct CopyRowsKernel {
  static constexpr int kThreads = 256;
  using Word = Vec<uint32_t, 4>;
  Matrix<Word> from;  // [num_rows, n]
  Matrix<Word> to;    // [num_rows, n]
  int64_t n;

  DEVICE_FN void operator()() const {
    const int64_t row = block_idx().x;
    for (int64_t j = thread_idx(); j < n; j += kThreads) to.row(row).put(j, from.row(row).get(j));
  }
};

Matrix<CopyRowsKernel::Word> word_rows(const TensorView& view) {
  const auto size = static_cast<Index>(dtype_size(view.dtype));
  return {{static_cast<CopyRowsKernel::Word*>(view.data)}, view.stride(0) * size / 16};
}

void copy_rows(Device& device, const TensorView& from, const TensorView& to) {
  launch(device,
         {.name = "copy_rows",
          .grid = {static_cast<int>(from.dim(0))},
          .bytes = 2.0 * static_cast<double>(from.size_bytes())},
         CopyRowsKernel{.from = word_rows(from),
                        .to = word_rows(to),
                        .n = from.dim(1) * static_cast<Index>(dtype_size(from.dtype)) / 16});
}

// Rows of `like`'s width and stride in memory that is kept.
TensorView block_rows(Device& device, Buffer& memory, const TensorView& like) {
  const size_t bytes = static_cast<size_t>(kBlockRows * like.stride(0)) * dtype_size(like.dtype);
  if (memory.size_bytes() < bytes) {
    device.wait();  // kernels in flight use the old one
    memory = {};
    memory = device.allocate(DType::kU8, {static_cast<Index>(bytes)});
  }
  TensorView rows(memory.data(), like.dtype, {kBlockRows, like.dim(1)});
  rows.strides[0] = like.stride(0);
  return rows;
}

// What chooses a kernel: dtype, N, K, and the rows' strides, which are a layer's own.
using Shape = std::tuple<DType, Index, Index, Index, Index>;

Shape shape_of(const Matmul& args) {
  return {args.x.dtype, args.weight->out_features, args.weight->in_features, args.x.stride(0),
          args.out.stride(0)};
}

std::string choice_text(int32_t choice) {
  if (choice == kOwnKernel) return "own kernel";
  return choice == kLibrarysChoice ? "rocBLAS, its choice" : fmt::format("rocBLAS, solution {}", choice);
}

}  // namespace

struct GemmLibrary::Impl {
  explicit Impl(Device& on) : device(on) {}
  ~Impl() {
    if (handle == nullptr) return;
    device.wait();
    library->functions.destroy_handle(handle);
  }

  // Makes the library ready, or says why not.
  std::string open() {
    rocblas::Search search = rocblas::find(library_names(), device.info().arch);
    if (!search.library) return std::move(search.reason);
    library = std::move(search.library);
    const rocblas::Functions& call = library->functions;
    using enum rocblas::Status;
    device.before_launch();  // the handle is the current device's
    if (const auto status = call.create_handle(&handle); status != kSuccess || handle == nullptr)
      return fmt::format("{}: no handle, status {}", library->path, static_cast<int>(status));
    if (call.set_stream(handle, device.stream()) != kSuccess ||
        call.set_atomics_mode(handle, rocblas::AtomicsMode::kNotAllowed) != kSuccess)
      return fmt::format("{} does not take our stream, or sums without atomics", library->path);
    return "";
  }

  // A small product, for which the library loads its kernels. Empty when it is right.
  std::string probe() {
    constexpr Index kN = 64, kK = 64;
    const DeviceWeight weight(drawn_rows(device, DType::kF16, kN, kK), kN, kK, kK);
    const TensorView x(nullptr, DType::kF16, {kBlockRows, kK}), out(nullptr, DType::kF16, {kBlockRows, kN});
    GemmTrial trial(device, {.x = x, .num_decode_rows = 0, .weight = &weight, .out = out}, kBlockRows);
    const std::string fault =
        trial.fault_of([this](const Matmul& block) { return multiply(block, kLibrarysChoice); });
    return fault.empty() ? "" : fmt::format("{} {}", library->path, fault);
  }

  // One block of rows.
  bool multiply(const Matmul& block, int32_t choice) const {
    const DeviceWeight& weight = device_weight(block.weight);
    const Index m = block.x.dim(0), n = weight.out_features, k = weight.in_features;
    const float one = 1.0f, zero = 0.0f;
    const rocblas::DataType type = data_type(block.x.dtype);
    const auto out_stride = static_cast<int32_t>(block.out.stride(0));
    device.before_launch();
    // Row-major [rows, columns] is column-major [columns, rows].
    const rocblas::Status status = library->functions.gemm_ex(
        handle, rocblas::Operation::kTranspose, rocblas::Operation::kNone, static_cast<int32_t>(n),
        static_cast<int32_t>(m), static_cast<int32_t>(k), &one, weight.view().data, type,
        static_cast<int32_t>(weight.stride()), block.x.data, type, static_cast<int32_t>(block.x.stride(0)),
        &zero, block.out.data, type, out_stride, block.out.data, type, out_stride, rocblas::DataType::kF32,
        algorithm(choice), choice, /*flags=*/0);
    if (status != rocblas::Status::kSuccess) return false;
    device.after_launch(
        "rocblas", static_cast<double>(weight.size_bytes() + block.x.size_bytes() + block.out.size_bytes()),
        2.0 * static_cast<double>(m * n * k));
    return true;
  }

  static rocblas::GemmAlgo algorithm(int32_t choice) {
    return choice > 0 ? rocblas::GemmAlgo::kSolutionIndex : rocblas::GemmAlgo::kStandard;
  }

  // The library's own choice, then its solutions where it lists them.
  std::vector<int32_t> candidates(const Matmul& args) const {
    std::vector<int32_t> list = {kLibrarysChoice};
    const auto ask = library->functions.gemm_ex_get_solutions;
    if (ask == nullptr) return list;
    const DeviceWeight& weight = device_weight(args.weight);
    const float one = 1.0f, zero = 0.0f;
    const rocblas::DataType type = data_type(args.x.dtype);
    const auto out_stride = static_cast<int32_t>(args.out.stride(0));
    const auto fill = [&](int32_t* solutions, int32_t& count) {
      return ask(handle, rocblas::Operation::kTranspose, rocblas::Operation::kNone,
                 static_cast<int32_t>(weight.out_features), static_cast<int32_t>(kBlockRows),
                 static_cast<int32_t>(weight.in_features), &one, weight.view().data, type,
                 static_cast<int32_t>(weight.stride()), args.x.data, type,
                 static_cast<int32_t>(args.x.stride(0)), &zero, args.out.data, type, out_stride,
                 args.out.data, type, out_stride, rocblas::DataType::kF32, rocblas::GemmAlgo::kSolutionIndex,
                 /*flags=*/0, solutions, &count) == rocblas::Status::kSuccess;
    };
    int32_t count = 0;
    if (!fill(nullptr, count) || count <= 0) return list;
    std::vector<int32_t> solutions(static_cast<size_t>(std::min(count, kMaxSolutions)));
    count = static_cast<int32_t>(solutions.size());
    if (!fill(solutions.data(), count)) return list;
    std::ranges::copy_if(solutions, std::back_inserter(list), [](int32_t index) { return index > 0; });
    return list;
  }

  // Of this shape on this card, in the file.
  std::string key_of(const Matmul& args) const {
    return fmt::format("rocBLAS {} on {} {}: {} {} x {}, rows {} and {} apart, {} at a time",
                       library->version, device.info().name, device.info().full_arch,
                       dtype_name(args.x.dtype), args.weight->out_features, args.weight->in_features,
                       args.x.stride(0), args.out.stride(0), kBlockRows);
  }

  int32_t choose(const Matmul& args) {
    const std::string key = key_of(args);
    const std::optional<int32_t> kept = choices.find(key);
    if (kept == kOwnKernel) return kOwnKernel;
    GemmTrial trial(device, args, kBlockRows);
    const auto with = [this](int32_t choice) {
      return [this, choice](const Matmul& block) { return multiply(block, choice); };
    };
    if (kept) {
      const std::string fault = trial.fault_of(with(*kept));
      if (fault.empty()) return *kept;
      log(LogLevel::kWarn, "{}: {} {}; choosing again", key, choice_text(*kept), fault);
    }
    const double own = trial.own_seconds();
    std::pair<double, int32_t> best(own, kOwnKernel);
    std::vector<std::pair<double, int32_t>> faster;
    const Clock::time_point end = Clock::now() + kSearchTime;
    for (const int32_t choice : candidates(args)) {
      if (!faster.empty() && Clock::now() > end) break;
      if (const double seconds = trial.seconds_of(with(choice), own); seconds < own)
        faster.emplace_back(seconds, choice);
    }
    std::ranges::sort(faster);
    if (faster.size() > kMaxTried) faster.resize(kMaxTried);
    for (const auto& candidate : faster) {
      const std::string fault = trial.fault_of(with(candidate.second));
      if (fault.empty()) {
        best = candidate;
        break;
      }
      log(LogLevel::kInfo, "{}: {} {}", key, choice_text(candidate.second), fault);
    }
    choices.store(key, best.second);
    log(LogLevel::kInfo, "{}: {}, {} (own kernel {})", key, choice_text(best.second),
        format_seconds(best.first), format_seconds(own));
    return best.second;
  }

  // Rows that do not fill a block, in one that is filled with what lay there.
  bool multiply_some(const Matmul& rows, int32_t choice) {
    Matmul block = rows;
    block.x = block_rows(device, last_x, rows.x);
    block.out = block_rows(device, last_out, rows.out);
    const Index count = rows.x.dim(0);
    copy_rows(device, rows.x, block.x.rows(0, count));
    if (!multiply(block, choice)) return false;
    copy_rows(device, block.out.rows(0, count), rows.out);
    return true;
  }

  Device& device;
  std::string name;
  bool serves = false;
  std::optional<rocblas::Library> library;
  rocblas::Handle handle = nullptr;
  GemmChoices choices{cache_folder().empty() ? "" : cache_folder() / "gemm-choices.txt"};
  std::map<Shape, int32_t> chosen;
  Buffer last_x, last_out;
};

GemmLibrary::GemmLibrary(Device& device) : impl_(std::make_unique<Impl>(device)) {
  if (library_names().empty()) return;
  std::string reason = impl_->open();
  if (reason.empty()) reason = impl_->probe();
  impl_->serves = reason.empty();
  impl_->name =
      reason.empty() ? fmt::format("rocBLAS {}", impl_->library->version) : "own products: " + reason;
  if (!reason.empty()) log(LogLevel::kInfo, "prompt rows are multiplied by the own kernel: {}", reason);
}
GemmLibrary::~GemmLibrary() = default;
const char* GemmLibrary::name() const { return impl_->name.c_str(); }

bool GemmLibrary::matmul(const Matmul& args) {
  if (!impl_->serves || !args.bias.empty() || !takes_words(args.x) || !takes_words(args.out)) return false;
  const auto [found, fresh] = impl_->chosen.try_emplace(shape_of(args), kOwnKernel);
  if (fresh) found->second = impl_->choose(args);
  const int32_t choice = found->second;
  if (choice == kOwnKernel) return false;
  const Index num_rows = args.x.dim(0);
  for (Index begin = 0; begin < num_rows; begin += kBlockRows) {
    Matmul rows = args;
    const Index count = std::min(kBlockRows, num_rows - begin);
    rows.x = args.x.rows(begin, count);
    rows.out = args.out.rows(begin, count);
    if (count == kBlockRows ? impl_->multiply(rows, choice) : impl_->multiply_some(rows, choice)) continue;
    log(LogLevel::kError, "{} failed: the own kernel from now on, whose rounding is another",
        choice_text(choice));
    found->second = kOwnKernel;
    return false;
  }
  return true;
}

std::string find_gemm_library(const DeviceInfo& device) {
  const rocblas::Search search = rocblas::find(library_names(), device.arch);
  if (!search.library) return "none: " + search.reason;
  return fmt::format("rocBLAS {} ({})", search.library->version, search.library->path);
}

}  // namespace longspan::ops::device
