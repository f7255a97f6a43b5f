// What a cache weighs: payload (keys and values at the trace's element type, or what a method
// really stores in their place) plus aux (weights, indices, scores, counts). And what it still
// holds: true attention on exact tokens, and heavy tokens that were lost.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "attention/truth.hpp"
#include "core/types.hpp"

namespace kvbench {

/// What is held of the middle of one KV head, counted by the replay from what a method returned.
struct Holding {
  Index pairs = 0;       ///< exact (k,v) pairs
  Index made_pairs = 0;  ///< (k,v) pairs that are in no trace
  Index quantised = 0;   ///< those of them that are tokens of the trace in fewer bits
  Index keys_only = 0;   ///< keys stored without a value (a denominator's own)
  Index aux_bytes = 0;
  std::optional<Index> payload_bytes;  ///< stored otherwise than as rows (codes, sketches)
  Index transient_bytes = 0;
};

/// The memory columns of a row. Sinks and recent tokens count in both `bytes` and `full_bytes`.
struct MemoryFigures {
  Index tokens_kept = 0;
  Index middle_bytes = 0;  ///< of the middle alone; what a budget bounds
  Index bytes = 0;
  Index full_bytes = 0;
  double ratio = 0.0;
  double middle_ratio = 0.0;  ///< 1 where there is no middle: nothing was compressed
  Index aux_bytes = 0;
  Index transient_bytes = 0;
};

/// `seen` tokens (all n, unless a window hides some: Windows::seen), of which `middle` are up for
/// compression.
MemoryFigures memory_figures(const Holding& holding, const KvHead& head, Index middle,
                             std::optional<Index> seen = {});

struct HeldFigures {
  double mass_kept = 0.0;     ///< attention on tokens held exactly, mean over queries
  Index amnesia_count = 0;    ///< tokens not held exactly that some query gave > kAmnesiaThreshold
  double amnesia_mass = 0.0;  ///< their attention, mean over queries     (KVReviver, figure 2)
};

/// `held` [n]: 1 where the cache holds the token's (k,v) pair exactly. `sink_mass`: what the sink
/// logit takes, mean over queries; it counts as kept.
HeldFigures held_figures(const ExactAttention& truth, std::span<const std::uint8_t> held,
                         double sink_mass = 0.0);

/// What the sink logit of query head `g` takes of its attention, mean over the queries of `truth`.
double sink_mass(const KvHead& head, Index g, const ExactAttention& truth);

/// The same where every query met a cache of its own (a stream). A token counts as forgotten when
/// some query gave it more than kAmnesiaThreshold while the cache of that moment did not hold it
/// exactly; `amnesia_mass` is the attention on such tokens from all queries that met them not held
/// exactly, mean over all queries. Equal to held_figures where the caches are all the same.
class HeldOverSteps {
 public:
  explicit HeldOverSteps(Index n) : lost_(n, 0.0), noticed_(n, 0) {}

  /// One query: its exact probabilities `p` [n], `held` [n] at its step, and what its sink logit
  /// takes.
  void add(std::span<const double> p, std::span<const std::uint8_t> held, double sink = 0.0);

  HeldFigures figures() const;

 private:
  Index queries_ = 0;
  double kept_ = 0.0;
  std::vector<double> lost_;           // attention on the token while it was not held
  std::vector<std::uint8_t> noticed_;  // above the threshold while it was not held
};

}  // namespace kvbench
