# Run by CPack on the folder that becomes the package: changelogs and manual pages are compressed, as
# Debian asks for, without a name or a time in them.
file(GLOB_RECURSE _pages "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*/changelog"
     "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*/changelog.Debian"
     "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*.[1-9]")
foreach(_page IN LISTS _pages)
  execute_process(COMMAND gzip -9nf "${_page}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()
