// What the device backend's files offer each other: one function an operation, put into the device's stream.
#pragma once

#include "ops/device/runtime.h"
#include "ops/ops.h"

namespace longspan::ops::device {

// Memory for what lives between the kernels of one operation. Grows on first use of a shape and is kept.
class Scratch {
 public:
  explicit Scratch(Device& device) : device_(device) {}

  // At least size_bytes, 256-byte aligned, valid until the next call. Contents are arbitrary.
  void* reserve(size_t size_bytes) {
    if (buffer_.size_bytes() < size_bytes) {
      device_.wait();  // kernels in flight use the old one
      buffer_ = {};
      buffer_ = device_.allocate(DType::kU8, {static_cast<Index>(size_bytes)});
    }
    return buffer_.data();
  }

 private:
  Device& device_;
  Buffer buffer_;
};

struct Context {
  Device& device;
  Scratch& scratch;
};

void embed(const Context& context, const Embed& args);  // rows.cc
void gather_rows(const Context& context, const GatherRows& args);
void rms_norm(const Context& context, const RmsNorm& args);
void swiglu(const Context& context, const SwiGlu& args);

}  // namespace longspan::ops::device
