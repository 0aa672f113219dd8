#include "ops/device/weight.h"

#include <algorithm>
#include <cstring>

#include "core/thread_pool.h"
#include "ops/device/kernels.h"

namespace longspan::ops::device {
namespace {

constexpr Index kStagingBytes = Index{64} << 20;
constexpr Index kRowsOfATask = 32;

// value of element i of a host tensor of any dtype that weights come in
float host_value(const TensorView& view, Index i) {
  switch (view.dtype) {
    case DType::kF32:
      return static_cast<const float*>(view.data)[i];
    case DType::kBF16:
      return static_cast<float>(static_cast<const bf16*>(view.data)[i]);
    default:
      return static_cast<float>(static_cast<const f16*>(view.data)[i]);
  }
}

// Rows `begin` .. `begin + count` of part as padded rows of `dtype`.
void convert_rows(const TensorView& part, Index begin, Index count, const TensorView& out) {
  dispatch_dtype(out.dtype, [&]<class T>() {
    for (Index i = 0; i < count; ++i) {
      T* to = out.as<T>() + i * out.stride(0);
      const Index from = (begin + i) * part.stride(0);
      if (part.dtype == out.dtype)
        std::memcpy(to, static_cast<const T*>(part.data) + from,
                    static_cast<size_t>(part.dim(1)) * sizeof(T));
      else
        for (Index j = 0; j < part.dim(1); ++j) to[j] = T(host_value(part, from + j));
      for (Index j = part.dim(1); j < out.stride(0); ++j) to[j] = T(0.0f);
    }
  });
}

}  // namespace

std::unique_ptr<Weight> pack(const Context& context, std::span<const TensorView> parts, DType dtype) {
  const Index k = parts[0].dim(1);
  const auto size = static_cast<Index>(dtype_size(dtype));
  const Index stride = padded_columns(k, dtype);
  Index n = 0;
  for (const TensorView& part : parts) n += part.dim(0);
  Buffer rows = context.device.allocate(dtype, {n, stride});
  Index row = 0;
  Buffer staging;
  for (const TensorView& part : parts) {
    char* to = static_cast<char*>(rows.data()) + row * stride * size;
    row += part.dim(0);
    if (part.dtype == dtype && part.is_dense() && k == stride) {  // as it is
      context.device.upload(to, part.data, part.size_bytes());
      continue;
    }
    const Index at_once = std::max<Index>(1, kStagingBytes / (stride * size));
    for (Index begin = 0; begin < part.dim(0); begin += at_once) {
      const Index count = std::min(at_once, part.dim(0) - begin);
      if (staging.data() == nullptr) staging = Buffer(dtype, {at_once, stride});
      context.pool.parallel_ranges(count, kRowsOfATask, [&](Index first, Index end) {
        convert_rows(part, begin + first, end - first, staging.view().rows(first, end - first));
      });
      context.device.upload(to + begin * stride * size, staging.data(),
                            static_cast<size_t>(count * stride * size));
      context.device.wait();  // the staging memory is written again
    }
  }
  return std::make_unique<DeviceWeight>(std::move(rows), n, k, stride);
}

}  // namespace longspan::ops::device
