# Rewrites includes of the headers under _headers: #include "module/file.hpp" becomes #include <kvbench/module/file.hpp>.
file(GLOB_RECURSE _installed "${_headers}/*.hpp")
foreach(_header IN LISTS _installed)
  file(READ "${_header}" _text)
  string(REGEX REPLACE "#include \"([a-z0-9_/]+\\.hpp)\"" "#include <kvbench/\\1>" _text "${_text}")
  file(WRITE "${_header}" "${_text}")
endforeach()
