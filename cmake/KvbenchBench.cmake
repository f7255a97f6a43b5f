# One program per hot loop: bench/bench_<stem>.cpp (or .cu) -> bench_<stem>. Google Benchmark.
# bench/<stem>_*.cpp are further parts of a program whose main is a .cu.
find_package(benchmark REQUIRED)
find_library(KVBENCH_OPENBLAS_LIBRARY openblas REQUIRED)  # the peer of the dense kernels
find_path(KVBENCH_CBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas x86_64-linux-gnu REQUIRED)
mark_as_advanced(KVBENCH_OPENBLAS_LIBRARY KVBENCH_CBLAS_INCLUDE_DIR)

file(GLOB _bench_sources ${_glob} bench/bench_*.cpp)
if(KVBENCH_HAVE_CUDA)
  file(GLOB _cuda_bench ${_glob} bench/bench_*.cu)
  list(APPEND _bench_sources ${_cuda_bench})
endif()
get_target_property(_benchmark_type benchmark::benchmark TYPE)
add_custom_target(kvbench_benches)
foreach(_source IN LISTS _bench_sources)
  get_filename_component(_name "${_source}" NAME_WE)
  add_executable(${_name} "${_source}")
  target_include_directories(${_name} PRIVATE
    "${CMAKE_CURRENT_SOURCE_DIR}/bench" "${CMAKE_CURRENT_SOURCE_DIR}/tests")
  target_compile_definitions(${_name} PRIVATE
    KVBENCH_TEST_DATA_DIR="${CMAKE_CURRENT_SOURCE_DIR}/tests/data")
  target_link_libraries(${_name} PRIVATE kvbench_lib benchmark::benchmark)
  if(_source MATCHES "\\.cu$")  # these have a main of their own, and peers on the device
    target_link_libraries(${_name} PRIVATE ${CMAKE_DL_LIBS})
    string(REPLACE "bench_" "" _stem "${_name}")
    file(GLOB _parts ${_glob} "bench/${_stem}_*.cpp")
    target_sources(${_name} PRIVATE ${_parts})
    target_compile_definitions(${_name} PRIVATE
      KVBENCH_HAVE_CUBLAS=$<BOOL:$<TARGET_EXISTS:CUDA::cublas>>)
  else()
    target_include_directories(${_name} SYSTEM PRIVATE "${KVBENCH_CBLAS_INCLUDE_DIR}")
    target_link_libraries(${_name} PRIVATE benchmark::benchmark_main
                                           "${KVBENCH_OPENBLAS_LIBRARY}")
  endif()
  kvbench_target_options(${_name})
  kvbench_link_dependencies(${_name})
  set_target_properties(${_name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "$<1:${CMAKE_CURRENT_BINARY_DIR}/bench>")
  # A portable program takes Google Benchmark along where there is no archive of it.
  if(KVBENCH_STATIC AND _benchmark_type STREQUAL "SHARED_LIBRARY")
    set_target_properties(${_name} PROPERTIES BUILD_RPATH "$ORIGIN")
    add_custom_command(TARGET ${_name} POST_BUILD COMMAND "${CMAKE_COMMAND}" -E copy_if_different
      "$<TARGET_FILE:benchmark::benchmark>"
      "$<TARGET_FILE_DIR:${_name}>/$<TARGET_SONAME_FILE_NAME:benchmark::benchmark>" VERBATIM)
  endif()
  add_dependencies(kvbench_benches ${_name})
endforeach()
