longspan_fuzz(tokenizer_fuzz SOURCE tokenizer_fuzz.cc ROOMS text)
longspan_fuzz(tokenizer_file_fuzz SOURCE tokenizer_file_fuzz.cc ROOMS text)
