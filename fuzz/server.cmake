longspan_fuzz(server_request_fuzz SOURCE server_request_fuzz.cc ROOMS server)
