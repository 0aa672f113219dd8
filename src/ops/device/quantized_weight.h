// A linear layer's weight that stays packed on a device: parts along N, each quantised or dense.
#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "ops/device/code_rows.h"
#include "ops/device/weight.h"

namespace longspan::ops::device {

// Quantised rows in device memory.
struct PackedRows {
  CodeKind kind = CodeKind::kInt4;
  Index out_features = 0;
  Index in_features = 0;
  Buffer codes;
  Buffer affine;     // i32 or empty; then
  Buffer scales;     // these
  Buffer zeros;      // u8 or empty
  Buffer column_of;  // i32 [view.k], of each place, -1: none; or empty, then
  Buffer place_of;   // this is empty too
  CodeRows view{};   // of all of them

  size_t size_bytes() const {
    return codes.size_bytes() + affine.size_bytes() + scales.size_bytes() + zeros.size_bytes() +
           column_of.size_bytes() + place_of.size_bytes();
  }
};

class QuantizedDeviceWeight final : public Weight {
 public:
  using Part = std::variant<PackedRows, std::unique_ptr<Weight>>;  // the latter a DeviceWeight

  QuantizedDeviceWeight(std::vector<Part> parts, DType dtype);
  size_t size_bytes() const override;
  const std::vector<Part>& parts() const { return parts_; }
  DType dtype() const { return dtype_; }

 private:
  std::vector<Part> parts_;
  DType dtype_;
};

// Null for a dense weight.
inline const QuantizedDeviceWeight* quantized_weight(const Weight* weight) {
  return dynamic_cast<const QuantizedDeviceWeight*>(weight);
}

}  // namespace longspan::ops::device
