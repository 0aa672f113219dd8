// HostCall: an operation with all it reads and writes copied to host memory, caches included.
#pragma once

#include <vector>

#include "measure/op_call.h"

namespace longspan::measure {

class HostCall final {
 public:
  // The tensors of `call` lie in `memory`, whose operations are done.
  HostCall(const OpCall& call, Memory& memory);

  const OpCall& call() const { return call_; }

 private:
  void* copied(const void* data, size_t size_bytes, Memory& memory);

  OpCall call_;
  std::vector<Buffer> buffers_;
};

// Bytes from the first element to behind the last, gaps included.
size_t span_bytes(const TensorView& view);
float value_at(const TensorView& view, Index offset);  // of a float type, in elements from the start

// Row-wise operations cut to at most `max_rows` rows, spread over all; others as they are.
OpCall with_rows(const OpCall& call, Index max_rows);

}  // namespace longspan::measure
