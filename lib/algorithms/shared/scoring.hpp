// Shared by methods that score tokens with queries.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameter `reduce`: reduction of scores over a group's query heads.
ParamSpec reduce_param();
Reduce reduce_of(const Params& params);

/// out[i] = all[tokens[i]]; `all` [n].
std::vector<double> gather_scores(std::span<const double> all, std::span<const Index> tokens);

/// [n]: accumulated attention, the scoring queries' summed softmax weights reduced over the group
/// by `reduce`. With `ref`, weights of that set's queries (extra_sums).
std::vector<double> accumulated_scores(const Task& task, const Params& params);

/// The result of `compute`, kept in the head's score book as `key` if the task is whole.
ScoreBook::Scores whole_scores(const Task& task, const std::string& key,
                               const std::function<ScoreBook::Scores()>& compute);

/// out[i]: the sum of values[j] of tokens at positions within kernel / 2 of tokens[i], over
/// `kernel`: positions without a token count as 0. `tokens` ascending, `kernel` odd.
std::vector<double> pooled_over(std::span<const double> values, std::span<const Index> tokens,
                                Index kernel);

/// log of the reduction over the group of exp(logs[g][i]).
double log_reduced(const std::vector<std::vector<double>>& logs, std::size_t i, Reduce reduce);

/// floor(ratio * count), in [0, count]; a product that is whole up to rounding is that number (0.29
/// * 100 is 28.999999999999996). 0 <= ratio <= 1.
Index floor_share(double ratio, Index count);

}  // namespace kvbench
