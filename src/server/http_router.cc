#include "server/http_router.h"

#include <charconv>
#include <optional>
#include <string_view>

namespace longspan::server {
namespace {

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// {} may hold slashes, as model names do, when it is the last segment.
std::optional<std::vector<std::string>> match(std::string_view pattern, std::string_view path) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t hole = pattern.find("{}");
    if (hole == pattern.npos) {
      if (pattern != path) return std::nullopt;
      return parts;
    }
    if (path.substr(0, hole) != pattern.substr(0, hole)) return std::nullopt;
    pattern.remove_prefix(hole + 2);
    path.remove_prefix(hole);
    const size_t end = pattern.empty() ? path.size() : std::min(path.find('/'), path.size());
    if (end == 0) return std::nullopt;
    parts.push_back(percent_decoded(path.substr(0, end)));
    path.remove_prefix(end);
  }
}

}  // namespace

RouteMatch find_route(const std::vector<Route>& routes, const std::string& method, const std::string& path) {
  std::string_view trimmed = path;
  if (trimmed.size() > 1 && trimmed.back() == '/') trimmed.remove_suffix(1);
  const std::string_view wanted = method == "HEAD" ? "GET" : std::string_view(method);
  RouteMatch result;
  for (const Route& route : routes) {
    auto parts = match(route.pattern, trimmed);
    if (!parts) continue;
    if (route.method == wanted) return {.route = &route, .parts = *std::move(parts)};
    result.allowed_methods += (result.allowed_methods.empty() ? "" : ", ") + route.method;
  }
  return result;
}

}  // namespace longspan::server
