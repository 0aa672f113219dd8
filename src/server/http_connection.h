// A connection: the requests of one client, one after the other, until one of both sides ends it. Reads
// strictly, within limits; knows no JSON, no routes and no engine.
#pragma once

#include <atomic>
#include <cstddef>

#include "server/http_server.h"
#include "server/http_stream.h"

namespace longspan::server {

// What the connections of a server share.
struct HttpSite {
  HttpLimits limits;
  HttpServer::Handler handler;
  HttpServer::ErrorHandler on_error;
  std::atomic<size_t> num_busy = 0;        // connections whose handler or stream runs
  std::atomic<size_t> num_body_bytes = 0;  // of all requests being read or handled
  std::atomic<bool> stopping = false;      // from now on each response is the last of its connection
};

// Serves until the client is gone, idle for too long, sends what is no request, or asks to close.
void serve_connection(HttpStream& stream, HttpSite& site);

// Answers a client that is not served, without reading from it, if it takes the answer at once.
void turn_away(HttpStream& stream, const HttpResponse& response);

}  // namespace longspan::server
