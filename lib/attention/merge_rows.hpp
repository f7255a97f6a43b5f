// Keys or values merged into one: the means and sums that merging methods hold in the place of
// several rows. Knows no method.
#pragma once

#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Lists of rows of a matrix, and what becomes of list j:
///   without `shares`: the mean of its rows;
///   with them: row onto[j] + the sum of its rows, each divided by its own share first.
struct RowMerge {
  std::vector<Index> members;  ///< rows; lists are ranges of them
  std::vector<Range> lists;    ///< none empty; they may overlap
  std::vector<double> shares;  ///< empty or [members]
  std::vector<Index> onto;     ///< [lists] where there are shares, else empty
};

/// The merged rows [lists, cols] of `from` [., cols] as elements of `type`, at the edge of its
/// range where they are beyond. float64, members in their order, one rounding.
/// Time O(cols * all lists' lengths).
Matrix merge_rows(MatrixView from, const RowMerge& merge, DType type);

}  // namespace kvbench
