# One gtest program (linking many is slow), Python tests and shell tests. Tests with the label `slow`
# take four fifths of the time: `make test` skips them, `make test-slow` and CI run them.
set(KVBENCH_TEST_TIMEOUT 1800)  # for hangs; no test takes minutes on an idle machine
# Each build has its own folder of temporary files, in memory if it has 2 GB: runs wait for the disk
# after each table.
set(_files "${CMAKE_CURRENT_BINARY_DIR}/test-files")
execute_process(COMMAND df -k --output=avail /dev/shm OUTPUT_VARIABLE _available ERROR_QUIET)
if(_available MATCHES "([0-9]+)" AND CMAKE_MATCH_1 GREATER 2000000)
  string(SHA1 _build "${CMAKE_CURRENT_BINARY_DIR}")
  string(SUBSTRING "${_build}" 0 12 _build)
  set(_files "/dev/shm/kvbench-tests-${_build}")
endif()
add_test(NAME files.make COMMAND bash -c "rm -rf '${_files}' && mkdir -p '${_files}'")
add_test(NAME files.remove COMMAND "${CMAKE_COMMAND}" -E rm -rf "${_files}")
set_tests_properties(files.make PROPERTIES FIXTURES_SETUP files)
set_tests_properties(files.remove PROPERTIES FIXTURES_CLEANUP files)
# One variable per property: gtest_discover_tests keeps only the first of a list.
set(_test_environment ENVIRONMENT "TEST_TMPDIR=${_files}")
set(_src "${CMAKE_CURRENT_SOURCE_DIR}")

# Adds a gtest program's tests as NAME.0, NAME.1, ...: processes that run a part of them each. ARGN:
# variables of their environment.
function(kvbench_add_shards name program parts filter label)
  math(EXPR last "${parts} - 1")
  foreach(part RANGE ${last})
    add_test(NAME ${name}.${part} COMMAND ${program} --gtest_brief=1 --gtest_filter=${filter})
    set(_own "TEST_TMPDIR=${_files}" "GTEST_TOTAL_SHARDS=${parts}" "GTEST_SHARD_INDEX=${part}" ${ARGN})
    set_tests_properties(${name}.${part} PROPERTIES TIMEOUT ${KVBENCH_TEST_TIMEOUT} LABELS ${label}
      FIXTURES_REQUIRED files ENVIRONMENT "${_own}")
  endforeach()
endfunction()

