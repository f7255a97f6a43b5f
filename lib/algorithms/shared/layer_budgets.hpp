// One budget for the same KV head of several layers (pyramidkv, cake).
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// The sum of the layers' tokens and the largest middle among them.
struct LayerTotals {
  Index tokens = 0;
  Index widest = 0;
};

/// Exact budgets of a KV head's layers, in order of `layers`; their sum is `totals.tokens`.
using ExactBudgets =
    std::function<std::vector<double>(std::span<const Survey* const> layers, LayerTotals totals)>;

/// Shares of `exact` budgets, rounded by largest remainder (ties to the lowest layer), so that the
/// sum is exact. The earliest layers with space take what a layer cannot hold. Throws InputError,
/// with the method's `name`, if heads differ in the size of a pair.
std::vector<Share> layer_shares(std::span<const Survey> surveys, const std::string& name,
                                const ExactBudgets& exact);

/// Parts of `total` in proportion to `weights` >= 0 (equal if all are 0), none above its limit:
/// what exceeds a limit is spread equally over the others, until nothing does. Their limits
/// suffice.
std::vector<double> proportional(const std::vector<double>& weights,
                                 const std::vector<double>& limits, double total);

}  // namespace kvbench
