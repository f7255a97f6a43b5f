// Which floor(m/2) of m signed tokens survive a halving, and by which factor their weight grows:
// the rules of BalanceKV's `select` (docs/methods.md), by signs alone. And the walk's parameters
// and figures, which balancekv and balancekv-stream share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"
#include "attention/softmax_balance.hpp"
#include "core/rng.hpp"
#include "core/types.hpp"

namespace kvbench {

enum class Select {
  weighted,  ///< up to c drop the majority and double the minority; after c keep all as they are
  repo,      ///< the public code's c and order
  strict,    ///< the minority, filled up from the majority; all weights doubled
  block,     ///< strict inside each block
};
enum class Fill { random, order };

/// A token that survives: its place among the m, and the factor of its weight (1 or 2).
struct Survivor {
  Index place;
  double factor;
};

/// `signs` [m] in {-1, +1} -> exactly floor(m/2) survivors, in the order in which they are stored
/// from then on (ascending but for `repo`). `block` even; used by Select::block.
std::vector<Survivor> halve(std::span<const std::int8_t> signs, Select select, Fill fill,
                            Index block, RngStream& fill_stream);

/// `step`, `gamma`, `failure`, `center`. `step_doc`: what it says of step; `block`: the parameter
/// that is the size of a walk's block.
std::vector<ParamSpec> walk_params(std::string step_doc, const std::string& block);

/// Of these and `temp`; no value bias.
WalkOptions walk_options(const KvHead& head, const Params& params);

/// The parameter `fill`.
Fill fill_of(const Params& params);

/// failures, saturated, coin.
Figures walk_figures(const WalkCounts& counts);

}  // namespace kvbench
