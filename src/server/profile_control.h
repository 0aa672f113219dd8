// ProfileControl: what stands behind the profile routes. The measure room brings one; the server only passes
// names on.
#pragma once

#include <string>

#include "server/json_fields.h"

namespace longspan::server {

// Thread-safe.
class ProfileControl {
 public:
  virtual ~ProfileControl() = default;
  // Both throw WireError: 400 for a name that is none, 403 where this server takes no profiles, 409 where the
  // name is taken or (stop) nothing runs, 503 when the engine does not come to it.
  virtual Json start(const std::string& name) = 0;  // {name, directory}
  virtual Json stop() = 0;                          // all is on disk when it returns: {name, directory, ...}
};

}  // namespace longspan::server