# ------------------------------------------------------------------------------------------ gtest
file(GLOB _test_sources ${_glob} tests/test_*.cpp tests/reference/*.cpp)
file(GLOB _test_units ${_glob} tests/test_*.cpp)
set(KVBENCH_ALONE tests/test_memory.cpp)  # replaces malloc, as sanitizers do: not linked with them
set(_test_unit 10)  # sources compiled at a time: each has a namespace of its own
if(_test_units)
  find_package(GTest REQUIRED)
  include(GoogleTest)
  if(KVBENCH_TEST_OBJECTS)
    # The library's objects come first, so that their copies of inline functions are linked.
    kvbench_units(_units ${_test_unit} ${_test_sources})
    set(_objects "")
    foreach(_source _unit IN ZIP_LISTS _test_sources _units)
      if(_source IN_LIST KVBENCH_ALONE)
        continue()
      endif()
      if(NOT _unit STREQUAL "-")
        set(_source "Unity/unity_${_unit}_cxx.cxx")
      endif()
      list(APPEND _objects "${KVBENCH_TEST_OBJECTS}/CMakeFiles/kvbench_tests.dir/${_source}.o")
    endforeach()
    list(REMOVE_DUPLICATES _objects)
    set_source_files_properties(${_objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    add_executable(kvbench_tests $<TARGET_OBJECTS:kvbench_lib> ${_objects})
    set_target_properties(kvbench_tests PROPERTIES LINKER_LANGUAGE CXX)
  else()
    add_executable(kvbench_tests ${_test_sources})
  endif()
  kvbench_unity(kvbench_tests ${_test_unit} ${_test_sources})
  target_include_directories(kvbench_tests PRIVATE "${_src}/tests")
  target_link_libraries(kvbench_tests PRIVATE kvbench_lib GTest::gtest GTest::gtest_main)
  target_compile_definitions(kvbench_tests PRIVATE
    KVBENCH_TEST_DATA_DIR="${_src}/tests/data" KVBENCH_SOURCE_DIR="${_src}")
  if(TARGET kvbench)
    target_compile_definitions(kvbench_tests PRIVATE KVBENCH_PROGRAM="$<TARGET_FILE:kvbench>")
    add_dependencies(kvbench_tests kvbench)
  else()
    target_compile_definitions(kvbench_tests PRIVATE KVBENCH_PROGRAM="")
  endif()
  kvbench_target_options(kvbench_tests)
  # Tests are compiled more often than they run; the library keeps its own level.
  target_compile_options(kvbench_tests PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
  kvbench_link_dependencies(kvbench_tests)
  # Headers of nearly every test, a fifth of its compile time.
  if(NOT KVBENCH_TEST_OBJECTS)
    target_precompile_headers(kvbench_tests PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:${_src}/tests/precompiled.hpp>")
  endif()
  # Skipped in sanitizer builds, where they would take most of the time. Other tests run the same code
  # on less data or fewer seeds.
  set(_skipped "")
  if(KVBENCH_SANITIZE)
    string(CONCAT _skipped "AllMethods.OracleKeepsTheMostMass"
      ":BumbleBee.LazyEqualsGreedyWithManyTies"
      ":AllMethods.RowsAreCompleteAndWithinTheirBudgets"
      ":RetrievalRun.RowsAreCompleteAndWithinTheirBudgets"
      ":RetrievalMethods.NeverReadMoreThanTheirBudgets"
      ":RetrievalRun.AFixedSetEqualsItsMethodUnderPrefillToTheBit"
      ":QueryHeadSets.EqualATraceWithKeysAndValuesRepeatedToTheBit"
      ":OneHead.HasTheSameBitsOnManyThreads"
      ":Leverage.TheSketchComesNearTheExactScores"
      ":ClusterGenLaw.ReservoirIsUniformWithReplacement:ClusterGenLaw.PairsAreDrawnByValueNorm"
      ":ClusterGenLaw.NumeratorAndDenominatorAreUnbiased:CountSketch.HashesArePairwiseIndependent"
      ":CountSketch.OneRowIsUnbiasedForValuesAndHasTheVarianceOfItsLaw"
      ":CountSketch.MedianOfThreeMeetsThePapersVarianceBound"
      ":BalanceKv.ErrorOfTheWeightedSumIsBelowUniform"
      ":Compactor.EqualsTheDefinition:ValueNorms.OfEveryKind"
      ":SinglePrecision.EstimatesAreNearTheReference"
      ":SinglePrecision.ExactAttentionAndScoresAreNearTheReferences:Cam.EqualsTheReference"
      ":BalanceKvStream.ErrorFallsWithTheBatchSizeAndIsBelowTheTheorems")
  endif()
  # Many random inputs; other tests run the same code on fewer.
  string(CONCAT _slow "OptionFuzz.EveryParameterIsRefusedOrRuns:TableDamage.*"
    ":TraceMutations.*:CachesMutations.*:TraceHostile.WhatHdf5DoesNotSurvive")
  if(KVBENCH_SANITIZE)  # a process per test would take as long as the tests
    # Each damaged file is read in a process of its own first, which takes a sanitizer long.
    kvbench_add_shards(unit kvbench_tests 24 "-${_skipped}" unit KVBENCH_MUTATIONS=100)
  else()
    foreach(_label unit slow)
      set(_filter "-${_slow}")
      if(_label STREQUAL slow)
        set(_filter "${_slow}")
      endif()
      gtest_discover_tests(kvbench_tests
        TEST_LIST kvbench_${_label}_tests TEST_FILTER "${_filter}"
        DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 600
        PROPERTIES TIMEOUT ${KVBENCH_TEST_TIMEOUT} LABELS ${_label} FIXTURES_REQUIRED files
          ${_test_environment})
    endforeach()
  endif()
endif()

# -------------------------------------------------------------------------------------------- GPU
# Operations and whole runs on a device against the CPU. They skip, with a message, without one.
file(GLOB _gpu_tests ${_glob} tests/gpu/*.cpp)
file(GLOB _gpu_kernels ${_glob} tests/gpu/*.cu)
if(KVBENCH_HAVE_CUDA AND _test_units)
  add_executable(kvbench_gpu_tests ${_gpu_tests} ${_gpu_kernels} tests/reference/reference.cpp)
  target_include_directories(kvbench_gpu_tests PRIVATE "${_src}/tests")
  target_link_libraries(kvbench_gpu_tests PRIVATE
    kvbench_lib CUDA::cudart_static GTest::gtest GTest::gtest_main)
  target_compile_definitions(kvbench_gpu_tests PRIVATE KVBENCH_TEST_DATA_DIR="${_src}/tests/data")
  kvbench_unity(kvbench_gpu_tests ${_test_unit} ${_gpu_tests})
  kvbench_target_options(kvbench_gpu_tests)
  target_compile_options(kvbench_gpu_tests PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-O1>")
  kvbench_link_dependencies(kvbench_gpu_tests)
  gtest_discover_tests(kvbench_gpu_tests DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 600
    PROPERTIES TIMEOUT ${KVBENCH_TEST_TIMEOUT} LABELS unit FIXTURES_REQUIRED files
      ${_test_environment})
endif()

# --------------------------------------------------------------------------------- emulated device
# Runs the CUDA code on a device that tests/emulated emulates on the CPU by switching stacks (x86-64
# only). Each .cu file is compiled as C++, with the headers of tests/emulated instead of CUDA's.
file(GLOB _kernels ${_glob} lib/gpu/*.cu)
if(_kernels AND _test_units AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  file(GLOB _emulated ${_glob} tests/emulated/*.cpp)
  foreach(_kernel IN LISTS _kernels _gpu_kernels)
    get_filename_component(_name "${_kernel}" NAME_WE)
    set(_wrapper "${CMAKE_CURRENT_BINARY_DIR}/generated/emulated/${_name}.cpp")
    string(REGEX REPLACE "^(lib|tests)/" "" _include "${_kernel}")
    file(CONFIGURE OUTPUT "${_wrapper}" CONTENT "#include \"${_include}\"\n" @ONLY)
    list(APPEND _emulated "${_wrapper}")
  endforeach()
  add_executable(kvbench_emulated_tests ${_emulated} ${_gpu_tests}
    tests/reference/reference.cpp lib/gpu/device.cpp)
  kvbench_unity(kvbench_emulated_tests ${_test_unit} ${_gpu_tests})
  target_include_directories(kvbench_emulated_tests BEFORE PRIVATE
    "${_src}/tests/emulated" "${_src}/tests")
  target_link_libraries(kvbench_emulated_tests PRIVATE kvbench_lib GTest::gtest GTest::gtest_main)
  target_compile_definitions(kvbench_emulated_tests PRIVATE
    KVBENCH_HAVE_CUDA=1 KVBENCH_TEST_DATA_DIR="${_src}/tests/data")
  kvbench_target_options(kvbench_emulated_tests)
  target_compile_options(kvbench_emulated_tests PRIVATE
    -include cuda_runtime.h $<$<CONFIG:Release>:-O1>)
  kvbench_link_dependencies(kvbench_emulated_tests)
  # Tests of operations run the same code as the long ones.
  string(CONCAT _long "GpuReplay.EveryMethod:GpuReplay.ShapesAndTypes:GpuStreams.*"
    ":GpuEvictions.EqualTheCpusForEveryWidthAndGroup:GpuEvictions.SizesFromNoneToAll"
    ":GpuEvictions.TiesGoToTheLatest:GpuEvictions.SinksFromNoneToAll"
    ":GpuRetention.EqualsTheCpusForEveryObjective:GpuRetention.EveryWidthAndGroup"
    ":GpuRetention.TiesLongStreamsAndExtremes"
    ":GpuRevival.TinyCachesAndManySwaps:GpuRevival.EveryGroupReductionElementAndEstimate")
  # Test names are unknown before the program is built.
  kvbench_add_shards(emulated kvbench_emulated_tests 4 "-${_long}" slow)
  if(NOT KVBENCH_SANITIZE)  # where fibers are slow
    kvbench_add_shards(emulated_long kvbench_emulated_tests 8 "${_long}" nightly)
  endif()
  if(NOT KVBENCH_SLOW_TESTS)
    set_target_properties(kvbench_emulated_tests PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endif()

set(_environment "SRC=${_src}" "PYTHONDONTWRITEBYTECODE=1" "TMPDIR=${_files}"
  "TEST_TMPDIR=${_files}")
if(TARGET kvbench)
  list(APPEND _environment "KVBENCH=$<TARGET_FILE:kvbench>")
endif()

# ----------------------------------------------------------------------------------------- Python
include(cmake/KvbenchPython.cmake)
list(APPEND _environment "PYTHON=${kvbench_python}")

# Exit code 77: the test was skipped, with a message. COST starts these tests first, as some take minutes.
# Slow tests take more than ten seconds each.
set(_slow_tests
  python.test_damaged_tables python.test_docs_commands
  python.test_extending
  python.test_kills python.test_many_rows python.test_notebook
  python.test_plot_bits python.test_plot_choice python.test_plot_draws python.test_plot_kinds python.test_plot_layers python.test_plot_refusals
  python.test_recipes
  python.test_fronts
  cli.figures)
function(kvbench_add_test name)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY "${_src}")
  if(name IN_LIST _slow_tests)
    set_tests_properties(${name} PROPERTIES LABELS slow)
  endif()
  set(_own "${_environment}")
  if(KVBENCH_COVERAGE)
    # Counts of their own: limits on the size of files would damage those of unit tests.
    list(APPEND _own "GCOV_PREFIX=${_files}/counts" "GCOV_ERROR_FILE=/dev/null")
  endif()
  set_tests_properties(${name} PROPERTIES COST 10
    FIXTURES_REQUIRED files ENVIRONMENT "${_own}" SKIP_RETURN_CODE 77
    TIMEOUT ${KVBENCH_TEST_TIMEOUT})
endfunction()

# Skipped in sanitizer builds, like the slow Python tests and those that never start the program: they
# run the program many times on code that other tests cover.
set(_sanitizer_skips test_changed_trace test_policy_choice test_python_api
  test_slurm check_includes demo figures find_python gpu_check help interrupt list
  own_files)
file(GLOB _python_tests ${_glob} tests/test_*.py)
if(kvbench_python)
  foreach(_test IN LISTS _python_tests)
    get_filename_component(_name "${_test}" NAME_WE)
    file(STRINGS "${_test}" _starts_it REGEX "KVBENCH" LIMIT_COUNT 1)
    if(KVBENCH_SANITIZE AND (_name IN_LIST _sanitizer_skips OR "python.${_name}" IN_LIST _slow_tests
                             OR NOT _starts_it))
      continue()
    endif()
    kvbench_add_test(python.${_name}
      "${kvbench_python}" "${_src}/cmake/run_python_test.py" "${_src}/${_test}")
  endforeach()
  # The reference study's (make test-study); the smoke test is one of the usual ones as well.
  file(GLOB _study_tests ${_glob} studies/reference/tests/test_*.py)
  foreach(_test IN LISTS _study_tests)
    get_filename_component(_name "${_test}" NAME_WE)
    if(KVBENCH_SANITIZE)
      continue()
    endif()
    kvbench_add_test(study.${_name}
      "${kvbench_python}" "${_src}/cmake/run_python_test.py" "${_src}/${_test}")
    if(NOT _name STREQUAL "test_smoke")
      set_tests_properties(study.${_name} PROPERTIES LABELS study)
    endif()
  endforeach()
elseif(_python_tests)
  message(STATUS "kvbench: no python3 found, Python tests are skipped")
endif()

# Takes minutes.
if(TEST python.test_extending)
  set_tests_properties(python.test_extending PROPERTIES TIMEOUT 3600)
endif()

# Checks docs/schema.md against the sources; scripts/update_schema_docs.sh regenerates it.
add_executable(kvbench_schema_docs tests/schema_docs.cpp)
target_link_libraries(kvbench_schema_docs PRIVATE kvbench_lib)
kvbench_target_options(kvbench_schema_docs)
kvbench_link_dependencies(kvbench_schema_docs)
kvbench_add_test(tree.schema_docs $<TARGET_FILE:kvbench_schema_docs> --check
  "${_src}/docs/schema.md")

# ------------------------------------------------------------------------------------------ shell
file(GLOB _cli_tests ${_glob} tests/cli/*.sh)
foreach(_test IN LISTS _cli_tests)
  get_filename_component(_name "${_test}" NAME_WE)
  if(KVBENCH_SANITIZE AND _name IN_LIST _sanitizer_skips)
    continue()
  endif()
  if(TARGET kvbench OR _name STREQUAL "check_includes")
    kvbench_add_test(cli.${_name} bash "${_src}/${_test}")
  endif()
endforeach()

# Checks the includes of this tree; cli.check_includes tests the script.
if(NOT KVBENCH_SANITIZE)
  kvbench_add_test(tree.include_rule bash "${_src}/scripts/check_includes.sh" "${_src}")
endif()

# ---------------------------------------------------------------------------------------- install
if(TARGET kvbench AND NOT KVBENCH_SANITIZE)
  kvbench_add_test(install_consumer bash "${_src}/tests/install/run.sh")
  set_property(TEST install_consumer APPEND PROPERTY ENVIRONMENT
    "BUILD_DIR=${CMAKE_CURRENT_BINARY_DIR}" "CONFIG=$<CONFIG>" "CXX=${CMAKE_CXX_COMPILER}")
endif()
