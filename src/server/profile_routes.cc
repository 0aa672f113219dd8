#include "server/profile_routes.h"

#include "server/json_fields.h"
#include "server/profile_control.h"

namespace longspan::server {
namespace {

ProfileControl& profile_control(Service& service) {
  if (service.options.profiler == nullptr)
    throw WireError{.status = 403,
                    .type = error_type(403),
                    .code = "profile_off",
                    .message = "this server takes no profiles: start it with --profile-dir DIRECTORY"};
  return *service.options.profiler;
}

}  // namespace

HttpResponse start_profile(const HttpRequest& request, Service& service) {
  ProfileControl& control = profile_control(service);
  const Json body = parse_json_object(request.body);
  const std::optional<std::string> name = JsonFields(body).text("name");
  if (!name) fail_field("name", "need one, for the folder of the profile");
  return {.body = dump(control.start(*name))};
}

HttpResponse stop_profile(const HttpRequest&, Service& service) {
  return {.body = dump(profile_control(service).stop())};
}

}  // namespace longspan::server
