// Whether a result table is what its run wrote, and whether its rows come out the same again.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Checks OUT.csv, its side tables and its manifest. Returns a line for each table, and one for
/// what could not be checked. Throws InputError for the first thing that is wrong: a row that was
/// changed, a file that is not the finished one, a count that differs from the manifest's, a side
/// table that is missing or of another run; also where the table is being written.
std::vector<std::string> verify_tables(const std::filesystem::path& csv);

/// A line of a table that was made again.
struct LineAgain {
  std::filesystem::path table;         ///< OUT.csv or a side table
  Index row = 0;                       ///< from 1, without the header
  std::vector<std::string> different;  ///< "COLUMN is X, again Y"; empty: the same but for timings
};

struct VerifyResult {
  std::vector<std::string> traces;  ///< a line for each that was hashed, with its whole path
  std::vector<LineAgain> lines;     ///< the rows drawn, and all others that differ
  Index rows_again = 0;             ///< rows of OUT.csv that ran again
  Index different = 0;              ///< of `lines`
  bool interrupted = false;         ///< then nothing was compared
};

/// Runs `sample` rows again (all where there are fewer) that `seed` draws, from the manifest alone,
/// and compares all cells but timings. The rows' jobs run whole, so the other query heads of a
/// group are compared as well, and so are side tables. Paths of traces and caches in the manifest
/// hold from the current folder. Throws InputError: the run has not ended, a trace is another, this
/// program makes another plan of the manifest; IoError.
VerifyResult verify_sample(const std::filesystem::path& csv, Index sample, std::uint64_t seed,
                           int threads, const std::atomic<bool>& stop);

}  // namespace kvbench
