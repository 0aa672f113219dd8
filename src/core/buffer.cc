#include "core/buffer.h"

#include <sys/mman.h>

#include "core/units.h"

namespace longspan {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

void unmap(void* pointer, size_t size_bytes) { ::munmap(pointer, size_bytes); }

}  // namespace

Buffer::Buffer(size_t size_bytes) : Buffer(DType::kU8, {static_cast<Index>(size_bytes)}) {}

Buffer::Buffer(DType dtype, Shape shape)
    : size_bytes_(static_cast<size_t>(shape.num_elements()) * dtype_size(dtype)),
      dtype_(dtype),
      shape_(shape) {
  const size_t mapped = size_bytes_ == 0 ? 1 : size_bytes_;
  void* pointer = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pointer == MAP_FAILED) fail(ErrorKind::kExhausted, "out of memory: asked for {}", format_bytes(mapped));
  if (mapped >= kHugePageBytes) ::madvise(pointer, mapped, MADV_HUGEPAGE);  // a wish; refusal changes nothing
  data_ = std::unique_ptr<void, Free>(pointer, Free{mapped, unmap});
}

Buffer::Buffer(void* data, DType dtype, Shape shape, Release release)
    : data_(data, Free{static_cast<size_t>(shape.num_elements()) * dtype_size(dtype), release}),
      size_bytes_(static_cast<size_t>(shape.num_elements()) * dtype_size(dtype)),
      dtype_(dtype),
      shape_(shape) {}

}  // namespace longspan
