// Memory that ends at a page nobody may touch: a read or write past its end is a crash, in assembly too.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

namespace longspan {

template <class T>
class Guarded {
 public:
  explicit Guarded(size_t count) {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t usable = (count * sizeof(T) + page - 1) / page * page;
    mapped_bytes_ = usable + page;
    mapping_ = static_cast<std::byte*>(
        ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::mprotect(mapping_ + usable, page, PROT_NONE);
    data_ = reinterpret_cast<T*>(mapping_ + usable - count * sizeof(T));
  }
  ~Guarded() { ::munmap(mapping_, mapped_bytes_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() const { return data_; }

 private:
  std::byte* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
  T* data_ = nullptr;
};

}  // namespace longspan
