# One hipcc command a file: CMake's own HIP language does not configure with Debian's packages, and DTK's
# compiler is a hipcc as well.
find_program(LONGSPAN_HIPCC hipcc HINTS /opt/dtk/bin /opt/rocm/bin REQUIRED)
find_library(LONGSPAN_AMDHIP amdhip64 HINTS /opt/dtk/lib /opt/rocm/lib REQUIRED)
set(LONGSPAN_HIP_ARCHITECTURES gfx906 CACHE STRING "Offload architectures, ;-separated: gfx906, gfx936 (DTK), gfx90a ...")
set(LONGSPAN_HIP_FLAGS "" CACHE STRING "Further flags for hipcc")

list(APPEND device_sources runtime_gpu.cc prefill_library.cc prefill_trial.cc gemm_rocblas.cc gemm_trial.cc gemm_choices.cc rocblas.cc attention_mma_none.cc attention_wgmma_none.cc gemv_mma_none.cc w4a16_mma_none.cc gdn_mma_none.cc kernel_clock_hip.cc kernel_clock_roctracer.cc hip_library.cc)
set(hip_objects "")
foreach(source ${device_sources})
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
  list(TRANSFORM LONGSPAN_HIP_ARCHITECTURES PREPEND --offload-arch= OUTPUT_VARIABLE offload)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${LONGSPAN_HIPCC} -x hip -std=c++20 -O3 -fPIC -ffp-contract=on ${offload} ${LONGSPAN_HIP_FLAGS}
            -I${CMAKE_SOURCE_DIR}/src -MD -MF ${object}.d -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPFILE ${object}.d
    VERBATIM)
  list(APPEND hip_objects ${object})
endforeach()
longspan_room(device SOURCES ${hip_objects} DEPENDS core LIBRARIES ${LONGSPAN_AMDHIP} ${CMAKE_DL_LIBS})
set_target_properties(longspan_device PROPERTIES LINKER_LANGUAGE CXX)
