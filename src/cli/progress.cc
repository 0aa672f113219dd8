#include "cli/progress.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>
#include "core/units.h"

namespace longspan::cli {
namespace {

constexpr int kBarWidth = 30;
constexpr double kBarSeconds = 0.1;   // between two drawings
constexpr double kLineSeconds = 5.0;  // between two lines

class ProgressLine {
 public:
  ProgressLine(std::string what, ProgressUnit unit) : what_(std::move(what)), unit_(unit) {}

  void update(size_t done, size_t total) {
    const double seconds = since(start_);
    const bool last = done >= total;
    if (since(shown_) < (terminal_ ? kBarSeconds : kLineSeconds) && !(last && terminal_)) return;
    shown_ = Clock::now();
    const double rate = static_cast<double>(done) / (seconds > 0 ? seconds : 1e-9);
    const std::string speed =
        unit_ == ProgressUnit::kBytes ? ", " + amount(static_cast<size_t>(rate)) + "/s" : "";
    const std::string time = last ? ", took " + format_seconds(seconds)
                             : done == 0
                                 ? ""
                                 : ", " + format_seconds(static_cast<double>(total - done) / rate) + " left";
    const std::string figures = fmt::format("{} of {}{}{}", amount(done), amount(total), speed, time);
    if (!terminal_) {
      std::fprintf(stderr, "%s: %s\n", what_.c_str(), figures.c_str());
      return;
    }
    const auto filled = static_cast<size_t>(static_cast<double>(kBarWidth) * static_cast<double>(done) /
                                            static_cast<double>(total));
    const std::string bar = std::string(filled, '#') + std::string(kBarWidth - filled, '.');
    std::fprintf(stderr, "\r\x1b[K%s [%s] %s%s", what_.c_str(), bar.c_str(), figures.c_str(),
                 last ? "\n" : "");
    std::fflush(stderr);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double since(Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  }

  std::string amount(size_t count) const {
    return unit_ == ProgressUnit::kBytes ? format_bytes(count) : format_count(count);
  }

  const std::string what_;
  const ProgressUnit unit_;
  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = Clock::now();
};

}  // namespace

std::function<void(size_t, size_t)> progress(std::string what, ProgressUnit unit) {
  return [progress = std::make_shared<ProgressLine>(std::move(what), unit)](size_t done, size_t total) {
    if (total > 0) progress->update(done, total);
  };
}

}  // namespace longspan::cli
