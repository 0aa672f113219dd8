#include "ops/observed_backend.h"

#include <chrono>

namespace longspan::ops {

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

ObservedBackend::ObservedBackend(std::unique_ptr<Backend> inner)
    : inner_(std::move(inner)), tables_(inner_->is_host() ? Tables::kHost : Tables::kDevice) {}

}  // namespace longspan::ops
