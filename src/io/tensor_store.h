// All tensors of a model directory under one roof: model.safetensors, or shards with their index.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"

namespace longspan::io {

// Whether a directory has weights at all: model.safetensors or an index.
bool has_weights(const std::filesystem::path& path);

// Movable; views live as long as the store. Thread-safe for readers.
//
// With model.safetensors.index.json the index decides: every file of its weight_map is opened, a missing file
// or a tensor that is not in its file is an error naming both. A tensor in an opened file that the index does
// not list is used as well, unless two files hold it, which is an error. Without an index: model.safetensors
// alone.
class TensorStore final {
 public:
  // A model directory, or one .safetensors file. Throws kNotFound or kInvalid.
  explicit TensorStore(const std::filesystem::path& path);

  std::vector<std::string> names() const;  // sorted
  size_t size() const { return owner_.size(); }
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  const TensorInfo* find(std::string_view name) const;  // nullptr when absent
  const TensorInfo& info(std::string_view name) const;  // throws kNotFound

  // As in SafetensorsFile.
  TensorView view(std::string_view name) const;
  std::span<const std::byte> bytes(std::string_view name) const;
  void prefetch(std::string_view name) const;
  void release(std::string_view name) const;

  const std::vector<SafetensorsFile>& files() const { return files_; }

 private:
  void open_single(const std::filesystem::path& file);
  void open_shards(const std::filesystem::path& directory);
  const SafetensorsFile& owner(std::string_view name) const;

  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t, std::less<>> owner_;  // tensor name -> position in files_
};

}  // namespace longspan::io
