// From a budget or native parameters to a number of tokens, and from scores to a selection: the
// rules that all token-keeping methods share.
#pragma once

#include <span>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameters `tokens` and `T` that every token-keeping method takes in place of a budget, and
/// its `own` behind them.
std::vector<ParamSpec> size_params(const std::vector<ParamSpec>& own = {});

/// Tokens to keep of m = task.count():
///   tokens=B: min(B, m);  T: floor(m / 2^T);  else the largest B <= m with
///   fixed_bytes + B * bytes_each <= budget.
/// Errors: InputError where both `tokens` and T, or nothing, is given; Infeasible where the budget
/// is below `fixed_bytes`.
Index tokens_to_keep(const Task& task, const Params& params, Index bytes_each,
                     Index fixed_bytes = 0);
/// The same where a token takes one (k,v) pair.
Index pairs_to_keep(const Task& task, const Params& params);

/// The head's share; of a head without one, what it would get as a layer of its own. `survey` and
/// `share` are the method's.
Share share_of(const Task& task, const Params& params, Survey (*survey)(const Task&, const Params&),
               std::vector<Share> (*share)(std::span<const Survey>, const Params&));

/// The `count` positions of `tokens` with the largest scores, ascending; ties go to the lowest
/// position. `scores` [tokens.size()], finite. 0 <= count <= tokens.size().
std::vector<Index> keep_top(std::span<const Index> tokens, std::span<const double> scores,
                            Index count);

/// Bytes that a method needs which scores `tokens` tokens and keeps the best: scores, which grow by
/// doubling, and their order.
inline Index selection_bytes(Index tokens) {
  return 32 * tokens;
}

/// These tokens, ascending, each with weight 1.
Compressed hold(std::span<const Index> tokens);
/// Those of the task with the largest scores [m] (keep_top), as many as pairs_to_keep says.
Compressed hold_top(const Task& task, const Params& params, std::span<const double> scores);

/// Rows `tokens` of `m` in float32 as a new matrix.
Matrix copy_rows(MatrixView m, std::span<const Index> tokens);

inline void append_all(std::vector<Index>& to, std::span<const Index> more) {
  to.insert(to.end(), more.begin(), more.end());
}

/// For MethodInfo::random: every setting draws random numbers.
inline bool always_random(const Params&) {
  return true;
}

}  // namespace kvbench
