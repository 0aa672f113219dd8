// Any bytes: the header parser either refuses, or every tensor lies inside the bytes and they tile the data.
#include <cstdint>

#include "core/error.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto header =
        longspan::io::parse_safetensors_header(std::as_bytes(std::span(data, size)), "fuzz.safetensors");
    uint64_t next = header.tensors.empty() ? size : header.tensors.front().begin;
    for (const auto& tensor : header.tensors) {
      CHECK(tensor.begin == next && tensor.size_bytes <= size - next);
      CHECK(tensor.dims.size() <= longspan::io::kMaxTensorRank);
      longspan::Index product = 1, stride = 1;
      for (longspan::Index dim : tensor.dims) {
        product *= dim;  // neither may overflow: the sanitizer looks
        stride *= dim == 0 ? 1 : dim;
      }
      CHECK(product == tensor.num_elements() && stride >= product);
      next += tensor.size_bytes;
    }
    CHECK(next == size);
  } catch (const longspan::Error&) {  // refused
  }
  return 0;
}
