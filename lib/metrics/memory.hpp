// Bytes of a cache: payload (keys and values at the trace's element type, or what a method stores
// instead) plus aux (weights, indices, scores, counts). Also the attention mass and heavy tokens
// that it lost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "attention/truth.hpp"
#include "core/compressed.hpp"
#include "core/types.hpp"

namespace kvbench {

/// The memory columns of a row. `bytes` and `full_bytes` include sinks and recent tokens.
struct MemoryFigures {
  Index tokens_kept = 0;
  Index middle_bytes = 0;  ///< of the middle, bounded by the budget
  Index bytes = 0;
  Index full_bytes = 0;
  double ratio = 0.0;
  double middle_ratio = 0.0;  ///< 1 if there is no middle
  Index aux_bytes = 0;
  Index transient_bytes = 0;
};

/// `seen`: visible tokens (all n, or Windows::seen under a window); `middle` of them are to be
/// compressed.
MemoryFigures memory_figures(const Compressed& held, const KvHead& head, Index middle,
                             std::optional<Index> seen = {});

/// A sum of probabilities that rounding may have put outside [0, 1]. NaN stays NaN.
inline double share_of_mass(double sum) {
  return std::clamp(sum, 0.0, 1.0);
}

struct HeldFigures {
  double mass_kept = 0.0;   ///< attention on tokens held exactly, mean over queries; in [0, 1]
  Index amnesia_count = 0;  ///< tokens not held exactly that some query gave > kAmnesiaThreshold
  double amnesia_mass =
      0.0;  ///< their attention, mean over queries; in [0, 1] (KVReviver, figure 2)
};

/// `held` [n]: 1 if the cache holds the token's (k,v) pair exactly. `sink_mass`: share of the sink
/// logit, mean over queries; counts as kept.
HeldFigures held_figures(const ExactAttention& truth, std::span<const std::uint8_t> held,
                         double sink_mass = 0.0);

/// Share of the sink logit of query head `g`, mean over the queries of `truth`.
double sink_mass(const KvHead& head, Index g, const ExactAttention& truth);

/// held_figures for a stream. A token is forgotten if some query gave it more than
/// kAmnesiaThreshold while it was not held exactly; `amnesia_mass` is the attention on such tokens
/// from queries that did not find them held, mean over all queries. Equal to held_figures if all
/// caches are the same.
class HeldOverSteps {
 public:
  explicit HeldOverSteps(Index n) : lost_(n, 0.0), noticed_(n, 0) {}

  /// Adds a query: exact probabilities `p` [n], `held` [n] at its step, share of its sink logit.
  void add(std::span<const double> p, std::span<const std::uint8_t> held, double sink = 0.0);

  HeldFigures figures() const;

 private:
  Index queries_ = 0;
  double kept_ = 0.0;
  std::vector<double> lost_;           // attention on the token while not held
  std::vector<std::uint8_t> noticed_;  // above the threshold while not held
};

}  // namespace kvbench
