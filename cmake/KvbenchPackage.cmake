# Packages of `make package` (CONTRIBUTING.md): a tar.gz if KVBENCH_STATIC is FULL, otherwise a .deb.
# Both hold the component `program`.
set(KVBENCH_MAINTAINER "The kvbench authors <kvbench@example.org>" CACHE STRING
    "Maintainer of packages, NAME <ADDRESS>")

set(CPACK_PACKAGE_VENDOR "The kvbench authors")
set(CPACK_PACKAGE_CONTACT "${KVBENCH_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "replay KV-cache compression methods on recorded attention")
set(CPACK_PACKAGE_DESCRIPTION
"kvbench replays recorded queries, keys and values of language models through
KV-cache compression methods, without the model. It measures the error of the
attention output, the memory and the time of each method.
It needs an x86-64-v3 processor (AVX2, FMA).")
set(CPACK_COMPONENTS_ALL program)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

if(KVBENCH_STATIC STREQUAL "FULL")
  set(CPACK_GENERATOR TGZ)
  set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
  set(CPACK_PACKAGE_FILE_NAME "kvbench-${PROJECT_VERSION}-linux-x86-64-v3")
  set(CPACK_ARCHIVE_FILE_NAME "${CPACK_PACKAGE_FILE_NAME}")
  install(FILES LICENSE README.md CHANGELOG.md DESTINATION "${CMAKE_INSTALL_DOCDIR}")
  # Licences of linked libraries, at Debian's paths.
  foreach(_package libhdf5-dev libaec-dev zlib1g-dev libdeflate-dev libssl-dev libfmt-dev gcc-12-base
          libc6-dev libeigen3-dev nlohmann-json3-dev libcli11-dev libtomlplusplus-dev librandom123-dev)
    install(FILES "/usr/share/doc/${_package}/copyright" RENAME "${_package}"
            DESTINATION "${CMAKE_INSTALL_DOCDIR}/licences" OPTIONAL)
  endforeach()
else()
  set(CPACK_GENERATOR DEB)
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_COMPONENTS_ALL program debian)
  set(CPACK_DEBIAN_PACKAGE_NAME kvbench)
  set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_PRE_BUILD_SCRIPTS "${CMAKE_CURRENT_SOURCE_DIR}/packaging/debian/compress.cmake")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  # Uses SOURCE_DATE_EPOCH if set.
  string(TIMESTAMP _date "%a, %d %b %Y %H:%M:%S +0000" UTC)
  configure_file(packaging/debian/changelog.in "${CMAKE_CURRENT_BINARY_DIR}/changelog.Debian" @ONLY)
  install(FILES packaging/debian/copyright "${CMAKE_CURRENT_BINARY_DIR}/changelog.Debian"
          DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/kvbench" COMPONENT debian EXCLUDE_FROM_ALL)
  install(FILES CHANGELOG.md RENAME changelog
          DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/kvbench" COMPONENT debian EXCLUDE_FROM_ALL)
  install(FILES packaging/debian/lintian-overrides RENAME kvbench
          DESTINATION "${CMAKE_INSTALL_DATADIR}/lintian/overrides" COMPONENT debian
          EXCLUDE_FROM_ALL)
endif()
include(CPack)
