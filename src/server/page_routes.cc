#include "server/page_routes.h"

#include "server/wire_error.h"

namespace longspan::server {
namespace {

// Only files and API of this server; no script or style inside of the HTML.
constexpr const char* kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

HttpResponse file_response(std::string_view name) {
  for (const PageFile& file : page_files()) {
    if (file.name != name) continue;
    HttpResponse response{.content_type = std::string(file.content_type), .body = std::string(file.text)};
    response.set_header("Content-Security-Policy", kContentSecurityPolicy);
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Referrer-Policy", "no-referrer");
    response.set_header("Cache-Control", "no-cache");
    return response;
  }
  throw WireError{.status = 404,
                  .type = error_type(404),
                  .code = "route_not_found",
                  .message = fmt::format("the page has no file '{}'", name)};
}

}  // namespace

HttpResponse show_page(const HttpRequest&, Service&) { return file_response("index.html"); }

HttpResponse show_page_file(const HttpRequest& request, Service&) {
  return file_response(request.parts.front());
}

}  // namespace longspan::server
