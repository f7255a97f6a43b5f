# Run by CPack on the package's folder: compresses changelogs and manual pages, as Debian policy requires,
# without names and times.
file(GLOB_RECURSE _pages "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*/changelog"
     "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*/changelog.Debian"
     "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*.[1-9]")
foreach(_page IN LISTS _pages)
  execute_process(COMMAND gzip -9nf "${_page}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()
