# Compile and link flags of kvbench's targets.
#
# Selections must not depend on which products the compiler fuses, so contraction is off and fused
# steps are written as std::fma. NaN, infinity and signed zero keep their meaning: never -ffast-math;
# only errno and traps are disabled.

set(_arch "")
if(KVBENCH_NATIVE)
  set(_arch -march=native)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(_arch -march=x86-64-v3)
endif()
set(_arithmetic -ffp-contract=off -fno-math-errno -fno-trapping-math)

set(_warnings
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wcast-qual -Wnon-virtual-dtor
  -Woverloaded-virtual -Wundef -Wvla -Wimplicit-fallthrough)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND _warnings -Wduplicated-cond -Wduplicated-branches -Wlogical-op)
  # GCC 12 and 13 see overlapping copies in std::string's operator+ (GCC bug 105651).
  list(APPEND _warnings -Wno-restrict)
  # False alarms of GCC 12 in its own headers (PR 105593, PR 105651) and inside fmt.
  list(APPEND _warnings -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-restrict)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Clang includes -Wsign-conversion in -Wconversion, and warns of loops that it cannot vectorize.
  list(APPEND _warnings -Wno-sign-conversion -Wno-pass-failed)
endif()
if(KVBENCH_WERROR)
  list(APPEND _warnings -Werror)
endif()

# nvcc passes -Xcompiler to the host compiler; its generated code is not pedantic.
set(_cuda_options --fmad=false --expt-relaxed-constexpr -lineinfo)
foreach(_flag IN LISTS _arch _arithmetic ITEMS -Wall -Wextra -Wshadow -fopenmp)
  list(APPEND _cuda_options "-Xcompiler=${_flag}")
endforeach()
if(KVBENCH_WERROR)
  list(APPEND _cuda_options "-Werror=all-warnings" "-Xcompiler=-Werror")
endif()

set(_sanitize "")
if(KVBENCH_SANITIZE)
  set(_sanitize "-fsanitize=${KVBENCH_SANITIZE}" -fno-omit-frame-pointer)
  if(KVBENCH_SANITIZE MATCHES "undefined")
    # AddressSanitizer sees the objects of the first and third check, there are few casts between classes,
    # and the three take a fifth of the compile time.
    list(APPEND _sanitize -fno-sanitize-recover=undefined -fno-sanitize=null,vptr,object-size)
  endif()
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${_sanitize}>")
  add_link_options(${_sanitize})
endif()

# Compile flags in the manifest.
string(TOUPPER "CMAKE_CXX_FLAGS_${CMAKE_BUILD_TYPE}" _build_flags)
string(JOIN " " KVBENCH_FLAGS ${CMAKE_CXX_FLAGS} ${${_build_flags}} -std=c++20 ${_arch}
       ${_arithmetic} ${_sanitize} -fopenmp)
string(STRIP "${KVBENCH_FLAGS}" KVBENCH_FLAGS)

function(kvbench_target_options target)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${_arch};${_arithmetic};${_warnings}>")
  if(KVBENCH_HAVE_CUDA)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${_cuda_options}>")
  endif()
  if(KVBENCH_STATIC)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE" AND KVBENCH_STATIC STREQUAL "FULL")
      target_link_options(${target} PRIVATE -static-pie)
    elseif(type STREQUAL "EXECUTABLE")
      target_link_options(${target} PRIVATE -static-libgcc -static-libstdc++)
    endif()
  endif()
endfunction()

# Sets `out` to the unit of each source, or to `-` where it is compiled alone: `size` sources of a
# folder at a time, which halves the time of a full build. KVBENCH_ALONE are compiled alone. With
# KVBENCH_UNITY=OFF (make nightly) every source is, which detects missing includes.
function(kvbench_units out size)
  set(_units "")
  foreach(_source IN LISTS ARGN)
    get_filename_component(_folder "${_source}" DIRECTORY)
    if(NOT KVBENCH_UNITY OR NOT _source MATCHES "\\.cpp$")
      list(APPEND _units "-")
      continue()
    endif()
    string(MAKE_C_IDENTIFIER "${_folder}" _folder)
    if(NOT DEFINED _number_${_folder})
      set(_number_${_folder} 0)
    endif()
    math(EXPR _group "${_number_${_folder}} / ${size}")
    math(EXPR _number_${_folder} "${_number_${_folder}} + 1")
    if(_source IN_LIST KVBENCH_ALONE)
      list(APPEND _units "-")
    else()
      list(APPEND _units "${_folder}_${_group}")
    endif()
  endforeach()
  set(${out} "${_units}" PARENT_SCOPE)
endfunction()

# Compiles the target's sources in the units of kvbench_units.
function(kvbench_unity target size)
  kvbench_units(_units ${size} ${ARGN})
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(_source _unit IN ZIP_LISTS ARGN _units)
    if(NOT _unit STREQUAL "-")
      set_property(SOURCE "${_source}" PROPERTY UNITY_GROUP "${_unit}")
    endif()
  endforeach()
endfunction()

# Third-party headers and libraries of every target, as SYSTEM includes.
function(kvbench_link_dependencies target)
  target_include_directories(${target} SYSTEM PRIVATE "${KVBENCH_RANDOM123_INCLUDE_DIR}")
  # Jobs already run in parallel; products over several threads would be slower, and their order of
  # summation would depend on the number of threads.
  target_compile_definitions(${target} PRIVATE EIGEN_DONT_PARALLELIZE)
  target_link_libraries(${target} PRIVATE
    $<BUILD_INTERFACE:Eigen3::Eigen> $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>
    kvbench_deps::hdf5 kvbench_deps::deflate kvbench_deps::crypto kvbench_deps::fmt
    kvbench_deps::openmp Threads::Threads)
endfunction()
