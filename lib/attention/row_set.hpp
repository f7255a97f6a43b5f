// Rows of one matrix, and what clusters and figures ask of them. A backend says where they lie
// (attention/backend.hpp). Knows no method.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "attention/kcenter.hpp"
#include "attention/online_clusters.hpp"
#include "core/types.hpp"

namespace kvbench {

/// First and second moments of rows.
struct RowMoments {
  std::vector<double> mean;        ///< [d], added in the order of the rows
  std::vector<double> covariance;  ///< [d, d] over n rows; entries right of the diagonal are 0
};

/// m rows of width d. Places are indices into them. Thread-safe.
/// Errors: IoError where a device fails or its memory does not suffice.
class RowSet {
 public:
  virtual ~RowSet() = default;

  virtual Index count() const = 0;
  /// attention/kcenter.hpp. The same bits on every backend.
  virtual KCenter k_center(Index k, Index first = 0) const = 0;
  /// attention/online_clusters.hpp. The same bits on every backend.
  virtual Clusters online_clusters(
      double delta, Index max_clusters = std::numeric_limits<Index>::max()) const = 0;
  /// Euclidean norm of each row, channels added in their order. The same bits on every backend.
  virtual std::vector<double> norms() const = 0;
  /// Equal to rounding on every backend; the mean has the same bits. m >= 1.
  virtual RowMoments moments() const = 0;
};

/// The rows `rows` of `points`, both of which must outlive the set.
std::unique_ptr<RowSet> cpu_rows(MatrixView points, std::span<const Index> rows);
/// All rows of `points`.
std::unique_ptr<RowSet> cpu_rows(MatrixView points);

/// A delta that opens at most k clusters on this stream, such that the next smaller distance at
/// which anything changes opens more: found by bisection between half and twice the greedy k-center
/// radius, where it must lie, down to neighbouring runs, so it is itself a distance between two
/// keys (or 0). The number of clusters need not fall monotonically with delta; where it does, this
/// is the smallest delta of all. k >= 1. Time O(k rows d log(rows)).
double smallest_delta(const RowSet& rows, Index k);

}  // namespace kvbench
