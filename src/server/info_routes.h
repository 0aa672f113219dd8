// The routes that answer without generating: health, models, tokens, version.
#pragma once

#include "server/service.h"

namespace longspan::server {

HttpResponse health(const HttpRequest& request, Service& service);  // 503 when the engine died or stalls
HttpResponse ready(const HttpRequest& request, Service& service);   // 503 while draining, too
HttpResponse list_models(const HttpRequest& request, Service& service);
HttpResponse show_model(const HttpRequest& request, Service& service);
HttpResponse show_version(const HttpRequest& request, Service& service);
HttpResponse tokenize(const HttpRequest& request, Service& service);
HttpResponse detokenize(const HttpRequest& request, Service& service);

}  // namespace longspan::server
