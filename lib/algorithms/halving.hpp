// Which floor(m/2) of m signed tokens survive a halving, and by which factor their weight grows.
// The rules of BalanceKV's `select` (docs/methods.md); no kernel, no queries: signs alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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

}  // namespace kvbench
