longspan_fuzz(config_fuzz SOURCE config_fuzz.cc ROOMS io)
