# The library a second time, with counts of the lines that run, and the unit tests and fuzz programs
# linked to it (make coverage; nothing else builds these). Only the library is counted: nobody asks
# which lines of a test ran. -O1, as further on lines lose theirs; what is inlined from other people's
# headers would only be slow. Threads share the counters and may lose a count, not the first one of a
# line; counters that threads add to in turn would make the kernels ten times slower.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR KVBENCH_HAVE_CUDA OR KVBENCH_SANITIZE)
  return()
endif()

get_target_property(_sources kvbench_lib SOURCES)
add_library(kvbench_lib_counted STATIC EXCLUDE_FROM_ALL ${_sources})
if(TARGET kvbench_build_info)
  add_dependencies(kvbench_lib_counted kvbench_build_info)
endif()
target_include_directories(kvbench_lib_counted PRIVATE "${_src}/lib")
kvbench_unity(kvbench_lib_counted 6 ${_sources})
kvbench_target_options(kvbench_lib_counted)
kvbench_link_dependencies(kvbench_lib_counted)
target_compile_options(kvbench_lib_counted PRIVATE
  --coverage -O1 -fprofile-update=single "-fprofile-exclude-files=^/usr/.*")
target_link_options(kvbench_lib_counted INTERFACE --coverage)

add_custom_target(counted)
foreach(_target kvbench_tests fuzz_run_survey fuzz_run_caches)
  add_executable(${_target}_counted EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${_target}>)
  target_link_libraries(${_target}_counted PRIVATE kvbench_lib_counted)
  add_dependencies(counted ${_target}_counted)
endforeach()
target_link_libraries(kvbench_tests_counted PRIVATE GTest::gtest GTest::gtest_main)
