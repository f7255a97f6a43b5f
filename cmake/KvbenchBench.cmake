# One program per hot loop: bench/bench_<stem>.cpp -> bench_<stem>. Google Benchmark.
find_package(benchmark REQUIRED)
find_library(KVBENCH_OPENBLAS_LIBRARY openblas REQUIRED)  # peer of the dense kernels
find_path(KVBENCH_CBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas x86_64-linux-gnu REQUIRED)
mark_as_advanced(KVBENCH_OPENBLAS_LIBRARY KVBENCH_CBLAS_INCLUDE_DIR)

file(GLOB _bench_sources ${_glob} bench/bench_*.cpp)
get_target_property(_benchmark_type benchmark::benchmark TYPE)
add_custom_target(kvbench_benches)
foreach(_source IN LISTS _bench_sources)
  get_filename_component(_name "${_source}" NAME_WE)
  add_executable(${_name} "${_source}")
  target_include_directories(${_name} PRIVATE
    "${CMAKE_CURRENT_SOURCE_DIR}/bench" "${CMAKE_CURRENT_SOURCE_DIR}/tests")
  target_compile_definitions(${_name} PRIVATE
    KVBENCH_TEST_DATA_DIR="${CMAKE_CURRENT_SOURCE_DIR}/tests/data")
  target_include_directories(${_name} SYSTEM PRIVATE "${KVBENCH_CBLAS_INCLUDE_DIR}")
  target_link_libraries(${_name} PRIVATE kvbench_lib benchmark::benchmark_main
                                         benchmark::benchmark "${KVBENCH_OPENBLAS_LIBRARY}")
  kvbench_target_options(${_name})
  kvbench_link_dependencies(${_name})
  set_target_properties(${_name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "$<1:${CMAKE_CURRENT_BINARY_DIR}/bench>")
  # A portable program carries Google Benchmark if it has no static library.
  if(KVBENCH_STATIC AND _benchmark_type STREQUAL "SHARED_LIBRARY")
    set_target_properties(${_name} PROPERTIES BUILD_RPATH "$ORIGIN")
    add_custom_command(TARGET ${_name} POST_BUILD COMMAND "${CMAKE_COMMAND}" -E copy_if_different
      "$<TARGET_FILE:benchmark::benchmark>"
      "$<TARGET_FILE_DIR:${_name}>/$<TARGET_SONAME_FILE_NAME:benchmark::benchmark>" VERBATIM)
  endif()
  add_dependencies(kvbench_benches ${_name})
endforeach()
