# Run by `cmake --install`: writes manual pages, which help2man makes of --help, and the completion
# scripts that the program prints. Without help2man there are no manual pages.
#   kvbench_program   the program
#   kvbench_man       folder of manual pages, below the prefix
#   kvbench_share     folder of data, below the prefix
function(kvbench_page path)
  set(file "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${path}")
  if(IS_ABSOLUTE "${path}")
    set(file "$ENV{DESTDIR}${path}")
  endif()
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE text RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "exit code ${code}: ${ARGN}")
  endif()
  string(REGEX REPLACE "(.SH NAME\nkvbench) " "\\1-" text "${text}")  # as the page's file is named
  string(REPLACE "kvbench-\\-" "kvbench \\-" text "${text}")
  message(STATUS "Installing: ${file}")
  file(WRITE "${file}" "${text}")
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${file}")
  set(CMAKE_INSTALL_MANIFEST_FILES "${CMAKE_INSTALL_MANIFEST_FILES}" PARENT_SCOPE)
endfunction()

find_program(kvbench_help2man help2man)
if(kvbench_help2man)
  get_filename_component(folder "${kvbench_program}" DIRECTORY)
  set(ENV{PATH} "${folder}:$ENV{PATH}")
  set(to_page "${kvbench_help2man}" --no-info "--version-string=${kvbench_version}")
  kvbench_page("${kvbench_man}/kvbench.1" ${to_page}
               "--name=replay, measure and compare KV-cache compression" kvbench)
  execute_process(COMMAND "${kvbench_program}" --help OUTPUT_VARIABLE help)
  string(REGEX MATCH "\nSubcommands:\n.*" help "${help}")
  string(REGEX MATCHALL "\n  [a-z]+ " commands "${help}")
  foreach(command IN LISTS commands)
    string(STRIP "${command}" command)
    execute_process(COMMAND "${kvbench_program}" "${command}" --help OUTPUT_VARIABLE help)
    string(REGEX MATCH "^[^\n]+" what "${help}")
    kvbench_page("${kvbench_man}/kvbench-${command}.1" ${to_page} "--name=${what}"
                 "kvbench ${command}")
  endforeach()
else()
  message(STATUS "help2man not found: no manual pages")
endif()
kvbench_page("${kvbench_share}/bash-completion/completions/kvbench"
             "${kvbench_program}" completion bash)
kvbench_page("${kvbench_share}/zsh/site-functions/_kvbench" "${kvbench_program}" completion zsh)
