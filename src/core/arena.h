// Arena: one buffer handed out front to back, so that a step takes its temporaries without allocating.
#pragma once

#include <utility>

#include "core/buffer.h"

namespace longspan {

// Not thread-safe. Views die with the Scope they were taken in, at the latest with the arena.
class Arena {
 public:
  static constexpr size_t kAlignment = 64;

  Arena() = default;
  // Takes its room from a buffer of any memory; views are of that memory.
  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)) {}

  // Bytes that a tensor takes out of an arena.
  static size_t bytes_for(DType dtype, Shape shape);

  // An uninitialised dense tensor; aborts when the arena is too small (its size is planned, so that is a
  // bug).
  TensorView take(DType dtype, Shape shape);

  size_t size_bytes() const { return buffer_.size_bytes(); }

  // Gives back at its end all that was taken since its start.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_) {}
    ~Scope() { arena_.used_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t mark_;
  };

 private:
  Buffer buffer_;
  size_t used_ = 0;
};

}  // namespace longspan
