# KVBENCH_PYTHON, the interpreter of the scripts and of their tests, and kvbench_python, the one to
# use. It is chosen at every configuration: a folder that was configured before the packages were
# there, or by hand with an interpreter that lacks them, takes a good one as soon as there is one.
set(_help "Python for scripts and their tests, a path or a name on the PATH; empty: look for one")
set(KVBENCH_PYTHON "" CACHE STRING "${_help}")
set(_modules numpy pandas matplotlib --prefer h5py sklearn)

# In `variable` what scripts/find_python.sh prints when PYTHON is `python`; empty where it fails.
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
  kvbench_find_python(kvbench_python "${KVBENCH_PYTHON}" ${_modules})
endif()
if(NOT kvbench_python)
  kvbench_find_python(kvbench_python "" ${_modules})
  if(KVBENCH_PYTHON AND kvbench_python)
    message(NOTICE "-- kvbench: ${KVBENCH_PYTHON} lacks numpy, pandas or matplotlib; "
                   "tests take ${kvbench_python}")
    set(KVBENCH_PYTHON "" CACHE STRING "${_help}" FORCE)
  endif()
endif()
if(NOT kvbench_python)
  # Tests that need no package still run, the others say that they cannot.
  kvbench_find_python(kvbench_python "${KVBENCH_PYTHON}")
endif()
if(NOT kvbench_python)
  kvbench_find_python(kvbench_python "")
endif()
