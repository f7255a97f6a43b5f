// From a budget or native parameters to a number of tokens, and from scores to a selection: the
// rules that all token-keeping methods share, in one place.
#pragma once

#include <span>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameters `tokens` and `T` that every token-keeping method takes in place of a budget.
std::vector<ParamSpec> size_params();

/// Their names, for MethodInfo::sizes.
std::vector<std::string> size_names();

/// Tokens to keep of m = task.count():
///   tokens=B: min(B, m);  T: floor(m / 2^T);  else the largest B <= m with
///   fixed_bytes + B * bytes_each <= budget.
/// Errors: InputError where both `tokens` and T, or nothing, is given; Infeasible where the budget
/// is below `fixed_bytes`.
Index tokens_to_keep(const Task& task, const Params& params, Index bytes_each,
                     Index fixed_bytes = 0);

/// The head's share; of a head without one, what it would get as a layer of its own. `survey` and
/// `share` are the method's.
Share share_of(const Task& task, const Params& params, Survey (*survey)(const Task&, const Params&),
               std::vector<Share> (*share)(std::span<const Survey>, const Params&));

/// The `count` positions of `tokens` with the largest scores, ascending; ties go to the lowest
/// position. `scores` [tokens.size()], finite. 0 <= count <= tokens.size(). On `device`, where not
/// null and the tokens are many (attention/top_k.hpp): the same.
std::vector<Index> keep_top(std::span<const Index> tokens, std::span<const double> scores,
                            Index count, const DeviceHead* device = nullptr);

/// The last `count` of `tokens`.
std::vector<Index> keep_last(std::span<const Index> tokens, Index count);

/// Rows `tokens` of `m` in float32 as a new matrix.
Matrix take_rows(MatrixView m, std::span<const Index> tokens);

/// Never random; for MethodInfo::random.
inline bool always_random(const Params&) {
  return true;
}

}  // namespace kvbench
