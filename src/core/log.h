// Log lines on standard error: time, level, text. Thread-safe. Never log prompts, answers or keys.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

namespace longspan {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarn, kError };

void set_log_level(LogLevel level);                   // lines below it are dropped; default kInfo
LogLevel log_level_from_name(std::string_view name);  // "debug", "info", "warn", "error"; throws kInvalid
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view text);

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace longspan
