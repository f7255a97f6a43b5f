// Norms of rows and choice of rows to show.
#pragma once

#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

class DeviceRows;

/// Euclidean norm of each row, in float64, channels added in their order. Their largest is the `r`
/// of the papers' bounds. On `device`, which holds the rows where not null, to the same bits.
std::vector<double> row_norms(MatrixView rows, const DeviceRows* device = nullptr);

/// Ascending tokens of n: `count` evenly spaced ones (floor(i n / count), so token 0 is one; all
/// where count is 0 or at least n), and besides them `always` (any order, each in [0, n)).
std::vector<Index> spaced_tokens(Index n, Index count, std::span<const Index> always);

}  // namespace kvbench
