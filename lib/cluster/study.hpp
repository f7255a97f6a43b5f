// Everything that `kvbench cluster` computes about the rows of one head, in one pass over tasks
// that threads share. Each task is serial, so no result depends on how many threads there are.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cluster/coverage.hpp"
#include "cluster/growth.hpp"
#include "core/types.hpp"

namespace kvbench {

struct StudyOptions {
  Index centers = 16;              ///< centres that points show; >= 1
  Index max_k = 4096;              ///< end of the coverage curve; >= 1
  std::vector<double> deltas;      ///< absolute, >= 0
  std::vector<double> deltas_rel;  ///< times the radius of one centre, >= 0
  Index max_clusters = 8192;       ///< prefixes that need more are left out; >= 1
  bool points = true;              ///< whether rows are shown at all
  Index components = 50;           ///< principal components of points; 0: the rows themselves
  Index max_points = 4096;         ///< evenly spaced rows that are shown; 0: all
};

/// Rows to show in a picture.
struct Points {
  std::vector<Index> tokens;         ///< ascending; the centres are among them
  std::vector<bool> is_center;       ///< [tokens]
  std::vector<std::string> kept_by;  ///< [tokens] labels separated by `;`; filled by the caller
  Matrix x;                          ///< [tokens, c]
};

struct Study {
  Coverage coverage;
  std::vector<DeltaGrowth> growth;  ///< ascending delta, each once
  Points points;                    ///< empty where none were asked for
};

/// Ascending tokens of n to show: `count` evenly spaced ones (floor(i n / count), so token 0 is
/// one; all where count is 0 or at least n), and besides them `always` (any order, each in [0, n)).
std::vector<Index> spaced_tokens(Index n, Index count, std::span<const Index> always);

/// Columns of the points of rows of width d.
Index point_columns(const StudyOptions& options, Index d);

/// Most bytes that study() needs beside its input: for its result, and for each thread.
struct StudyMemory {
  std::uint64_t result = 0;
  std::uint64_t per_thread = 0;
};
StudyMemory study_memory(const StudyOptions& options, Index n, Index d);

/// A matrix to study, and its rows where they are computed on.
struct StudySet {
  MatrixView points;
  const RowSet* rows;  ///< all of `points`, in their order; not null
};

/// A study of each of `sets` (at least one row each), on at most `threads`. Nothing where `stop`
/// became true before all were done. Coverage and growth have the same bits on every backend,
/// points agree as principal_components says.
std::optional<std::vector<Study>> study(std::span<const StudySet> sets, const StudyOptions& options,
                                        int threads, const std::atomic<bool>& stop);

}  // namespace kvbench
