// Tables that a test changes and whose manifest it makes right again: what then refuses them is the
// sense of their rows.
#pragma once

#include <filesystem>

#include "core/sha256.hpp"
#include "report/table_spec.hpp"
#include "report_rows.hpp"

namespace kvbench::testing_replay {

/// The manifest of OUT.csv names the table as it is now.
inline void sign(const std::filesystem::path& csv, const TableSpec& table) {
  Manifest m = read_manifest(csv);
  m.sha256->at(table.name()) = sha256_file(table.path(csv));
  write_manifest(csv, m);
}

}  // namespace kvbench::testing_replay
