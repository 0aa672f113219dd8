#include "server/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace longspan::server {
namespace {

// Length of the longest end of `text` that begins `stop` and is not all of it.
size_t partial_size(std::string_view text, std::string_view stop) {
  for (size_t size = std::min(text.size(), stop.size() - 1); size > 0; --size)
    if (text.ends_with(stop.substr(0, size))) return size;
  return 0;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops, bool keep_stop)
    : stops_(std::move(stops)), keep_stop_(keep_stop) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopMatcher::push(std::string_view text) {
  if (found_) return "";
  if (stops_.empty()) return std::string(text);
  held_ += text;
  // The stop that is complete first, whatever the pieces were; of several that end there, the longest.
  size_t end = std::string::npos;
  const std::string* first = nullptr;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    const size_t stop_end = at + stop.size();
    if (stop_end < end || (stop_end == end && stop.size() > first->size())) {
      end = stop_end;
      first = &stop;
    }
  }
  if (first) {
    found_ = *first;
    std::string shown = held_.substr(0, keep_stop_ ? end : end - first->size());
    held_.clear();
    return shown;
  }
  size_t keep = 0;
  for (const std::string& stop : stops_) keep = std::max(keep, partial_size(held_, stop));
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace longspan::server
