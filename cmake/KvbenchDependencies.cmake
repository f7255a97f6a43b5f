# Dependencies of the library. Included by the build and by the installed kvbenchConfig.cmake, which
# define `kvbench_dependency(...)` (find_package REQUIRED or find_dependency), KVBENCH_STATIC and
# KVBENCH_HAVE_CUDA.
#
# Defines the imported targets kvbench_deps::{hdf5,deflate,crypto,fmt,openmp}.

# The first library found: archives take precedence if KVBENCH_STATIC.
function(kvbench_find_library variable)
  if(KVBENCH_STATIC)
    list(TRANSFORM ARGN REPLACE "(.+)" "lib\\1.a" OUTPUT_VARIABLE archives)
    find_library(${variable} NAMES ${archives} ${ARGN} HINTS ${_kvbench_hints}
                 PATH_SUFFIXES hdf5/serial)
  else()
    find_library(${variable} NAMES ${ARGN} HINTS ${_kvbench_hints} PATH_SUFFIXES hdf5/serial)
  endif()
  mark_as_advanced(${variable})
endfunction()

function(kvbench_imported name include_dir)
  if(NOT TARGET kvbench_deps::${name})
    add_library(kvbench_deps::${name} INTERFACE IMPORTED)
    set_target_properties(kvbench_deps::${name} PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${include_dir}"
      INTERFACE_LINK_LIBRARIES "${ARGN}")
  endif()
endfunction()

find_package(PkgConfig QUIET)
kvbench_dependency(Threads)

# HDF5, the serial C library. pkg-config first: Debian has it in non-standard folders.
if(PKG_CONFIG_FOUND)
  pkg_search_module(KVBENCH_PC_HDF5 QUIET hdf5-serial hdf5)
endif()
set(_kvbench_hints ${KVBENCH_PC_HDF5_LIBRARY_DIRS})
find_path(KVBENCH_HDF5_INCLUDE_DIR hdf5.h HINTS ${KVBENCH_PC_HDF5_INCLUDE_DIRS}
          PATH_SUFFIXES hdf5/serial)
mark_as_advanced(KVBENCH_HDF5_INCLUDE_DIR)
kvbench_find_library(KVBENCH_HDF5_LIBRARY hdf5 hdf5_serial)
if(NOT KVBENCH_HDF5_INCLUDE_DIR OR NOT KVBENCH_HDF5_LIBRARY)
  message(FATAL_ERROR "kvbench: HDF5 (serial, C) not found (Debian: libhdf5-dev)")
endif()
set(_kvbench_hdf5 "${KVBENCH_HDF5_LIBRARY}")
if(KVBENCH_HDF5_LIBRARY MATCHES "\\.a$")
  # Dependencies of the archive: two filters and the plugin loader.
  foreach(_lib IN ITEMS sz aec z)
    string(TOUPPER "KVBENCH_${_lib}_LIBRARY" _var)
    kvbench_find_library(${_var} ${_lib})
    if(${_var})
      list(APPEND _kvbench_hdf5 "${${_var}}")
    endif()
  endforeach()
  list(APPEND _kvbench_hdf5 ${CMAKE_DL_LIBS} m Threads::Threads)
endif()
kvbench_imported(hdf5 "${KVBENCH_HDF5_INCLUDE_DIR}" ${_kvbench_hdf5})

# libdeflate
if(PKG_CONFIG_FOUND)
  pkg_search_module(KVBENCH_PC_DEFLATE QUIET libdeflate)
endif()
set(_kvbench_hints ${KVBENCH_PC_DEFLATE_LIBRARY_DIRS})
find_path(KVBENCH_DEFLATE_INCLUDE_DIR libdeflate.h HINTS ${KVBENCH_PC_DEFLATE_INCLUDE_DIRS})
mark_as_advanced(KVBENCH_DEFLATE_INCLUDE_DIR)
kvbench_find_library(KVBENCH_DEFLATE_LIBRARY deflate)
if(NOT KVBENCH_DEFLATE_INCLUDE_DIR OR NOT KVBENCH_DEFLATE_LIBRARY)
  message(FATAL_ERROR "kvbench: libdeflate not found (Debian: libdeflate-dev)")
endif()
kvbench_imported(deflate "${KVBENCH_DEFLATE_INCLUDE_DIR}" "${KVBENCH_DEFLATE_LIBRARY}")
unset(_kvbench_hints)

# OpenSSL's libcrypto
if(KVBENCH_STATIC)
  set(OPENSSL_USE_STATIC_LIBS ON)
endif()
kvbench_dependency(OpenSSL COMPONENTS Crypto)
kvbench_imported(crypto "" OpenSSL::Crypto)

# fmt: Debian has no archive, so static builds use the headers only.
kvbench_dependency(fmt)
if(KVBENCH_STATIC)
  kvbench_imported(fmt "" fmt::fmt-header-only)
else()
  kvbench_imported(fmt "" fmt::fmt)
endif()

# OpenMP: static builds with GCC link libgomp.a.
kvbench_dependency(OpenMP COMPONENTS CXX)
set(_kvbench_openmp OpenMP::OpenMP_CXX)
if(KVBENCH_STATIC AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=libgomp.a
                  OUTPUT_VARIABLE _kvbench_gomp OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(IS_ABSOLUTE "${_kvbench_gomp}" AND EXISTS "${_kvbench_gomp}")
    set(_kvbench_openmp "${_kvbench_gomp}" ${CMAKE_DL_LIBS} Threads::Threads)
    if(NOT TARGET kvbench_deps::openmp)
      kvbench_imported(openmp "" ${_kvbench_openmp})
      set_target_properties(kvbench_deps::openmp PROPERTIES
        INTERFACE_COMPILE_OPTIONS "$<$<COMPILE_LANGUAGE:CXX>:-fopenmp>")
    endif()
  endif()
endif()
kvbench_imported(openmp "" ${_kvbench_openmp})

if(KVBENCH_HAVE_CUDA)
  kvbench_dependency(CUDAToolkit)
endif()
