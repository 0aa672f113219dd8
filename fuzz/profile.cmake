longspan_fuzz(profile_fuzz SOURCE profile_fuzz.cc ROOMS measure)
