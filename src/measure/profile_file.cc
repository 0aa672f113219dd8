#include "measure/profile_file.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <type_traits>
#include <vector>

#include "core/error.h"

namespace longspan::measure {
namespace {

namespace fs = std::filesystem;
using engine::TraceEvent;

using ops::device::KernelEvent;

// A program with other records refuses the file.
struct RecordHeader {
  std::array<char, 16> magic;
  uint32_t version;
  uint32_t record_bytes;
};
constexpr RecordHeader kEventHeader = {
    {'l', 'o', 'n', 'g', 's', 'p', 'a', 'n', ' ', 'e', 'v', 'e', 'n', 't', 's', 0}, 2, sizeof(TraceEvent)};
constexpr RecordHeader kDeviceHeader = {
    {'l', 'o', 'n', 'g', 's', 'p', 'a', 'n', ' ', 'd', 'e', 'v', 'i', 'c', 'e', 0}, 1, sizeof(KernelEvent)};
constexpr int64_t kLatestNs = int64_t{1} << 62, kLongestNs = int64_t{1} << 52;  // sums stay numbers

bool are_times(int64_t begin_ns, int64_t end_ns) {
  return begin_ns >= 0 && begin_ns < kLatestNs && end_ns >= begin_ns && end_ns - begin_ns < kLongestNs;
}

// A bool whose byte is neither 0 nor 1 may not be looked at as one.
bool is_bool(const bool& value) {
  unsigned char byte = 0;
  std::memcpy(&byte, &value, 1);
  return byte <= 1;
}

bool is_event(const TraceEvent& event) {
  return is_bool(event.cold) && is_bool(event.op.decode) && are_times(event.begin_ns, event.end_ns) &&
         event.op.rows >= 0 && event.op.n >= 0 && event.op.k >= 0 && static_cast<size_t>(event.kind) < 5 &&
         static_cast<size_t>(event.phase) < engine::kNumPhases &&
         static_cast<size_t>(event.op.kind) < ops::kNumOpKinds &&
         static_cast<size_t>(event.op.op_class) < ops::kNumOpClasses &&
         static_cast<size_t>(event.op.path) < 3 && event.op.bytes >= 0 && event.op.flops >= 0;
}

bool is_device_event(const KernelEvent& event) {
  return static_cast<size_t>(event.kind) < 3 && are_times(event.begin_ns, event.end_ns);
}

// Each record in turn; a last one that is cut off is left out.
template <class Record, class Fn>
int64_t read_records(std::istream& file, const std::string& name, const RecordHeader& need,
                     bool (*is_record)(const Record&), const Fn& on_record) {
  static_assert(std::is_trivially_copyable_v<Record>);
  RecordHeader header{};
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  if (!file || header.magic != need.magic) fail(ErrorKind::kInvalid, "{}: no events of a profile", name);
  if (header.version != need.version || header.record_bytes != need.record_bytes)
    fail(ErrorKind::kInvalid, "{}: got events of version {} ({} bytes), need {} ({})", name, header.version,
         header.record_bytes, need.version, need.record_bytes);
  int64_t count = 0;
  std::vector<Record> records(1024);
  while (file) {
    file.read(reinterpret_cast<char*>(records.data()),
              static_cast<std::streamsize>(records.size() * sizeof(Record)));
    const size_t got = static_cast<size_t>(file.gcount()) / sizeof(Record);
    for (size_t i = 0; i < got; ++i, ++count) {
      if (!is_record(records[i])) fail(ErrorKind::kInvalid, "{}: event {} is none", name, count);
      on_record(records[i]);
    }
  }
  return count;
}

}  // namespace

std::string profile_name_fault(const std::string& name) {
  if (name.empty() || name.size() > kMaxProfileName)
    return fmt::format("got {} characters, need 1 to {}", name.size(), kMaxProfileName);
  for (const char c : name) {
    const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '_' || c == '.';
    if (!fits) return "need letters, digits, '-', '_' and '.' only";
  }
  return name.front() == '.' ? "may not begin with a dot" : "";
}

RecordFile::RecordFile(const fs::path& path, const void* header, size_t header_bytes)
    : file_(std::fopen(path.c_str(), "wbx")) {
  if (!file_) fail(ErrorKind::kEnvironment, "{}: {}", path.string(), std::strerror(errno));
  std::setvbuf(file_.get(), nullptr, _IONBF, 0);  // blocks are large, and what is written is there
  append(header, header_bytes);
}

bool RecordFile::append(const void* data, size_t size_bytes) {
  good_ = good_ && std::fwrite(data, 1, size_bytes, file_.get()) == size_bytes;
  return good_;
}

EventWriter::EventWriter(const fs::path& folder)
    : file_(folder / kEventsFile, &kEventHeader, sizeof(kEventHeader)) {}

bool EventWriter::append(std::span<const TraceEvent> events) {
  return file_.append(events.data(), events.size_bytes());
}

DeviceEventWriter::DeviceEventWriter(const fs::path& folder)
    : file_(folder / kDeviceFile, &kDeviceHeader, sizeof(kDeviceHeader)),
      names_(folder / kDeviceNamesFile, nullptr, 0) {}

bool DeviceEventWriter::append(const ops::device::KernelEvents& events) {
  std::string lines;
  for (const std::string& name : events.names) lines += name + "\n";
  const bool named = names_.append(lines.data(), lines.size());  // in front of what speaks of them
  return file_.append(events.events.data(), events.events.size() * sizeof(KernelEvent)) && named;
}

int64_t read_events(std::istream& file, const std::string& name,
                    const std::function<void(const TraceEvent&)>& on_event) {
  return read_records<TraceEvent>(file, name, kEventHeader, is_event, on_event);
}

std::vector<KernelEvent> read_device_events(std::istream& file, const std::string& name) {
  std::vector<KernelEvent> events;
  read_records<KernelEvent>(file, name, kDeviceHeader, is_device_event,
                            [&](const KernelEvent& event) { events.push_back(event); });
  return events;
}

DeviceEvents read_device_events(const fs::path& folder) {
  const fs::path path = folder / kDeviceFile;
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  DeviceEvents read{.events = read_device_events(file, path.string())};
  std::ifstream names(folder / kDeviceNamesFile);
  for (std::string line; std::getline(names, line);) read.names.push_back(line);
  return read;
}

int64_t read_events(const fs::path& folder, const std::function<void(const TraceEvent&)>& on_event) {
  const fs::path path = folder / kEventsFile;
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorKind::kNotFound, "{}: no such file", path.string());
  return read_events(file, path.string(), on_event);
}

nlohmann::ordered_json read_session(const fs::path& folder) {
  const fs::path path = folder / kSessionFile;
  std::ifstream file(path);
  if (!file) fail(ErrorKind::kNotFound, "{}: no such file; need the folder of a profile", path.string());
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) fail(ErrorKind::kInvalid, "{}: need a JSON object", path.string());
  return json;
}

void write_text(const fs::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) fail(ErrorKind::kEnvironment, "{}: cannot be written", file.string());
}

}  // namespace longspan::measure
