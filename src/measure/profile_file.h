// The folder of a profile: session.json says what was measured, events.bin holds the engine's events as they
// came, device.bin (with a kernel clock) the device's, device_names.txt the names of its kernels, one a line.
// All else in it (report.json, report.txt, kernels.csv, launches.csv, trace.json) is made from these, at any
// time again.
#pragma once

#include <cstdio>
#include <filesystem>
#include <functional>
#include <istream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/step_trace.h"
#include "ops/device/kernel_clock.h"

namespace longspan::measure {

inline constexpr const char* kSessionFile = "session.json";
inline constexpr const char* kEventsFile = "events.bin";
inline constexpr const char* kDeviceFile = "device.bin";
inline constexpr const char* kDeviceNamesFile = "device_names.txt";
inline constexpr const char* kLaunchesFile = "launches.csv";
inline constexpr size_t kMaxProfileName = 64;

// Letters, digits, '-', '_' and '.', not in front; nothing that leads out of a folder. Empty: fine; else why
// not.
std::string profile_name_fault(const std::string& name);

// Appends records to a new file. Not thread-safe.
class RecordFile final {
 public:
  RecordFile(const std::filesystem::path& path, const void* header, size_t header_bytes);  // kEnvironment
  // On disk as far as the system is concerned: a process that is killed loses nothing of it. False once the
  // disk has refused.
  bool append(const void* data, size_t size_bytes);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  bool good_ = true;
};

// events.bin
class EventWriter final {
 public:
  explicit EventWriter(const std::filesystem::path& folder);  // throws kEnvironment
  bool append(std::span<const engine::TraceEvent> events);

 private:
  RecordFile file_;
};

// device.bin and device_names.txt
class DeviceEventWriter final {
 public:
  explicit DeviceEventWriter(const std::filesystem::path& folder);  // throws kEnvironment
  bool append(const ops::device::KernelEvents& events);

 private:
  RecordFile file_;
  RecordFile names_;
};

// Calls `on_event` for each event of a file, in order. A last one that is cut off is left out; what is no
// event file, or has events that cannot be, throws kInvalid (`name` is for the message). Returns how many
// there were.
int64_t read_events(std::istream& file, const std::string& name,
                    const std::function<void(const engine::TraceEvent&)>& on_event);
// Of a profile's folder. Throws kNotFound too.
int64_t read_events(const std::filesystem::path& folder,
                    const std::function<void(const engine::TraceEvent&)>& on_event);

// The same of device.bin, all at once.
std::vector<ops::device::KernelEvent> read_device_events(std::istream& file, const std::string& name);
struct DeviceEvents {
  std::vector<ops::device::KernelEvent> events;
  std::vector<std::string> names;
};
DeviceEvents read_device_events(const std::filesystem::path& folder);  // none where there is no such file

nlohmann::ordered_json read_session(const std::filesystem::path& folder);     // throws kNotFound, kInvalid
void write_text(const std::filesystem::path& file, const std::string& text);  // throws kEnvironment

}  // namespace longspan::measure
