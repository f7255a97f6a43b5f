// What the cache still holds: true attention on exact tokens, and heavy tokens that were lost.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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

/// The same where every query met a cache of its own (a stream). A token counts as forgotten when
/// some query gave it more than kAmnesiaThreshold while the cache of that moment did not hold it
/// exactly; `amnesia_mass` is the attention on such tokens from all queries that met them not held
/// exactly, mean over all queries. Equal to held_figures where the caches are all the same.
class HeldOverSteps {
 public:
  explicit HeldOverSteps(Index n)
      : lost_(static_cast<std::size_t>(n), 0.0), noticed_(static_cast<std::size_t>(n), 0) {}

  /// One query: its exact probabilities `p` [n], and `held` [n] at its step.
  void add(std::span<const double> p, std::span<const std::uint8_t> held);

  HeldFigures figures() const;

 private:
  Index queries_ = 0;
  double kept_ = 0.0;
  std::vector<double> lost_;           // attention on the token while it was not held
  std::vector<std::uint8_t> noticed_;  // above the threshold while it was not held
};

}  // namespace kvbench
