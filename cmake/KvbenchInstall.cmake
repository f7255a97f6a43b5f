# Installs the program, the library with its public headers, and the CMake package. The default
# component is `program`, that of the packages; the library is `development`.
set(_config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/kvbench")

if(TARGET kvbench)
  install(TARGETS kvbench RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  if(SKBUILD)  # the wheel: pyproject.toml
    install(TARGETS kvbench RUNTIME DESTINATION "${SKBUILD_SCRIPTS_DIR}" COMPONENT python)
    install(FILES data/sample.h5 DESTINATION kvbench COMPONENT python)
  endif()
endif()
# The program prints what manual pages are made of, and completion scripts.
if(TARGET kvbench AND NOT CMAKE_CROSSCOMPILING)
  install(CODE "
    set(kvbench_program [[$<TARGET_FILE:kvbench>]])
    set(kvbench_version [[${PROJECT_VERSION}]])
    set(kvbench_man [[${CMAKE_INSTALL_MANDIR}/man1]])
    set(kvbench_share [[${CMAKE_INSTALL_DATADIR}]])")
  install(SCRIPT cmake/InstallPages.cmake)
endif()
install(TARGETS kvbench_lib EXPORT kvbenchTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)

# Public headers: those of docs/extending.md and their includes. None needs another package;
# install_consumer compiles them all.
set(_public
  algorithms/contract algorithms/grid algorithms/params algorithms/protocol algorithms/reads
  algorithms/registry algorithms/task algorithms/variant
  attention/backend attention/estimator attention/facility_location attention/inner_products
  attention/kcenter attention/online_clusters attention/read_lists attention/row_set attention/scores
  attention/softmax_balance attention/streams attention/truth attention/value_norms
  cluster/coverage cluster/growth cluster/study
  core/aligned_memory core/compressed core/error core/extra core/float16 core/math core/parse_number core/rng core/rope core/types core/vector_sums
  gpu/device
  metrics/error metrics/layer_error metrics/memory
  replay/entries replay/head_input replay/job replay/job_result replay/loaded_caches
  replay/options replay/plan replay/plan_spec replay/planner replay/windows
  report/columns report/schema
  streams/attend streams/concave_phi streams/eviction streams/retention streams/revival
  streams/similarity streams/sketch streams/team
  trace/caches trace/reader trace/schema trace/synth trace/writer)
foreach(_header IN LISTS _public)
  get_filename_component(_module "${_header}" DIRECTORY)
  install(FILES "lib/${_header}.hpp" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/kvbench/${_module}"
          COMPONENT development)
endforeach()
# Headers include each other as "module/file.hpp". Module names are common words (core, trace), so
# installed headers use <kvbench/module/file.hpp>.
install(CODE "set(_headers \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/kvbench\")"
        COMPONENT development)
install(SCRIPT cmake/InstalledIncludes.cmake COMPONENT development)

install(EXPORT kvbenchTargets NAMESPACE kvbench:: DESTINATION "${_config_dir}"
        COMPONENT development)
configure_package_config_file(
  cmake/kvbenchConfig.cmake.in "${CMAKE_CURRENT_BINARY_DIR}/kvbenchConfig.cmake"
  INSTALL_DESTINATION "${_config_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/kvbenchConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${CMAKE_CURRENT_BINARY_DIR}/kvbenchConfig.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/kvbenchConfigVersion.cmake"
  cmake/KvbenchDependencies.cmake
  DESTINATION "${_config_dir}" COMPONENT development)
