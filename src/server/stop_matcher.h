// StopMatcher: cuts a streamed text in front of the first stop string, and never lets a part of one out.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longspan::server {

// One answer. Not thread-safe. The result does not depend on how the text is cut into pieces.
class StopMatcher final {
 public:
  // `keep_stop`: the stop string itself is part of the text.
  StopMatcher(std::vector<std::string> stops, bool keep_stop);

  // The text that can be shown now. Nothing once a stop was found.
  std::string push(std::string_view text);
  std::string finish();  // what was held back and turned out to be no stop

  // The one that ended the text: the first to be complete, the longest of several that end together.
  const std::optional<std::string>& found() const { return found_; }

 private:
  std::vector<std::string> stops_;  // none empty
  bool keep_stop_;
  std::string held_;  // a proper prefix of some stop string, always the longest
  std::optional<std::string> found_;
};

}  // namespace longspan::server
