// What this binary was built from. The body is made by CMake from build_info.cpp.in.
#pragma once

#include <string>

namespace kvbench {

struct BuildInfo {
  std::string version;     ///< MAJOR.MINOR.PATCH
  std::string git_commit;  ///< git commit, hexadecimal; "unknown" outside a checkout
  bool git_dirty = false;  ///< the checkout had uncommitted changes
  std::string compiler;    ///< name and version
  std::string flags;       ///< compiler flags
  std::string build_type;  ///< Release, Debug, ...
};

const BuildInfo& build_info();

}  // namespace kvbench
