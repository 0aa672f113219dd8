longspan_fuzz(schema_fuzz SOURCE schema_fuzz.cc ROOMS text)
