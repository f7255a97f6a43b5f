// Streams that evict by attention (streams/eviction.hpp) on the CPU. Knows no method.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/types.hpp"
#include "streams/eviction.hpp"

namespace kvbench {

/// What goes at each position of a stream; one user at a time.
class EvictionStream {
 public:
  virtual ~EvictionStream() = default;
  /// Positions come in order, from 0.
  virtual Eviction step(Index j) = 0;
};

/// Bytes that AttendedTokens holds for `capacity` tokens of width d.
Index attended_tokens_bytes(Precision precision, Index group, Index d, Index capacity);

/// The tokens that queries attend to, with the softmax weight that each received so far within
/// this set alone. One column of keys per token: a step costs O(group size d). T: element type of
/// the head's precision.
template <class T>
class AttendedTokens {
 public:
  /// At most `capacity` tokens at a time. The head must outlive the object.
  AttendedTokens(const KvHead& head, Index capacity, const EvictionRules& rules);

  /// Takes `token` in with score 0. Tokens come in ascending order, first all sinks that come at
  /// all. Throws std::logic_error where there is no room.
  void add(Index token);
  /// The group's queries at position j attend to all tokens held.
  void attend(Index j) { kvbench::attend(OneThread(), state_, j); }
  /// The lightest goes, of the first `outside` tokens that are no sinks; outside >
  /// rules.protected_recent.
  Eviction evict(Index outside) { return kvbench::evict(OneThread(), state_, outside); }
  /// All of these at position j of a stream, by the rules.
  Eviction step(Index j) { return evict_step(OneThread(), state_, j); }

  /// Tokens held, ascending, and their slots.
  std::span<const HeldSlot> slots() const {
    return {state_.order, static_cast<std::size_t>(state_.held)};
  }
  double score(Index slot) const { return static_cast<double>(state_.scores[slot]); }
  /// From the latest queries alone; 0 for a token that came after them.
  double weight(Index slot) const { return state_.weights[slot]; }

 private:
  Index capacity_;
  HostArena arena_;
  std::vector<const float*> queries_;
  EvictionState<T> state_;
};

extern template class AttendedTokens<float>;
extern template class AttendedTokens<double>;

/// A stream of the head's positions in its precision; decides nothing ahead. The head, with queries
/// at all positions, must outlive it.
std::unique_ptr<EvictionStream> evictions(const KvHead& head, const EvictionRules& rules);

}  // namespace kvbench
