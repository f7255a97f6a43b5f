// Softmax weights of the last scoring queries, query by query (defensivekv, dropkv).
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameters `window` and `kernel`, which snapkv_facts checks.
std::vector<ParamSpec> window_params(std::string window, std::string kernel);

/// Positions of the last `count` scoring queries that the head has.
Range last_queries(const Task& task, Index count);

inline constexpr Index kWindowBlock = 16;  ///< most queries of a block

/// Calls visit(g, positions, p) for each query head of the group and each block of the last
/// `window` scoring queries, in order for a head, heads at the same time. p [positions, n]:
/// exact_probabilities.
using VisitWindow =
    std::function<void(Index g, std::span<const Index> positions, const MatrixD& p)>;
void each_window_block(const Task& task, const Params& params, const VisitWindow& visit);

}  // namespace kvbench
