// Sizes from budgets or native parameters, and selections from scores, shared by all token-keeping
// methods.
#pragma once

#include <cstdint>
#include <iterator>

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameters `tokens` and `T`, which replace a budget, then `own`.
std::vector<ParamSpec> size_params(const std::vector<ParamSpec>& own = {});

/// The budget. Throws InputError if there is none; `otherwise`: what may replace it ("T=").
Index given_budget(std::optional<Index> budget, std::string_view otherwise);

/// Throws Infeasible: `what` ("needs") as many bytes `of`, and the budget.
[[noreturn]] void refuse_budget(Index needed, Index budget, std::string_view what = "needs",
                                std::string_view of = "");

/// Tokens to keep of m = task.count(): min(B, m) for tokens=B, floor(m / 2^T) for T, otherwise the
/// largest B <= m with fixed_bytes + B * bytes_each <= budget. Throws InputError if no size is
/// given; Infeasible if the budget is below `fixed_bytes`.
Index tokens_to_keep(const Task& task, const Params& params, Index bytes_each,
                     Index fixed_bytes = 0);
Index pairs_to_keep(const Task& task, const Params& params);

/// Tokens of the head's share, or without one pairs_to_keep.
Index own_pairs(const Task& task, const Params& params);

/// The head's share. Without one, the share that the method's `survey` and `share` give a layer of
/// this head alone.
Share share_of(const Task& task, const Params& params, Survey (*survey)(const Task&, const Params&),
               std::vector<Share> (*share)(std::span<const Survey>, const Params&));

/// The `count` positions of `tokens` with the highest scores, ascending; ties to the lowest
/// position. `scores` [tokens.size()], finite. 0 <= count <= tokens.size().
std::vector<Index> keep_top(std::span<const Index> tokens, std::span<const double> scores,
                            Index count);

/// The places of the `count` largest scores, best first, ties to the first.
std::vector<std::uint32_t> best_first(std::span<const double> scores, Index count);
/// Those of all.
inline std::vector<std::uint32_t> best_first(std::span<const double> scores) {
  return best_first(scores, std::ssize(scores));
}

/// Holds `tokens`, ascending, with weight 1.
Compressed hold(std::span<const Index> tokens);
/// Holds the pairs_to_keep tokens of the task with the highest scores [m].
Compressed hold_top(const Task& task, const Params& params, std::span<const double> scores);

Matrix copy_rows(MatrixView m, std::span<const Index> tokens);

inline void append_all(std::vector<Index>& to, std::span<const Index> more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace kvbench
