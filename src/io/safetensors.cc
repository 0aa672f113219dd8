#include "io/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "io/json.h"

namespace longspan::io {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian, and data is not swapped");

constexpr size_t kLengthBytes = sizeof(uint64_t);
constexpr size_t kDataAlignment = 8;  // of the data section, as other writers do it
constexpr int kMaxHeaderDepth = 4;    // { name: { shape: [ ... ] } }
constexpr std::string_view kMetadataKey = "__metadata__";

constexpr std::pair<std::string_view, DType> kDTypes[] = {
    {"F64", DType::kF64},   {"F32", DType::kF32},        {"F16", DType::kF16},        {"BF16", DType::kBF16},
    {"I64", DType::kI64},   {"I32", DType::kI32},        {"I16", DType::kI16},        {"I8", DType::kI8},
    {"U64", DType::kU64},   {"U32", DType::kU32},        {"U16", DType::kU16},        {"U8", DType::kU8},
    {"BOOL", DType::kBool}, {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2},
};

DType read_dtype(const JsonObject& entry) {
  const std::string name = entry.string("dtype");
  for (const auto& [known, dtype] : kDTypes)
    if (known == name) return dtype;
  entry.refuse("dtype", "F64, F32, F16, BF16, F8_E4M3, F8_E5M2, BOOL, or I or U with 8, 16, 32 or 64 bits");
}

std::vector<Index> read_dims(const JsonObject& entry) {
  const Json* shape = entry.find("shape");
  if (!shape || !shape->is_array()) entry.refuse("shape", "an array of integers");
  if (shape->size() > kMaxTensorRank)
    fail(ErrorKind::kInvalid, "{}: shape: got {} dimensions, need at most {}", entry.where(), shape->size(),
         kMaxTensorRank);
  std::vector<Index> dims;
  for (const Json& dim : *shape) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > static_cast<uint64_t>(kMaxTensorDim))
      fail(ErrorKind::kInvalid, "{}: shape: got dimension {}, need an integer from 0 to {}", entry.where(),
           dim.is_structured() ? dim.type_name() : dim.dump(-1, ' ', true, Json::error_handler_t::replace),
           kMaxTensorDim);
    dims.push_back(dim.get<Index>());
  }
  return dims;
}

// Product of the dims times the element size. Overflow is looked for without the zeros: strides are made of
// the other dims of an empty tensor too.
uint64_t read_size(const JsonObject& entry, const std::vector<Index>& dims, DType dtype) {
  Index size = static_cast<Index>(dtype_size(dtype));
  for (Index dim : dims)
    if (__builtin_mul_overflow(size, std::max<Index>(dim, 1), &size))
      fail(ErrorKind::kInvalid, "{}: shape: got [{}], whose size overflows 64 bits", entry.where(),
           fmt::join(dims, ", "));
  const bool is_empty = std::find(dims.begin(), dims.end(), 0) != dims.end();
  return is_empty ? 0 : static_cast<uint64_t>(size);
}

TensorInfo read_tensor(const std::string& name, const Json& value, std::string_view file, uint64_t data_begin,
                       uint64_t file_size) {
  const JsonObject entry(value, fmt::format("{}: {}", file, name));
  TensorInfo info{
      .name = name, .dtype = read_dtype(entry), .dims = read_dims(entry), .file = std::string(file)};
  info.size_bytes = read_size(entry, info.dims, info.dtype);

  const Json* offsets = entry.find("data_offsets");
  if (!offsets || !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned())
    entry.refuse("data_offsets", "[begin, end], two integers from 0");
  const auto begin = (*offsets)[0].get<uint64_t>();
  const auto end = (*offsets)[1].get<uint64_t>();
  const uint64_t data_size = file_size - data_begin;
  if (begin > end)
    fail(ErrorKind::kInvalid, "{}: data_offsets: got [{}, {}], need begin <= end", entry.where(), begin, end);
  if (end > data_size)
    fail(ErrorKind::kInvalid,
         "{}: data_offsets: got [{}, {}], but the file has {} bytes of data (truncated?)", entry.where(),
         begin, end, data_size);
  if (end - begin != info.size_bytes)
    fail(ErrorKind::kInvalid, "{}: data_offsets: got {} bytes, but shape [{}] of {} needs {}", entry.where(),
         end - begin, fmt::join(info.dims, ", "), dtype_name(info.dtype), info.size_bytes);
  info.begin = data_begin + begin;
  return info;
}

