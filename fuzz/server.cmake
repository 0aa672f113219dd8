longspan_fuzz(server_request_fuzz SOURCE server_request_fuzz.cc ROOMS server)
longspan_fuzz(http_fuzz SOURCE http_fuzz.cc ROOMS server)
