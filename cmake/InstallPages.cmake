# Run by `cmake --install`: writes the manual pages and completion scripts that the program prints.
#   kvbench_program   the program
#   kvbench_man       folder of manual pages, below the prefix
#   kvbench_share     folder of data, below the prefix
function(kvbench_page path)
  set(file "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${path}")
  if(IS_ABSOLUTE "${path}")
    set(file "$ENV{DESTDIR}${path}")
  endif()
  execute_process(COMMAND "${kvbench_program}" ${ARGN} OUTPUT_VARIABLE text RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "exit code ${code}: ${kvbench_program} ${ARGN}")
  endif()
  message(STATUS "Installing: ${file}")
  file(WRITE "${file}" "${text}")
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${file}")
  set(CMAKE_INSTALL_MANIFEST_FILES "${CMAKE_INSTALL_MANIFEST_FILES}" PARENT_SCOPE)
endfunction()

execute_process(COMMAND "${kvbench_program}" --help OUTPUT_VARIABLE help)
string(REGEX MATCH "\nSubcommands:\n.*" help "${help}")
string(REGEX MATCHALL "\n  [a-z]+ " commands "${help}")
kvbench_page("${kvbench_man}/kvbench.1" man)
foreach(command IN LISTS commands)
  string(STRIP "${command}" command)
  kvbench_page("${kvbench_man}/kvbench-${command}.1" man "${command}")
endforeach()
kvbench_page("${kvbench_share}/bash-completion/completions/kvbench" completion bash)
kvbench_page("${kvbench_share}/zsh/site-functions/_kvbench" completion zsh)