std::map<std::string, std::string> read_metadata(const Json& value, std::string_view file) {
  const JsonObject object(value, fmt::format("{}: {}", file, kMetadataKey));
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) object.refuse(key, "a string");
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

// The tensors must tile the data: no overlap, no hole, nothing behind the last one.
void check_tiling(const std::vector<TensorInfo>& tensors, std::string_view file, uint64_t data_begin,
                  uint64_t file_size) {
  uint64_t expected = data_begin;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& info : tensors) {
    if (info.begin < expected)
      fail(ErrorKind::kInvalid, "{}: {} begins at data byte {}, inside {}, which ends at {}", file, info.name,
           info.begin - data_begin, previous->name, expected - data_begin);
    if (info.begin > expected)
      fail(ErrorKind::kInvalid, "{}: {} begins at data byte {}, need {}: a hole of {} bytes", file, info.name,
           info.begin - data_begin, expected - data_begin, info.begin - expected);
    expected += info.size_bytes;
    previous = &info;
  }
  if (expected != file_size)
    fail(ErrorKind::kInvalid, "{}: got {} bytes after the last tensor, need none", file,
         file_size - expected);
}

}  // namespace

Index TensorInfo::num_elements() const { return static_cast<Index>(size_bytes / dtype_size(dtype)); }

std::string to_string(const TensorInfo& info) {
  return fmt::format("{} {} [{}]", info.name, dtype_name(info.dtype), fmt::join(info.dims, ", "));
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes, std::string_view file) {
  if (bytes.size() < kLengthBytes)
    fail(ErrorKind::kInvalid, "{}: got {} bytes, need at least {} (header length)", file, bytes.size(),
         kLengthBytes);
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), kLengthBytes);
  if (header_size > kMaxHeaderBytes)
    fail(ErrorKind::kInvalid, "{}: got a header of {} bytes, need at most {}", file, header_size,
         kMaxHeaderBytes);
  if (header_size > bytes.size() - kLengthBytes)
    fail(ErrorKind::kInvalid, "{}: got a header of {} bytes in a file of {} bytes (truncated?)", file,
         header_size, bytes.size());

  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, header_size);
  if (!text.starts_with('{'))
    fail(ErrorKind::kInvalid, "{}: header: need a JSON object from its first byte", file);
  const Json json = parse_json(text, fmt::format("{}: header", file), kMaxHeaderDepth);

  const uint64_t data_begin = kLengthBytes + header_size;
  SafetensorsHeader header;
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey)
      header.metadata = read_metadata(value, file);
    else
      header.tensors.push_back(read_tensor(name, value, file, data_begin, bytes.size()));
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.size_bytes, a.name) <
           std::tie(b.begin, b.size_bytes, b.name);  // empty tensors first
  });
  check_tiling(header.tensors, file, data_begin, bytes.size());
  return header;
}

SafetensorsFile::Mapping::~Mapping() {
  if (data) ::munmap(data, size_bytes);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), mapping_(std::make_unique<Mapping>()) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    fail(errno == ENOENT ? ErrorKind::kNotFound : ErrorKind::kEnvironment, "{}: {}", path.string(),
         std::strerror(errno));
  struct stat status = {};
  const bool is_file = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  void* data = is_file && status.st_size > 0 ? ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ,
                                                      MAP_PRIVATE, descriptor, 0)
                                             : nullptr;
  const int map_error = errno;
  ::close(descriptor);  // the mapping stays
  if (!is_file) fail(ErrorKind::kInvalid, "{}: not a regular file", path.string());
  if (data == MAP_FAILED)
    fail(ErrorKind::kEnvironment, "{}: cannot be mapped: {}", path.string(), std::strerror(map_error));
  mapping_->data = static_cast<std::byte*>(data);
  mapping_->size_bytes = static_cast<size_t>(status.st_size);

  header_ = parse_safetensors_header({mapping_->data, mapping_->size_bytes}, path.filename().string());
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto entry = index_.find(name);
  return entry == index_.end() ? nullptr : &header_.tensors[entry->second];
}

const TensorInfo& SafetensorsFile::get(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (!info) fail(ErrorKind::kNotFound, "{}: no tensor \"{}\"", path_.filename().string(), name);
  return *info;
}

