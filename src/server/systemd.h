// What a service manager wants to know, in systemd's sd_notify protocol: one datagram to $NOTIFY_SOCKET.
#pragma once

namespace longspan::server {

// "READY=1", "STOPPING=1". Does nothing where nobody listens; never fails.
void notify_service_manager(const char* state);

}  // namespace longspan::server
