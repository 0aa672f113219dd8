#include "ops/device/gemm_trial.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/device/gemm.h"

namespace longspan::ops::device {
namespace {

constexpr Index kDistinct = 8;   // rows of x
constexpr int kRuns = 3;         // of a measurement
constexpr double kHopeless = 4;  // limits: more than others' work on the machine adds to a run

// Relative L2 between two orders of fp32 sums, rounded to T; the least is that of float32.
double rounding_of(DType dtype) {
  if (dtype == DType::kF32) return 5e-5;
  return dtype == DType::kBF16 ? 8e-3 : 1e-3;
}

Buffer on_host(Device& device, const Buffer& from) {
  Buffer to(from.view().dtype, from.view().shape);
  device.download(to.data(), from.data(), from.size_bytes());
  return to;
}

const char* row_of(const Buffer& rows, Index i) {
  return static_cast<const char*>(rows.data()) +
         i * rows.view().stride(0) * static_cast<Index>(dtype_size(rows.view().dtype));
}

}  // namespace

Buffer drawn_rows(Device& device, DType dtype, Index rows, Index columns) {
  Buffer host(dtype, {rows, columns});
  uint32_t state = 0x9e3779b9u;
  dispatch_dtype(dtype, [&]<class T>() {
    T* const values = host.view().as<T>();
    for (Index i = 0; i < rows * columns; ++i) {
      state = state * 1664525u + 1013904223u;
      values[i] = T(static_cast<float>(state >> 8) * 0x1p-23f - 1.0f);
    }
  });
  Buffer there = device.allocate(dtype, {rows, columns});
  device.upload(there.data(), host.data(), host.size_bytes());
  return there;
}

GemmTrial::GemmTrial(Device& device, const Matmul& like, Index num_rows)
    : device_(device),
      like_(like),
      num_rows_(num_rows),
      num_columns_(like.weight->out_features),
      x_(device.allocate(like.x.dtype, {num_rows, like.x.stride(0)})),
      own_out_(device.allocate(like.x.dtype, {num_rows, like.out.stride(0)})),
      out_(device.allocate(like.x.dtype, {num_rows, like.out.stride(0)})) {
  const Buffer distinct = drawn_rows(device, like.x.dtype, kDistinct, like.x.stride(0));
  for (Index i = 0; i < num_rows; i += kDistinct) {
    const TensorView to = x_.view().rows(i, std::min(kDistinct, num_rows - i));
    device.copy(to.data, distinct.data(), to.size_bytes());
  }
  gemm(device, block(own_out_));
  device.wait();
}

Matmul GemmTrial::block(const Buffer& out) const {
  return {.x = x_.view().cols(0, like_.x.dim(1)),
          .num_decode_rows = 0,
          .weight = like_.weight,
          .out = out.view().cols(0, num_columns_)};
}

double GemmTrial::own_seconds() {
  const auto own = [this](const Matmul& all) {
    gemm(device_, all);
    return true;
  };
  return seconds_of(own, std::numeric_limits<double>::infinity());
}

// The best of a few: others' work on the machine only ever adds.
double GemmTrial::seconds_of(const Product& product, double limit) {
  using Clock = std::chrono::steady_clock;
  const Matmul all = block(out_);
  double best = std::numeric_limits<double>::infinity();
  if (!product(all)) return best;  // loads what it needs
  device_.wait();
  for (int run = 0; run < kRuns; ++run) {
    const Clock::time_point began = Clock::now();
    if (!product(all)) return std::numeric_limits<double>::infinity();
    device_.wait();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - began).count());
    if (best > kHopeless * limit) return std::numeric_limits<double>::infinity();
  }
  return best;
}

std::string GemmTrial::fault_of(const Product& product, std::initializer_list<Index> other_counts) {
  const auto row_bytes = static_cast<size_t>(num_columns_) * dtype_size(like_.x.dtype);
  Buffer runs[2];
  for (Buffer& run : runs) {
    if (!product(block(out_))) return "refuses the product";
    run = on_host(device_, out_);
  }
  if (std::string fault = away_from_own(runs[0]); !fault.empty()) return fault;
  for (Index i = 0; i < num_rows_; ++i) {
    if (std::memcmp(row_of(runs[0], i), row_of(runs[0], i % kDistinct), row_bytes) != 0)
      return fmt::format("gives row {} other bits than row {}, which is the same", i, i % kDistinct);
    if (std::memcmp(row_of(runs[0], i), row_of(runs[1], i), row_bytes) != 0)
      return fmt::format("gives row {} other bits the second time", i);
  }
  const auto size = static_cast<Index>(dtype_size(like_.x.dtype));
  for (const Index count : other_counts)
    for (const Index further : {Index{0}, 16 / size}) {  // rows lie apart where a layer has several parts
      Matmul some = block(out_);
      some.x = some.x.rows(0, count);
      some.out.shape = {count, num_columns_};
      some.out.strides[0] += further;
      const Index row_stride = some.out.strides[0] * size;
      Buffer got(DType::kU8, {(count - 1) * row_stride + static_cast<Index>(row_bytes)});
      CHECK(got.size_bytes() <= out_.size_bytes());
      device_.zero(out_.data(), got.size_bytes());
      if (!product(some)) return fmt::format("refuses {} rows", count);
      device_.download(got.data(), out_.data(), got.size_bytes());
      for (Index i = 0; i < count; ++i)
        if (std::memcmp(static_cast<const char*>(got.data()) + i * row_stride, row_of(runs[0], i),
                        row_bytes) != 0)
          return fmt::format("gives row {} other bits among {} rows, {} bytes apart", i, count, row_stride);
    }
  return "";
}

std::string GemmTrial::away_from_own(const Buffer& got) const {
  const Buffer own = on_host(device_, own_out_);
  double difference = 0, size = 0;
  dispatch_dtype(like_.x.dtype, [&]<class T>() {
    for (Index i = 0; i < std::min(kDistinct, num_rows_); ++i)
      for (Index j = 0; j < num_columns_; ++j) {
        const auto want = static_cast<double>(static_cast<float>(own.view().rows(i, 1).as<T>()[j]));
        const double off = static_cast<float>(got.view().rows(i, 1).as<T>()[j]) - want;
        difference += off * off;
        size += want * want;
      }
  });
  const double limit = rounding_of(like_.x.dtype);
  if (difference <= limit * limit * size) return "";  // a NaN is no rounding
  return fmt::format("is {:.1e} away from the own kernel (relative L2), rounding is {:.0e}",
                     std::sqrt(difference / size), limit);
}

}  // namespace longspan::ops::device
