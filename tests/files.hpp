// Files of tests, whole.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace kvbench::testing_replay {

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace kvbench::testing_replay
