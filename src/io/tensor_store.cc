#include "io/tensor_store.h"

#include <set>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "io/json.h"

namespace longspan::io {
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr size_t kMaxShards = 10'000;

using WeightMap = std::map<std::string, std::string>;  // tensor name -> file name

WeightMap read_weight_map(const std::filesystem::path& index_path) {
  const Json json = parse_json(read_text_file(index_path), kIndexFile);
  const JsonObject root(json, std::string(kIndexFile));
  const auto weight_map = root.find_object("weight_map");
  if (!weight_map) root.refuse("weight_map", "an object of tensor name to file name");
  WeightMap map;
  for (const auto& [tensor, value] : weight_map->json().items()) {
    const std::string file = weight_map->string(tensor);
    // A checkpoint must not reach outside its own directory.
    if (file.empty() || file == ".." || file.find_first_of("/\\") != std::string::npos ||
        !file.ends_with(".safetensors"))
      weight_map->refuse(tensor, "the name of a .safetensors file beside the index");
    map.emplace(tensor, file);
  }
  if (map.empty()) root.refuse("weight_map", "at least one tensor");
  return map;
}

}  // namespace

bool has_weights(const std::filesystem::path& path) {
  std::error_code status;
  return std::filesystem::exists(path / kSingleFile, status) ||
         std::filesystem::exists(path / kIndexFile, status);
}

TensorStore::TensorStore(const std::filesystem::path& path) {
  std::error_code status;
  if (!std::filesystem::exists(path, status)) fail(ErrorKind::kNotFound, "{}: no such model", path.string());
  if (!std::filesystem::is_directory(path, status)) {
    open_single(path);
  } else if (std::filesystem::exists(path / kIndexFile, status)) {
    open_shards(path);
  } else if (std::filesystem::exists(path / kSingleFile, status)) {
    open_single(path / kSingleFile);
  } else {
    fail(ErrorKind::kNotFound, "{}: no weights, need {} or {}", path.string(), kSingleFile, kIndexFile);
  }
}

void TensorStore::open_single(const std::filesystem::path& file) {
  files_.emplace_back(file);
  for (const TensorInfo& info : files_.back().tensors()) owner_.emplace(info.name, 0);
}

void TensorStore::open_shards(const std::filesystem::path& directory) {
  const WeightMap map = read_weight_map(directory / kIndexFile);
  std::map<std::string_view, size_t> position;  // file name -> position in files_
  for (const auto& [tensor, file] : map) {
    auto [entry, is_new] = position.try_emplace(file, files_.size());
    if (is_new) {
      std::error_code status;
      if (files_.size() == kMaxShards)
        fail(ErrorKind::kInvalid, "{}: got more than {} files, need at most that many", kIndexFile,
             kMaxShards);
      if (!std::filesystem::exists(directory / file, status))
        fail(ErrorKind::kNotFound, "{}: names {} for tensor \"{}\", but that file is missing", kIndexFile,
             file, tensor);
      files_.emplace_back(directory / file);
    }
    if (!files_[entry->second].find(tensor))
      fail(ErrorKind::kNotFound, "{}: names {} for tensor \"{}\", but that file does not hold it", kIndexFile,
           file, tensor);
    owner_.emplace(tensor, entry->second);
  }
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const TensorInfo& info : files_[i].tensors()) {
      const auto [entry, is_new] = owner_.emplace(info.name, i);
      if (!is_new && entry->second != i && !map.contains(info.name))
        fail(ErrorKind::kInvalid, "tensor \"{}\" is in {} and in {}, and {} does not say which one counts",
             info.name, files_[entry->second].path().filename().string(), info.file, kIndexFile);
    }
  }
}

std::vector<std::string> TensorStore::names() const {
  std::vector<std::string> names;
  names.reserve(owner_.size());
  for (const auto& [name, file] : owner_) names.push_back(name);
  return names;
}

const TensorInfo* TensorStore::find(std::string_view name) const {
  const auto entry = owner_.find(name);
  return entry == owner_.end() ? nullptr : files_[entry->second].find(name);
}

const SafetensorsFile& TensorStore::owner(std::string_view name) const {
  const auto entry = owner_.find(name);
  if (entry == owner_.end()) fail(ErrorKind::kNotFound, "the checkpoint has no tensor \"{}\"", name);
  return files_[entry->second];
}

const TensorInfo& TensorStore::info(std::string_view name) const { return *owner(name).find(name); }
TensorView TensorStore::view(std::string_view name) const { return owner(name).view(name); }
std::span<const std::byte> TensorStore::bytes(std::string_view name) const { return owner(name).bytes(name); }
void TensorStore::prefetch(std::string_view name) const { owner(name).prefetch(name); }
void TensorStore::release(std::string_view name) const { owner(name).release(name); }

}  // namespace longspan::io
