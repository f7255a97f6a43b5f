// Principal components of a head's rows, the input of t-SNE, and how many dimensions the rows fill.
// The covariance is summed in float64 over all rows, whichever are shown.
// [1] Jolliffe, "Principal Component Analysis", 2nd ed., Springer, 2002.
#pragma once

#include <span>
#include <vector>

#include "attention/row_set.hpp"
#include "core/types.hpp"

namespace kvbench {

struct Pca {
  Index d = 0;                     ///< width of the rows
  std::vector<double> mean;        ///< [d]
  std::vector<double> components;  ///< [c, d] row-major, orthonormal rows, by falling variance; the
                                   ///< entry of largest magnitude (ties to the first) is positive
  std::vector<double> variance;    ///< [c] along each component, over n rows; >= 0

  Index count() const { return static_cast<Index>(variance.size()); }
};

/// The first min(count, width) components of all rows (at least one); count >= 1. Time O(n d^2 +
/// d^3), memory O(d^2) beside the points. Across backends variances agree up to rounding,
/// components up to rounding over the gaps between variances.
Pca principal_components(const RowSet& points, Index count);

/// [rows, c]: rows of `points`, centred, projected in float64, rounded to float32.
Matrix project(const Pca& pca, MatrixView points, std::span<const Index> rows);

inline constexpr double kSpectrumShare = 0.9;

/// Of the principal variances v of the rows. All 0 if the rows are equal.
struct Spectrum {
  double participation = 0.0;  ///< (sum v)^2 / sum v^2, in [1, width]
  double largest_share = 0.0;  ///< the largest over their sum
  Index dims_90 = 0;           ///< fewest that have kSpectrumShare of their sum
};

/// At least one row. Time O(n d^2 + d^3), memory O(d^2).
Spectrum spectrum(const RowSet& rows, Index width);

}  // namespace kvbench
