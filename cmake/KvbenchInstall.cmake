# The program, the library, its headers, and what find_package(kvbench) reads.
set(_config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/kvbench")

if(TARGET kvbench)
  install(TARGETS kvbench RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  if(SKBUILD)  # the wheel: pyproject.toml
    install(TARGETS kvbench RUNTIME DESTINATION "${SKBUILD_SCRIPTS_DIR}" COMPONENT python)
  endif()
endif()
# Manual pages and completion are what the program says of itself.
if(TARGET kvbench AND NOT CMAKE_CROSSCOMPILING)
  install(CODE "
    set(kvbench_program [[$<TARGET_FILE:kvbench>]])
    set(kvbench_man [[${CMAKE_INSTALL_MANDIR}/man1]])
    set(kvbench_share [[${CMAKE_INSTALL_DATADIR}]])")
  install(SCRIPT cmake/InstallPages.cmake)
endif()
install(TARGETS kvbench_lib EXPORT kvbenchTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY lib/ DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/kvbench"
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh")
install(EXPORT kvbenchTargets NAMESPACE kvbench:: DESTINATION "${_config_dir}")

configure_package_config_file(
  cmake/kvbenchConfig.cmake.in "${CMAKE_CURRENT_BINARY_DIR}/kvbenchConfig.cmake"
  INSTALL_DESTINATION "${_config_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/kvbenchConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${CMAKE_CURRENT_BINARY_DIR}/kvbenchConfig.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/kvbenchConfigVersion.cmake"
  cmake/KvbenchDependencies.cmake
  DESTINATION "${_config_dir}")
