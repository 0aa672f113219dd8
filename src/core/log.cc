#include "core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "core/error.h"

namespace longspan {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// Coloured on a terminal unless NO_COLOR is set; the sink decides.
spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    const auto mode = std::getenv("NO_COLOR") ? spdlog::color_mode::never : spdlog::color_mode::automatic;
    auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(mode);
    auto made = std::make_shared<spdlog::logger>("longspan", sink);
    made->set_pattern("%H:%M:%S.%e %^%-5!l%$ %v");
    return made;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

LogLevel log_level_from_name(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warn" || name == "warning") return LogLevel::kWarn;
  if (name == "error") return LogLevel::kError;
  fail(ErrorKind::kInvalid, "unknown log level '{}': need debug, info, warn or error", name);
}

bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }
void log_line(LogLevel level, std::string_view text) {
  logger().log(to_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace longspan
