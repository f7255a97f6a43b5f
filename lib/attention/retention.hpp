// Streams that retain tokens by facility location and attention (streams/retention.hpp) on the CPU.
// Knows no method.
#pragma once

#include <memory>
#include <span>

#include "core/types.hpp"
#include "streams/retention.hpp"

namespace kvbench {

/// What leaves at each position of a stream; one user at a time.
class RetentionStream {
 public:
  virtual ~RetentionStream() = default;
  /// Positions come in order, from 0.
  virtual Departure step(Index j) = 0;
};

/// Bytes that a stream holds whose set keeps `kept` keys of width d beside `sink` sinks.
Index retention_bytes(Precision precision, Index group, Index d, Index kept, Index sink);

/// The retained set S alone, without scores: its members and what each costs.
template <class T>
class RetainedKeys {
 public:
  /// With `track` false no neighbours are kept and loss() may not be asked for.
  RetainedKeys(Index capacity, Index d, Similarity kind, bool track);

  Index size() const { return state_.members; }
  /// S += key, at place size() - 1. Time O(|S| d).
  void add(std::span<const float> key) { add_member(OneThread(), state_, key.data(), 0, 0); }
  /// S -= the member at `place`; the newest moves into the hole. Removing the newest right after
  /// its add() takes O(|S|), another member O((1 + r) |S| d), r members having it as neighbour.
  void remove(Index place) { remove_member(OneThread(), state_, place); }
  /// f(S) - f(S - i), in units of 1 / kSimilarityOne.
  std::int64_t loss(Index place) const { return state_.loss(place); }
  /// f(S).
  std::int64_t value() const { return state_.nonzero * kSimilarityOne; }

 private:
  HostArena arena_;
  RetentionState<T> state_;
};
extern template class RetainedKeys<float>;
extern template class RetainedKeys<double>;

/// A stream of the head's positions in its precision; decides nothing ahead. The head, with queries
/// at all positions, must outlive it.
std::unique_ptr<RetentionStream> retention(const KvHead& head, const RetentionRules& rules);

}  // namespace kvbench
