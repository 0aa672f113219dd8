// The one place that unpacked rows lie in while a product reads them, or kFusedRows of x in another order;
// shared by all layers. It grows while weights are loaded and never afterwards.
#pragma once

#include "ops/device/code_layout.h"
#include "ops/device/kernels.h"

namespace longspan::ops::device {

class DequantWorkspace final {
 public:
  // options: whether rows are unpacked, and into how much; a weight that does not fit is unpacked in parts, a
  // few rows at least.
  DequantWorkspace(Device& device, const BackendOptions& options) : scratch_(device), options_(options) {}

  // Rows of `row_bytes` of an [n, K] weight that are unpacked at once.
  Index rows_at_once(Index n, Index row_bytes) const {
    return device::rows_at_once(n, row_bytes, options_.dequant_workspace_bytes);
  }
  // For a weight that is loaded: says once a shape why it is unpacked in parts.
  void make_room(const CodeRun& run, const CodeOrder& order, DType dtype);
  void* data() { return scratch_.reserve(0); }
  size_t size_bytes() const { return size_bytes_; }

 private:
  Scratch scratch_;
  BackendOptions options_;
  size_t size_bytes_ = 0;
  std::vector<std::pair<Index, Index>> told_;
};

}  // namespace longspan::ops::device
