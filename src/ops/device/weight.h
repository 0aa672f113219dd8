// A linear layer's weight in device memory: plain rows in the products' dtype, each padded with zeros to
// whole 16-byte words.
#pragma once

#include "ops/ops.h"

namespace longspan::ops::device {

class DeviceWeight final : public Weight {
 public:
  DeviceWeight(Buffer rows, Index n, Index k, Index stride) : rows_(std::move(rows)), stride_(stride) {
    out_features = n;
    in_features = k;
  }
  size_t size_bytes() const override { return rows_.size_bytes(); }
  DType dtype() const { return rows_.view().dtype; }
  Index stride() const { return stride_; }  // elements a row
  // T [out_features, in_features]
  TensorView view() const {
    TensorView rows(rows_.data(), dtype(), {out_features, in_features});
    rows.strides[0] = stride_;
    return rows;
  }

 private:
  Buffer rows_;
  Index stride_;
};

// Elements of a row of `columns`, whole 16-byte words.
inline Index padded_columns(Index columns, DType dtype) {
  const auto per_word = static_cast<Index>(16 / dtype_size(dtype));
  return (columns + per_word - 1) / per_word * per_word;
}

inline const DeviceWeight& device_weight(const Weight* weight) {
  return static_cast<const DeviceWeight&>(*weight);
}

}  // namespace longspan::ops::device
