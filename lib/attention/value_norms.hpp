// Norms of the values that each evaluated query sees, to which BalanceKV's error bounds are
// relative. Sums have one order: the bits depend neither on the instruction set nor on the threads.
#pragma once

#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Norms for the m evaluated queries, the last m positions. Shared by a group's query heads.
struct ValueNorms {
  std::vector<double> frobenius;  ///< [m]: |V_j|_F, V_j the values that query j sees
  std::vector<double> spectral;   ///< [m]: |V_j|_op
};

/// Norms of V_j for the last `m` positions, 1 <= m <= n. Spectral norms come from the eigenvalues
/// of V'V [dv, dv], a sum over the values seen: none is subtracted. Time O((n + m^2 / 32) dv^2), at
/// worst O(m dv^3). Products of the values that all m queries see and that precede them are in the
/// head's precision, or in float64 if their squares overflow or lose digits.
ValueNorms value_norms(const KvHead& head, Index m, int threads);

}  // namespace kvbench
