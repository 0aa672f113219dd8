// The routes for whoever runs the server: state, metrics, cancelling.
#pragma once

#include "server/service.h"

namespace longspan::server {

HttpResponse show_status(const HttpRequest& request, Service& service);
HttpResponse show_metrics(const HttpRequest& request, Service& service);
HttpResponse reset_prefix_cache(const HttpRequest& request, Service& service);
// By the id of the response or of the request. 404 when nothing of that id runs.
HttpResponse cancel_request(const HttpRequest& request, Service& service);

}  // namespace longspan::server
