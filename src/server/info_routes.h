// The routes that answer without generating: health, models, tokens, version.
#pragma once

#include <optional>
#include <string>

#include "server/service.h"

namespace longspan::server {

// Why no request can be answered: the engine died, or its step stalls. (One may be long, since a chunk of a
// long prompt is; one beyond ServerOptions::stall_seconds is no step any more.)
std::optional<std::string> trouble(const Service& service);

HttpResponse health(const HttpRequest& request, Service& service);  // 503 when the engine died or stalls
HttpResponse ready(const HttpRequest& request, Service& service);   // 503 while draining, too
HttpResponse list_models(const HttpRequest& request, Service& service);
HttpResponse show_model(const HttpRequest& request, Service& service);
HttpResponse show_version(const HttpRequest& request, Service& service);
HttpResponse tokenize(const HttpRequest& request, Service& service);
HttpResponse detokenize(const HttpRequest& request, Service& service);

}  // namespace longspan::server
