// RouteTable: from a request to the response of its route. Gives the request an id, asks for the key, looks
// at the content's type, and turns errors into the words of the dialect that was asked in.
#pragma once

#include <string>
#include <vector>

#include "server/api_key.h"
#include "server/http_router.h"

namespace longspan::server {

// Immutable: any thread.
class RouteTable final {
 public:
  RouteTable(std::vector<Route> routes, std::string api_key);  // throws what ApiKey throws

  // Handlers may throw WireError, Error or any exception: the response says so.
  HttpResponse handle(HttpRequest& request) const;

 private:
  HttpResponse answer(HttpRequest& request) const;
  HttpResponse dispatch(HttpRequest& request) const;

  std::vector<Route> routes_;
  ApiKey key_;
};

}  // namespace longspan::server
