// A library that attends prompt rows in the place of the own kernels, found at run time by the interface of
// prefill_interface.h: DTK's flash attention on a DCU. prefill_library.cc, or prefill_library_none.cc.
#pragma once

#include <memory>
#include <string>

#include "ops/device/backend.h"

namespace longspan::ops::device {

// Not thread-safe. Works in the device's stream.
class PrefillLibrary final {
 public:
  explicit PrefillLibrary(Device& device);
  ~PrefillLibrary();

  // What stands in the way of calls of this shape: the first condition that fails, "page_multiple: got 784,
  // need a multiple of 64"; empty when the library takes them. The first question about a shape has the
  // library prove itself (prefill_trial.h), which takes part of a second.
  std::string obstacle(const PrefillShape& shape);
  std::string name() const;  // of what does the work; empty without a library

  // AttentionPath::kVendorPrefill of the sequences, none of them decoding; false, and nothing done, where an
  // obstacle stands, or the call fails: then the library is not asked again.
  bool attention(const Attention& args);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan::ops::device
