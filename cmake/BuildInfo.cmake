# cmake -DTEMPLATE= -DOUTPUT= -DSOURCE_DIR= -DKVBENCH_VERSION= -DKVBENCH_FLAGS= -DCMAKE_BUILD_TYPE=
#       -DCMAKE_CXX_COMPILER_ID= -DCMAKE_CXX_COMPILER_VERSION= -P BuildInfo.cmake
# Fills the template with the current state of the source tree. configure_file keeps an unchanged file,
# so nothing is recompiled without need.
# KVBENCH_GIT_COMMIT: 40 hex digits or "unknown". KVBENCH_GIT_DIRTY: true if tracked files differ from
# the commit or the commit is unknown.

set(KVBENCH_GIT_COMMIT "unknown")
set(KVBENCH_GIT_DIRTY "true")

find_program(GIT git)
if(GIT)
  # A tarball unpacked inside another checkout must not report the commit of that one.
  execute_process(COMMAND "${GIT}" -C "${SOURCE_DIR}" rev-parse --show-prefix
                  RESULT_VARIABLE failed OUTPUT_VARIABLE prefix ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT failed AND prefix STREQUAL "")
    execute_process(COMMAND "${GIT}" -C "${SOURCE_DIR}" rev-parse --verify HEAD
                    RESULT_VARIABLE failed OUTPUT_VARIABLE commit ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT failed)
      set(KVBENCH_GIT_COMMIT "${commit}")
      execute_process(
        COMMAND "${GIT}" --no-optional-locks -C "${SOURCE_DIR}" status --porcelain
                --untracked-files=no
        RESULT_VARIABLE failed OUTPUT_VARIABLE changes ERROR_QUIET)
      if(NOT failed AND changes STREQUAL "")
        set(KVBENCH_GIT_DIRTY "false")
      endif()
    endif()
  endif()
endif()

configure_file("${TEMPLATE}" "${OUTPUT}" @ONLY)
