longspan_fuzz(template_fuzz SOURCE template_fuzz.cc ROOMS text)
longspan_fuzz(answer_fuzz SOURCE answer_fuzz.cc ROOMS text)
