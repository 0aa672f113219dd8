// Ranges announced to AddressSanitizer, for inner loops whose single loads and stores it does not watch
// (attribute no_sanitize): a wrong place is found as before, at a fraction of the time. Nothing in other
// builds. Not for ThreadSanitizer, whose ranges cost more than its single accesses (decode: three times).
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)  // g++
#define LONGSPAN_WATCHES_ADDRESSES
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LONGSPAN_WATCHES_ADDRESSES
#endif
#endif
#ifdef LONGSPAN_WATCHES_ADDRESSES
#include <sanitizer/asan_interface.h>
#endif

namespace longspan {

#ifdef LONGSPAN_WATCHES_ADDRESSES
inline void will_read(const void* begin, size_t size) {
  // The report is that of an access there.
  if (const void* bad = __asan_region_is_poisoned(const_cast<void*>(begin), size))
    static_cast<void>(*static_cast<const volatile char*>(bad));
}
inline void will_write(void* begin, size_t size) {
  if (void* bad = __asan_region_is_poisoned(begin, size)) *static_cast<volatile char*>(bad) = 0;
}
#else
inline void will_read(const void*, size_t) {}
inline void will_write(void*, size_t) {}
#endif

}  // namespace longspan
