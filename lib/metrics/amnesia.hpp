// What the cache still holds: true attention on exact tokens, and heavy tokens that were lost.
#pragma once

#include <cstdint>
#include <span>

#include "attention/exact.hpp"
#include "core/types.hpp"

namespace kvbench {

struct HeldFigures {
  double mass_kept = 0.0;     ///< attention on tokens held exactly, mean over queries
  Index amnesia_count = 0;    ///< tokens not held exactly that some query gave > kAmnesiaThreshold
  double amnesia_mass = 0.0;  ///< their attention, mean over queries     (KVReviver, figure 2)
};

/// `held` [n]: 1 where the cache holds the token's (k,v) pair exactly.
HeldFigures held_figures(const ExactAttention& truth, std::span<const std::uint8_t> held);

}  // namespace kvbench
