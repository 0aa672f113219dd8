longspan_fuzz(safetensors_fuzz SOURCE safetensors_fuzz.cc ROOMS io)
