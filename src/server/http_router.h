// HttpRouter: which handler a method and a path go to. Knows nothing of what they do.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/http_server.h"

namespace longspan::server {

enum class Access : uint8_t { kOpen, kKey };  // kKey: needs the key, where there is one

struct Route {
  std::string method;
  std::string pattern;  // "/v1/models/{}": {} stands for one non-empty segment
  Access access = Access::kKey;
  std::function<HttpResponse(const HttpRequest&)> handler;
};

struct RouteMatch {
  const Route* route = nullptr;    // null: none
  std::vector<std::string> parts;  // what stood for each {}, percent-decoded
  std::string allowed_methods;     // when only the method is wrong: "GET, POST"
};

// HEAD matches what GET matches. A trailing slash does not count.
RouteMatch find_route(const std::vector<Route>& routes, const std::string& method, const std::string& path);

}  // namespace longspan::server
