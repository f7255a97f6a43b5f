// Rows of one matrix, in the memory of a backend (attention/backend.hpp): clusters, norms, moments.
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
  std::vector<double> mean;        ///< [d], summed in the order of the rows
  std::vector<double> covariance;  ///< [d, d] over n rows; entries right of the diagonal are 0
};

/// m rows of width d. Results name rows by their index 0 .. m-1. Thread-safe.
/// Errors: IoError if a device fails or its memory does not suffice.
class RowSet {
 public:
  virtual ~RowSet() = default;

  virtual Index count() const = 0;
  /// attention/kcenter.hpp. The same bits on every backend.
  virtual KCenter k_center(Index k, Index first = 0) const = 0;
  /// attention/online_clusters.hpp. The same bits on every backend.
  virtual Clusters online_clusters(
      double delta, Index max_clusters = std::numeric_limits<Index>::max()) const = 0;
  /// Euclidean norm of each row, channels summed in order. The same bits on every backend.
  virtual std::vector<double> norms() const = 0;
  /// Equal to rounding on every backend; the mean has the same bits. m >= 1.
  virtual RowMoments moments() const = 0;
};

/// The rows `rows` of `points`, both of which must outlive the set.
std::unique_ptr<RowSet> cpu_rows(MatrixView points, std::span<const Index> rows);
/// All rows of `points`.
std::unique_ptr<RowSet> cpu_rows(MatrixView points);

/// A delta that opens at most k clusters on this stream, such that the next smaller distance
/// between two rows opens more; 0 for at most k distinct rows. Found by bisection between half and
/// twice the greedy k-center radius. Where the number of clusters falls monotonically with delta,
/// this is the smallest such delta. k >= 1. Time O(k rows d log(rows)).
double smallest_delta(const RowSet& rows, Index k);

}  // namespace kvbench
