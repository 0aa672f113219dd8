// The built-in page: its files, embedded in the program. They hold no secrets and need no key; what the page
// asks the API for does.
#pragma once

#include <span>
#include <string_view>

#include "server/http_server.h"

namespace longspan::server {

struct Service;

struct PageFile {
  std::string_view name;  // "page.css"
  std::string_view content_type;
  std::string_view text;
};
std::span<const PageFile> page_files();  // made by CMake from src/server/page

HttpResponse show_page(const HttpRequest& request, Service& service);       // GET /
HttpResponse show_page_file(const HttpRequest& request, Service& service);  // GET /page/{}

}  // namespace longspan::server
