# One function per kind of target: room, test, fuzz target. Compile options live here and nowhere else.

add_library(longspan_options INTERFACE)
target_include_directories(longspan_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(longspan_options INTERFACE
  "$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wshadow;-Wno-missing-field-initializers;-ffp-contract=off;-fno-math-errno>"
  $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)
if(LONGSPAN_SANITIZE)
  target_compile_options(longspan_options INTERFACE -fsanitize=${LONGSPAN_SANITIZE} -fno-omit-frame-pointer
                                                    -fno-sanitize-recover=all -g1)
  if(LONGSPAN_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")  # libraries' headers make half of the checks and a fifth of the compiler's work
    target_compile_options(longspan_options INTERFACE -fsanitize-ignorelist=${CMAKE_SOURCE_DIR}/cmake/not_undefined.txt)
  endif()
  target_link_options(longspan_options INTERFACE -fsanitize=${LONGSPAN_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_link_options(longspan_options INTERFACE -fuse-ld=lld)
  endif()
endif()
if(LONGSPAN_FUZZ)
  target_link_options(longspan_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
set(longspan_fuzzed_rooms io text server measure)  # coverage for the fuzzers; its counters are slow where threads share them

# longspan_unity(TARGET): with LONGSPAN_UNITY, all files in one translation unit. What must stay alone has
# SKIP_UNITY_BUILD_INCLUSION beside its name.
function(longspan_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${LONGSPAN_UNITY} UNITY_BUILD_BATCH_SIZE 0)
endfunction()

# longspan_light(TARGET): tools, whose user waits for the compiler more than for them. After the preset's -O flag, so it wins.
function(longspan_light target)
  if(LONGSPAN_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  else()
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

# longspan_room(NAME SOURCES a.cc b.cc DEPENDS core io LIBRARIES fmt::fmt)
# A room is one folder = one namespace = one static library `longspan_NAME`.
function(longspan_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  add_library(longspan_${name} STATIC ${ARG_SOURCES})
  longspan_unity(longspan_${name})
  target_link_libraries(longspan_${name} PUBLIC longspan_options)
  if(LONGSPAN_FUZZ AND name IN_LIST longspan_fuzzed_rooms)
    target_compile_options(longspan_${name} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  foreach(room ${ARG_DEPENDS})
    target_link_libraries(longspan_${name} PUBLIC longspan_${room})
  endforeach()
  target_link_libraries(longspan_${name} PUBLIC ${ARG_LIBRARIES})
endfunction()

# longspan_test_run(ENTRY PROGRAM VARIABLE=value ...): a CTest entry that runs the cases of a GoogleTest program; they are
# counted from results/ENTRY.xml.
function(longspan_test_run entry program)
  add_test(NAME ${entry} COMMAND ${program})
  set_tests_properties(${entry} PROPERTIES
    TIMEOUT 900 ENVIRONMENT "GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/results/${entry}.xml;${ARGN}")
endfunction()

# longspan_test(NAME SOURCES a_test.cc ROOMS text LABELS slow SECONDS 60 SHARDS 2 UNSANITIZED Suite.Case): a GoogleTest
# program, mostly one for the tests of a room, whose headers are then read once. SECONDS: about how long an entry runs; the
# longest begin first, so that no processor waits for the last one. SHARDS: among how many CTest entries the cases are dealt
# out, NAME and NAME_2 ...; UNSANITIZED: cases about one size or time, which sanitizers leave out.
function(longspan_test name)
  cmake_parse_arguments(ARG "" "SECONDS;SHARDS" "SOURCES;ROOMS;LABELS;UNSANITIZED" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  longspan_unity(${name})
  if(ARG_ROOMS MATCHES "ops|device|schedule")  # their tests compute what is expected, at length
    target_compile_options(${name} PRIVATE -O1)
  else()
    target_compile_options(${name} PRIVATE -O0)
  endif()
  foreach(room ${ARG_ROOMS})
    target_link_libraries(${name} PRIVATE longspan_${room})
  endforeach()
  target_link_libraries(${name} PRIVATE GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE LONGSPAN_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                             LONGSPAN_BINARY_DIR="${CMAKE_BINARY_DIR}")
  set(variables "")
  if(LONGSPAN_SANITIZE AND ARG_UNSANITIZED)
    list(JOIN ARG_UNSANITIZED ":" cases)
    list(APPEND variables "GTEST_FILTER=-${cases}")
  endif()
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  foreach(shard RANGE 1 ${ARG_SHARDS})
    set(entry ${name})
    if(shard GREATER 1)
      string(APPEND entry _${shard})
    endif()
    math(EXPR index "${shard} - 1")
    longspan_test_run(${entry} ${name} GTEST_TOTAL_SHARDS=${ARG_SHARDS} GTEST_SHARD_INDEX=${index} ${variables})
    if(ARG_SECONDS)
      set_tests_properties(${entry} PROPERTIES COST ${ARG_SECONDS})
    endif()
    if(ARG_LABELS)
      set_tests_properties(${entry} PROPERTIES LABELS "${ARG_LABELS}")
    endif()
  endforeach()
endfunction()

# longspan_fuzz(NAME SOURCE a_fuzz.cc ROOMS text): a libFuzzer program; its seeds lie in fuzz/seeds/NAME.
function(longspan_fuzz name)
  cmake_parse_arguments(ARG "" "SOURCE" "ROOMS" ${ARGN})
  add_executable(${name} ${ARG_SOURCE})
  foreach(room ${ARG_ROOMS})
    target_link_libraries(${name} PRIVATE longspan_${room})
  endforeach()
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()
