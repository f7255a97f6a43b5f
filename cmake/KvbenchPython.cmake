# Sets kvbench_python, the interpreter of scripts and their tests: KVBENCH_PYTHON if it has the
# packages, otherwise that of scripts/find_python.sh. Chosen anew at every configuration, since packages
# may be installed later.
set(_help "Python of scripts and their tests: path or name on the PATH; empty: the first with the packages")
set(KVBENCH_PYTHON "" CACHE STRING "${_help}")

# Sets `variable` to the output of scripts/find_python.sh with PYTHON=`python`; empty if it fails.
function(kvbench_find_python variable python)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env "PYTHON=${python}"
      bash "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../scripts/find_python.sh" ${ARGN}
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    set(found "")
  endif()
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()

set(kvbench_python "")
if(KVBENCH_PYTHON)
  kvbench_find_python(kvbench_python "${KVBENCH_PYTHON}")
endif()
if(NOT kvbench_python)
  kvbench_find_python(kvbench_python "")
  if(KVBENCH_PYTHON AND kvbench_python)
    message(NOTICE "-- kvbench: ${KVBENCH_PYTHON} lacks numpy, pandas or matplotlib; "
                   "tests use ${kvbench_python}")
    set(KVBENCH_PYTHON "" CACHE STRING "${_help}" FORCE)
  endif()
endif()
if(NOT kvbench_python)
  # Tests that need packages are skipped.
  kvbench_find_python(kvbench_python "" sys)
endif()
