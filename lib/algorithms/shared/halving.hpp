// Which floor(m/2) of m signed tokens survive a halving, and their weight factors: BalanceKV's
// `select` (docs/methods.md). Also the walk's parameters and figures, shared by balancekv and
// balancekv-stream.
#pragma once

#include <cstdint>

#include "algorithms/contract.hpp"
#include "attention/softmax_balance.hpp"
#include "core/rng.hpp"
#include "core/types.hpp"

namespace kvbench {

enum class Select {
  weighted,  ///< up to c drop the majority and double the minority; keep the rest
  repo,      ///< c and order of the public code
  strict,    ///< the minority, filled up from the majority; all weights doubled
  block,     ///< strict in each block
};
enum class Fill { random, order };

/// A surviving token: its place among the m and its weight factor (1 or 2).
struct Survivor {
  Index place;
  double factor;
};

/// Returns exactly floor(m/2) survivors of `signs` [m] in {-1, +1}, in storage order (ascending,
/// except for `repo`). `block` is even and used by Select::block.
std::vector<Survivor> halve(std::span<const std::int8_t> signs, Select select, Fill fill,
                            Index block, RngStream& fill_stream);

/// `step` (with help `step_doc`), `gamma`, `failure`. `block`: name of the block size parameter.
std::vector<ParamSpec> walk_params(std::string step_doc, const std::string& block);

/// From these and `temp`; no value bias.
WalkOptions walk_options(const KvHead& head, const Params& params);

/// The parameter `fill`.
Fill fill_of(const Params& params);

/// failures, saturated, coin.
Figures walk_figures(const WalkCounts& counts);

}  // namespace kvbench
