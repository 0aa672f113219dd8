// POST /v1/longspan/profile/start {"name"} and /stop.
#pragma once

#include "server/service.h"

namespace longspan::server {

HttpResponse start_profile(const HttpRequest& request, Service& service);
HttpResponse stop_profile(const HttpRequest& request, Service& service);

}  // namespace longspan::server
