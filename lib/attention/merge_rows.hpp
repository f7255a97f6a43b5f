// Several rows of keys or values merged into one, as merging methods store them.
#pragma once

#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Lists of rows of a matrix. List j becomes
///   without `shares` the mean of its rows;
///   with `shares` row onto[j] + the sum of its rows, each divided by its share.
struct RowMerge {
  std::vector<Index> members;  ///< rows of the matrix, list by list
  std::vector<Range> lists;    ///< ranges of `members`; not empty, may overlap
  std::vector<double> shares;  ///< empty or [members]
  std::vector<Index> onto;     ///< [lists] with `shares`, otherwise empty
};

/// The merged rows [lists, cols] of `from` [., cols], rounded to `type` and clamped to its range.
/// Computed in float64, members in order. Time O(cols * total length of the lists).
Matrix merge_rows(MatrixView from, const RowMerge& merge, DType type);

}  // namespace kvbench
