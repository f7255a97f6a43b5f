// Norms of the values that each evaluated query sees: what BalanceKV's error bounds are relative
// to. Sums in one order: the bits depend neither on the instruction set nor on the threads.
#pragma once

#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Shared by a group's query heads. m evaluated queries, the last m positions.
struct ValueNorms {
  std::vector<double> frobenius;  ///< [m]: |V_j|_F, V_j the values that the query sees: V_{<=j}
  std::vector<double> spectral;   ///< [m]: |V_j|_op, or those of the window
};

/// Norms of V_j for the last `m` positions, 1 <= m <= n. Spectral norms from the eigenvalues of
/// V'V [dv, dv], one rank-one update per query, two in a window. Time O(n dv^2 + m dv^2), at worst
/// O(m dv^3).
ValueNorms value_norms(const KvHead& head, Index m, int threads);

}  // namespace kvbench
