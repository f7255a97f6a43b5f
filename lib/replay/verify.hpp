// kvbench verify: checksums of a result table, and a rerun of sampled rows.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Checks OUT.csv, its side tables and its manifest. Returns a line for each table, also if it has
/// no checksum. Throws InputError for the first defect: a changed file, a count that differs from
/// the manifest, a side table that is missing or of another run, a table that is being written.
std::vector<std::string> verify_tables(const std::filesystem::path& csv);

/// A line of a table that was computed again.
struct LineAgain {
  std::filesystem::path table;         ///< OUT.csv or a side table
  Index row = 0;                       ///< from 1, without the header
  std::vector<std::string> different;  ///< "COLUMN is X, again Y"; empty: equal except timings
};

struct VerifyResult {
  std::vector<std::string> traces;  ///< a line for each hashed trace, with its absolute path
  std::vector<LineAgain> lines;     ///< the sampled rows, and all others that differ
  Index rows_again = 0;             ///< rows of OUT.csv that ran again
  Index different = 0;              ///< number of `lines` that differ
  bool interrupted = false;         ///< nothing was compared
};

/// Runs min(`sample`, all) rows again, drawn with `seed`, as the manifest describes them, and
/// compares all cells except timings. Whole jobs run, so the other query heads of a group and the
/// side tables are compared too. Paths in the manifest are relative to the current folder; a trace
/// of `traces` replaces the manifest's of the same file name. Throws InputError (the run has not
/// ended, a row is kLackedMemory, a trace or policy changed, this program makes another plan of the
/// manifest) or IoError.
VerifyResult verify_sample(const std::filesystem::path& csv, Index sample, std::uint64_t seed,
                           int threads, const std::atomic<bool>& stop,
                           const std::vector<std::string>& traces = {});

}  // namespace kvbench
