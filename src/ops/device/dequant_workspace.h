// The one place that unpacked rows lie in while a product reads them, or kFusedRows of x in another order;
// shared by all layers. It grows while weights are loaded and never afterwards.
#pragma once

#include "ops/device/kernels.h"

namespace longspan::ops::device {

class DequantWorkspace final {
 public:
  // limit_bytes: 0 for none. A weight that does not fit is unpacked in parts, a few rows at least.
  DequantWorkspace(Device& device, size_t limit_bytes) : scratch_(device), limit_bytes_(limit_bytes) {}

  // Rows of `row_bytes` of an [n, K] weight that are unpacked at once: whole runs of kRowStep, or all.
  Index rows_at_once(Index n, Index row_bytes) const {
    if (limit_bytes_ == 0 || static_cast<size_t>(n * row_bytes) <= limit_bytes_) return n;
    const Index fit = static_cast<Index>(limit_bytes_) / row_bytes / kRowStep * kRowStep;
    return std::min(n, std::max(fit, kRowStep));
  }
  // For a weight that is loaded: says once a shape why it is unpacked in parts.
  void make_room(Index n, Index k, Index row_bytes);
  void make_room(size_t bytes) {  // that a product cannot do without
    size_bytes_ = std::max(size_bytes_, bytes);
    scratch_.reserve(size_bytes_);
  }
  void* data() { return scratch_.reserve(0); }
  size_t size_bytes() const { return size_bytes_; }

 private:
  static constexpr Index kRowStep = 8;  // out's columns stay aligned for the library

  Scratch scratch_;
  size_t limit_bytes_;
  size_t size_bytes_ = 0;
  std::vector<std::pair<Index, Index>> told_;
};

}  // namespace longspan::ops::device
