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

static_assert(std::is_trivially_copyable_v<TraceEvent>);

struct EventHeader {
  std::array<char, 16> magic;
  uint32_t version;
  uint32_t event_bytes;  // a program with other events refuses the file
};
constexpr std::array<char, 16> kMagic = {'l', 'o', 'n', 'g', 's', 'p', 'a', 'n',
                                         ' ', 'e', 'v', 'e', 'n', 't', 's', 0};
constexpr EventHeader kHeader = {kMagic, 1, sizeof(TraceEvent)};

// A bool whose byte is neither 0 nor 1 may not be looked at as one.
bool is_bool(const bool& value) {
  unsigned char byte = 0;
  std::memcpy(&byte, &value, 1);
  return byte <= 1;
}

bool is_event(const TraceEvent& event) {
  constexpr int64_t kLatest = int64_t{1} << 62, kLongest = int64_t{1} << 52;  // sums stay numbers
  return is_bool(event.cold) && is_bool(event.op.decode) && event.begin_ns >= 0 && event.begin_ns < kLatest &&
         event.end_ns >= event.begin_ns && event.end_ns - event.begin_ns < kLongest && event.op.rows >= 0 &&
         event.op.n >= 0 && event.op.k >= 0 && static_cast<size_t>(event.kind) < 4 &&
         static_cast<size_t>(event.phase) < engine::kNumPhases &&
         static_cast<size_t>(event.op.kind) < ops::kNumOpKinds &&
         static_cast<size_t>(event.op.op_class) < ops::kNumOpClasses &&
         static_cast<size_t>(event.op.path) < 3 && event.op.bytes >= 0 && event.op.flops >= 0;
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

EventWriter::EventWriter(const fs::path& folder) : file_(std::fopen((folder / kEventsFile).c_str(), "wbx")) {
  if (!file_) fail(ErrorKind::kEnvironment, "{}: {}", (folder / kEventsFile).string(), std::strerror(errno));
  std::setvbuf(file_.get(), nullptr, _IONBF, 0);  // blocks are large, and what is written is there
  good_ = std::fwrite(&kHeader, sizeof(kHeader), 1, file_.get()) == 1;
}

bool EventWriter::append(std::span<const TraceEvent> events) {
  good_ =
      good_ && std::fwrite(events.data(), sizeof(TraceEvent), events.size(), file_.get()) == events.size();
  return good_;
}

int64_t read_events(std::istream& file, const std::string& name,
                    const std::function<void(const TraceEvent&)>& on_event) {
  EventHeader header{};
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  if (!file || header.magic != kMagic) fail(ErrorKind::kInvalid, "{}: no events of a profile", name);
  if (header.version != kHeader.version || header.event_bytes != kHeader.event_bytes)
    fail(ErrorKind::kInvalid, "{}: got events of version {} ({} bytes), need {} ({})", name, header.version,
         header.event_bytes, kHeader.version, kHeader.event_bytes);
  int64_t count = 0;
  std::vector<TraceEvent> events(1024);
  while (file) {
    file.read(reinterpret_cast<char*>(events.data()),
              static_cast<std::streamsize>(events.size() * sizeof(TraceEvent)));
    const size_t got = static_cast<size_t>(file.gcount()) / sizeof(TraceEvent);
    for (size_t i = 0; i < got; ++i, ++count) {
      if (!is_event(events[i])) fail(ErrorKind::kInvalid, "{}: event {} is none", name, count);
      on_event(events[i]);
    }
  }
  return count;
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