std::span<const std::byte> SafetensorsFile::bytes(std::string_view name) const {
  const TensorInfo& info = get(name);
  return {mapping_->data + info.begin, static_cast<size_t>(info.size_bytes)};
}

TensorView SafetensorsFile::view(std::string_view name) const {
  const TensorInfo& info = get(name);
  if (info.dims.size() > static_cast<size_t>(Shape::kMaxRank))
    fail(ErrorKind::kUnsupported, "{}: {}: got {} dimensions, need at most {} for a view", info.file,
         info.name, info.dims.size(), Shape::kMaxRank);
  Shape shape;
  for (Index dim : info.dims) shape.dims[static_cast<size_t>(shape.rank++)] = dim;
  std::byte* data = mapping_->data + info.begin;
  if (reinterpret_cast<uintptr_t>(data) % dtype_size(info.dtype) == 0)
    return TensorView(data, info.dtype, shape);

  const std::lock_guard lock(copies_->mutex);
  auto [copy, is_new] = copies_->buffers.try_emplace(info.name);
  if (is_new) {
    copy->second = Buffer(info.dtype, shape);
    std::memcpy(copy->second.data(), data, static_cast<size_t>(info.size_bytes));
  }
  return copy->second.view();
}

namespace {

// madvise wants whole pages: the ones that the bytes touch, or only those that lie wholly inside.
void advise(std::span<const std::byte> bytes, int advice, bool whole_pages_only) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t first = (whole_pages_only ? begin + page - 1 : begin) / page * page;
  const uintptr_t last = (begin + bytes.size() + (whole_pages_only ? 0 : page - 1)) / page * page;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, advice);  // a wish
}

}  // namespace

void SafetensorsFile::prefetch(std::string_view name) const {
  advise(bytes(name), MADV_WILLNEED, /*whole_pages_only=*/false);
}

void SafetensorsFile::release(std::string_view name) const {
  advise(bytes(name), MADV_DONTNEED, /*whole_pages_only=*/true);
  const std::lock_guard lock(copies_->mutex);
  copies_->buffers.erase(std::string(name));
}

namespace {

std::string_view wire_name(DType dtype) {
  for (const auto& [name, known] : kDTypes)
    if (known == dtype) return name;
  CHECK_MSG(false, "no wire name of {}", dtype_name(dtype));
  __builtin_unreachable();
}

// JSON header padded with spaces so that the data begins aligned. `order` is the order in the file.
std::string header_text(std::span<const NamedTensor* const> order,
                        const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  uint64_t offset = 0;
  for (const NamedTensor* tensor : order) {
    const Shape& shape = tensor->view.shape;
    const uint64_t end = offset + tensor->view.size_bytes();
    header[tensor->name] = {
        {"dtype", wire_name(tensor->view.dtype)},
        {"shape", tensor->dims.empty()
                      ? std::vector<Index>(shape.dims.begin(), shape.dims.begin() + shape.rank)
                      : tensor->dims},
        {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  return text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::set<std::string_view> names;
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) {
    CHECK_MSG(tensor.view.is_dense(), "{}: {} is not dense", path.string(), tensor.name);
    if (tensor.name == kMetadataKey || !names.insert(tensor.name).second)
      fail(ErrorKind::kInvalid, "{}: tensor name \"{}\" is taken, need each name once", path.string(),
           tensor.name);
    order.push_back(&tensor);
  }
  // Wide elements first: then every tensor is aligned to its element size without padding, which the format
  // forbids.
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return dtype_size(a->view.dtype) > dtype_size(b->view.dtype);
  });

  const std::filesystem::path temporary = path.string() + ".partial";
  std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
  const std::string header = header_text(order, metadata);
  const uint64_t header_size = header.size();
  stream.write(reinterpret_cast<const char*>(&header_size), kLengthBytes);
  stream.write(header.data(), static_cast<std::streamsize>(header.size()));
  for (const NamedTensor* tensor : order)
    stream.write(static_cast<const char*>(tensor->view.data),
                 static_cast<std::streamsize>(tensor->view.size_bytes()));
  stream.close();
  std::error_code status;
  if (stream) std::filesystem::rename(temporary, path, status);
  if (!stream || status) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    fail(ErrorKind::kEnvironment, "{}: cannot be written: {}", path.string(),
         status ? status.message() : std::strerror(errno));
  }
}

}  // namespace longspan::io
