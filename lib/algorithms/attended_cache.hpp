// The tokens that a query-scoring stream attends to, with the softmax weight that each has received
// from the queries so far, within this set alone: what H2O, CaM and TOVA evict by.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "algorithms/contract.hpp"
#include "attention/similarity.hpp"

namespace kvbench {

/// Scores are float32, as stored: each step's weight is added in float64 and rounded once. Keys lie
/// transposed, one column per slot, so that a step is one pass of inner_products; a token that goes
/// leaves its column to the next that comes.
class AttendedCache {
 public:
  /// At most `capacity` tokens at a time. The head must outlive the object.
  AttendedCache(const KvHead& head, Index capacity, Reduce reduce);

  /// Takes `token` in with score 0. There must be room.
  void add(Index token) { take_in(token, true); }
  /// The same for a token that takes part in every softmax but earns no score: `score` and `last`
  /// stay 0. It is in slots() as any other.
  void add_unscored(Index token) { take_in(token, false); }
  void remove(Index token);

  /// The group's queries at position j attend to all tokens held: reduced over the query heads,
  /// their softmax weights become `last` and are added to `score`. Time O(group capacity d).
  void attend(Index j);

  Index size() const { return static_cast<Index>(slots_.size()); }
  /// Positions held, ascending, and the slot of each.
  const std::map<Index, Index>& slots() const { return slots_; }
  double score(Index slot) const { return static_cast<double>(scores_[at(slot)]); }
  /// Weight from the latest queries alone; 0 for a token that came after them.
  double last(Index slot) const { return last_[at(slot)]; }
  /// False for what add_unscored took in.
  bool scored(Index slot) const { return scored_[at(slot)] != 0; }

 private:
  static std::size_t at(Index slot) { return static_cast<std::size_t>(slot); }

  void take_in(Index token, bool scored);

  const KvHead& head_;
  Reduce reduce_;
  std::map<Index, Index> slots_;
  std::vector<Index> free_;
  MatrixD keys_;  // [d, capacity]
  std::vector<float> scores_;
  std::vector<std::uint8_t> scored_;
  std::vector<double> last_;
  MatrixD queries_, logits_;
};

}  // namespace kvbench
