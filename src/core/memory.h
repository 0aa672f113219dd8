// Memory: where tensors of the operations live. The host's by default; a device's backend overrides all of
// it.
#pragma once

#include <cstring>
#include <utility>

#include "core/buffer.h"

namespace longspan {

// Not thread-safe. Copies happen in the order of the calls, and in that of the operations on the same device.
class Memory {
 public:
  virtual ~Memory() = default;

  virtual bool is_host() const { return true; }
  virtual size_t free_bytes() const { return 0; }  // of a device; 0 on the host

  // On the host zeroed, on a device not. Throws kExhausted. Only a host's buffer may be read through its
  // view.
  virtual Buffer allocate(DType dtype, Shape shape) { return Buffer(dtype, shape); }

  // Host to here; `from` may be written again on return.
  virtual void upload(void* to, const void* from, size_t size_bytes) { std::memcpy(to, from, size_bytes); }
  // Here to the host; the bytes are there on return.
  virtual void download(void* to, const void* from, size_t size_bytes) { std::memcpy(to, from, size_bytes); }
  virtual void copy(void* to, const void* from, size_t size_bytes) { std::memcpy(to, from, size_bytes); }
  virtual void zero(void* to, size_t size_bytes) { std::memset(to, 0, size_bytes); }
  virtual void synchronize() {}  // waits for all that was asked for
};

// A host buffer in that memory: itself on the host, a copy elsewhere.
inline Buffer moved_to(Memory& memory, Buffer host) {
  if (memory.is_host() || host.data() == nullptr) return host;
  Buffer buffer = memory.allocate(host.view().dtype, host.view().shape);
  memory.upload(buffer.data(), host.data(), host.size_bytes());
  return buffer;
}

}  // namespace longspan
