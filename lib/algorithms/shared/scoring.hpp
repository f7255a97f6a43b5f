// What methods that score tokens with queries need.
#pragma once

#include <span>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameter `reduce`: how scores of a group's query heads become one per token.
ParamSpec reduce_param();
Reduce reduce_of(const Params& params);

/// out[i] = all[tokens[i]]; `all` [n].
std::vector<double> gather_scores(std::span<const double> all, std::span<const Index> tokens);

/// Accumulated attention of all positions [n]: the scoring queries' softmax weights summed, reduced
/// over the group by `reduce`; of a method with `ref`, the weights of the set that it names
/// (extra_sums).
std::vector<double> accumulated_scores(const Task& task, const Params& params);

/// Bytes that accumulated_scores holds, and the selection by them.
Index accumulated_scores_bytes(const LayerFacts& layer, Index middle);

/// floor(ratio * count), where a product that is whole but for its rounding counts as that number
/// (0.29 * 100 is 28.999999999999996). 0 <= ratio <= 1; the result is in [0, count].
Index floor_share(double ratio, Index count);

}  // namespace kvbench
