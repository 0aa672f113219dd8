// One safetensors file: its header, and borrowed views into the mapped data. Knows nothing of models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/buffer.h"
#include "core/tensor.h"

namespace longspan::io {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format
inline constexpr size_t kMaxTensorRank = 8;
inline constexpr Index kMaxTensorDim = Index{1} << 40;

// What the header says of one tensor. The rank may exceed that of core's Shape (vision weights have five
// dimensions).
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<Index> dims;  // outermost first, row-major; empty for a scalar
  uint64_t begin = 0;       // bytes from the start of the file
  uint64_t size_bytes = 0;
  std::string file;  // the file's name without its folder

  Index num_elements() const;
};

std::string to_string(const TensorInfo& info);  // "model.norm.weight bfloat16 [5120]"

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;              // in file order
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// Parses and checks the header of a whole file given as bytes: u64 little-endian length N, N bytes of JSON,
// data. Pure. Throws kInvalid, naming `file` and the tensor, for: a short file, N out of bounds, not a JSON
// object, duplicate names, unknown dtype, rank > 8, bad dims, byte range != product * element size, ranges
// that overlap, leave holes or pass the end, bytes after the last tensor, metadata that is not string to
// string.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes, std::string_view file);

// A mapped file. Movable; views live as long as the object. Thread-safe for readers.
// The memory is read-only, and truncating the file while it is mapped kills the process (SIGBUS): do not edit
// a model in use.
class SafetensorsFile final {
 public:
  // Throws kNotFound (no such file), kEnvironment (cannot be mapped) or what the header parser throws.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const std::filesystem::path& path() const { return path_; }
  uint64_t size_bytes() const { return mapping_->size_bytes; }

  const TensorInfo* find(std::string_view name) const;  // nullptr when absent
  // The stored bytes; any dtype, rank and alignment. Throws kNotFound.
  std::span<const std::byte> bytes(std::string_view name) const;
  // A dense view, aligned to its element size: a tensor that lies misaligned in the file is copied once and
  // the copy kept. Throws kNotFound, or kUnsupported for rank > 4.
  TensorView view(std::string_view name) const;

  void prefetch(std::string_view name) const;  // asks the kernel to read ahead
  // After a copy elsewhere: lets the kernel drop the pages, and frees the copy of a misaligned tensor, which
  // ends its views.
  void release(std::string_view name) const;

 private:
  struct Mapping {
    std::byte* data = nullptr;
    size_t size_bytes = 0;
    ~Mapping();
  };
  struct AlignedCopies {
    std::mutex mutex;
    std::unordered_map<std::string, Buffer> buffers;  // guarded by mutex
  };

  const TensorInfo& get(std::string_view name) const;

  std::filesystem::path path_;
  std::unique_ptr<Mapping> mapping_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> index_;  // name (inside header_.tensors) -> position
  std::unique_ptr<AlignedCopies> copies_ = std::make_unique<AlignedCopies>();
};

struct NamedTensor {
  std::string name;
  TensorView view;  // dense
  std::vector<Index> dims =
      {};  // what the header says where the view's shape cannot (more than four); else empty
};

// Writes a file (a temporary one first, then renamed). Every tensor is aligned to 8 bytes or its element
// size. Throws kEnvironment when the disk refuses, kInvalid on a repeated name.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace longspan::io
