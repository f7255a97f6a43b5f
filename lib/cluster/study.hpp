// What `kvbench cluster` computes for one head. Tasks are serial, so results do not depend on the
// number of threads.
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
  Index centers = 16;              ///< centres shown among points; >= 1
  Index max_k = 4096;              ///< last k of the coverage curve; >= 1
  std::vector<double> deltas;      ///< absolute, >= 0
  std::vector<double> deltas_rel;  ///< times the radius of one centre; >= 0
  Index max_clusters = 8192;       ///< prefixes that need more are omitted; >= 1
  bool points = true;              ///< whether points are returned
  Index components = 50;           ///< principal components of points; 0: the rows
  Index max_points = 4096;         ///< evenly spaced rows to return; 0: all
};

struct Points {
  std::vector<Index> tokens;         ///< ascending; includes the centres
  std::vector<bool> is_center;       ///< [tokens]
  std::vector<std::string> kept_by;  ///< [tokens] labels separated by `;`; set by the caller
  Matrix x;                          ///< [tokens, c]
};

struct Study {
  Coverage coverage;
  std::vector<DeltaGrowth> growth;  ///< ascending delta, distinct
  Points points;                    ///< empty if not requested
};

/// Ascending tokens of n to show: `count` evenly spaced ones, floor(i n / count) (all if count is 0
/// or at least n), and `always` (any order, each in [0, n)).
std::vector<Index> spaced_tokens(Index n, Index count, std::span<const Index> always);

Index point_columns(const StudyOptions& options, Index d);

/// Peak bytes of study(), for its result and per thread.
struct StudyMemory {
  std::uint64_t result = 0;
  std::uint64_t per_thread = 0;
};
StudyMemory study_memory(const StudyOptions& options, Index n, Index d);

/// A matrix to study, and its rows on a backend.
struct StudySet {
  MatrixView points;
  const RowSet* rows;  ///< all of `points`, in order; not null
};

/// Studies each of `sets` (at least one row each) on at most `threads`. Returns nullopt if `stop`
/// became true first. Coverage and growth have the same bits on every backend; points agree as
/// stated at principal_components.
std::optional<std::vector<Study>> study(std::span<const StudySet> sets, const StudyOptions& options,
                                        int threads, const std::atomic<bool>& stop);

}  // namespace kvbench
