# The raw loops behind `bench peak` and the loop that times kernels, a library of their own: bench programs use it in builds without a server.
if(TARGET longspan_peaks)
  return()
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(amx_peak ${CMAKE_CURRENT_LIST_DIR}/peak_amx.cc)
  set_source_files_properties(${amx_peak} PROPERTIES COMPILE_OPTIONS "-mamx-tile;-mamx-bf16")
else()
  set(amx_peak ${CMAKE_CURRENT_LIST_DIR}/peak_no_amx.cc)
endif()
add_library(longspan_peaks STATIC ${CMAKE_CURRENT_LIST_DIR}/peaks.cc ${CMAKE_CURRENT_LIST_DIR}/kernel_times.cc ${amx_peak})
target_link_libraries(longspan_peaks PUBLIC longspan_options longspan_ops)
set_target_properties(longspan_peaks PROPERTIES UNITY_BUILD OFF)  # each file has flags or targets of its own
target_compile_options(longspan_peaks PRIVATE
  $<$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},x86_64>:-march=x86-64-v2>)
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")  # as in the ops room: no vectors of unknown length in arrays
  target_compile_definitions(longspan_peaks PRIVATE "HWY_DISABLED_TARGETS=(HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128)")
endif()
