// Tables that a test changes and whose checksums it makes right again: what then refuses them is
// the sense of their rows.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "report/manifest.hpp"
#include "report/row_crc.hpp"

namespace kvbench::testing_replay {

/// The text of a table whose rows (without line ends inside) have the right checksums.
inline std::string with_right_sums(const std::string& text) {
  std::size_t at = text.find('\n') + 1;
  std::string out = text.substr(0, at);
  while (at < text.size()) {
    const std::size_t end = text.find('\n', at);
    const std::string row = text.substr(at, text.rfind(',', end) + 1 - at);
    out += row + row_crc(row) + "\n";
    at = end + 1;
  }
  return out;
}

/// The manifest of OUT.csv no longer says what the finished files are.
inline void forget_sha256(const std::filesystem::path& csv) {
  Manifest m = read_manifest(csv);
  m.sha256.reset();
  write_manifest(csv, m);
}

}  // namespace kvbench::testing_replay
