// The folder of a profile: session.json says what was measured, events.bin holds the events as they came. All
// else in it (report.json, report.txt, kernels.csv, trace.json) is made from these two, at any time again.
#pragma once

#include <cstdio>
#include <filesystem>
#include <functional>
#include <istream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "engine/step_trace.h"

namespace longspan::measure {

inline constexpr const char* kSessionFile = "session.json";
inline constexpr const char* kEventsFile = "events.bin";
inline constexpr size_t kMaxProfileName = 64;

// Letters, digits, '-', '_' and '.', not in front; nothing that leads out of a folder. Empty: fine; else why
// not.
std::string profile_name_fault(const std::string& name);

// Appends to events.bin. Not thread-safe.
class EventWriter final {
 public:
  explicit EventWriter(const std::filesystem::path& folder);  // throws kEnvironment
  // On disk as far as the system is concerned: a process that is killed loses nothing of it. False once the
  // disk has refused.
  bool append(std::span<const engine::TraceEvent> events);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  bool good_ = true;
};

// Calls `on_event` for each event of a file, in order. A last one that is cut off is left out; what is no
// event file, or has events that cannot be, throws kInvalid (`name` is for the message). Returns how many
// there were.
int64_t read_events(std::istream& file, const std::string& name,
                    const std::function<void(const engine::TraceEvent&)>& on_event);
// Of a profile's folder. Throws kNotFound too.
int64_t read_events(const std::filesystem::path& folder,
                    const std::function<void(const engine::TraceEvent&)>& on_event);

nlohmann::ordered_json read_session(const std::filesystem::path& folder);     // throws kNotFound, kInvalid
void write_text(const std::filesystem::path& file, const std::string& text);  // throws kEnvironment

}  // namespace longspan::measure
