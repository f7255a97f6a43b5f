// Streams over one KV head (streams/eviction.hpp, retention.hpp, revival.hpp), one position after
// another: what a backend opens, and the CPU's.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/types.hpp"
#include "streams/eviction.hpp"
#include "streams/retention.hpp"
#include "streams/revival.hpp"

namespace kvbench {

/// What leaves at each position. Not thread-safe.
class EvictionStream {
 public:
  virtual ~EvictionStream() = default;
  /// Positions come in order, from 0.
  virtual Eviction step(Index j) = 0;
};

/// What leaves at each position. Not thread-safe.
class RetentionStream {
 public:
  virtual ~RetentionStream() = default;
  /// Positions come in order, from 0.
  virtual Departure step(Index j) = 0;
};

/// Which tokens move at each step. Not thread-safe.
class ReviveStream {
 public:
  virtual ~ReviveStream() = default;

  /// The next of the task's steps: its moves, in order. Valid until the next call.
  virtual std::span<const ReviveMove> step(const ReviveStep& step) = 0;

  /// [n]. On the CPU after the steps so far, on a device after the last.
  virtual std::span<const float> scores() const = 0;
};

/// What a revival opens with.
struct ReviveTask {
  ReviveRules rules;
  std::span<const SketchHash> hashes;  ///< one per row of the sketch, 1 .. kMaxSketchRows
  Index cells = 1;                     ///< per row, >= 1
  DType dtype = DType::float32;        ///< of a cell's elements
  CellEstimate estimate = CellEstimate::sum;
  /// All steps. A device runs them when the stream opens; the CPU does not read them.
  std::span<const ReviveStep> steps;

  /// The state of a stream over `head` [n tokens], without memory. `hashes` must outlive it.
  template <class T>
  ReviveState<T> state(const StreamHead& head, Index n) const;
};
extern template ReviveState<float> ReviveTask::state(const StreamHead&, Index) const;
extern template ReviveState<double> ReviveTask::state(const StreamHead&, Index) const;

/// The CPU's streams. They decide position by position, in the head's precision. The head and the
/// task's hashes must outlive them. Evictions and retentions need queries at all positions.
std::unique_ptr<EvictionStream> open_eviction(const KvHead& head, const EvictionRules& rules);
std::unique_ptr<RetentionStream> open_retention(const KvHead& head, const RetentionRules& rules);
std::unique_ptr<ReviveStream> open_revival(const KvHead& head, const ReviveTask& task);

/// The tokens that queries attend to, with the softmax weight that each received within this set. A
/// step costs O(group size d). T: element type of logits.
template <class T>
class AttendedTokens {
 public:
  /// Holds at most `capacity` tokens at a time. The head must outlive the object.
  AttendedTokens(const KvHead& head, Index capacity, const EvictionRules& rules);

  /// `token` joins with score 0. Tokens come in ascending order, sinks first. Throws
  /// std::logic_error when `capacity` tokens are held.
  void add(Index token);
  /// The group's queries at position j attend to all held tokens.
  void attend(Index j) { kvbench::attend(OneThread(), state_, j); }
  /// The token with the lowest score leaves, of the first `outside` tokens that are no sinks.
  /// outside > rules.protected_recent.
  Eviction evict(Index outside) { return kvbench::evict(OneThread(), state_, outside); }
  /// All three at position j of a stream, by the rules.
  Eviction step(Index j) { return evict_step(OneThread(), state_, j); }

  /// Held tokens, ascending, and their slots.
  std::span<const HeldSlot> slots() const {
    return {state_.order, static_cast<std::size_t>(state_.held)};
  }
  double score(Index slot) const { return static_cast<double>(state_.scores[slot]); }
  /// From the latest queries; 0 for a token that joined after them.
  double weight(Index slot) const { return state_.weights[slot]; }

 private:
  Index capacity_;
  HostArena arena_;
  std::vector<const float*> queries_;
  EvictionState<T> state_;
};
extern template class AttendedTokens<float>;
extern template class AttendedTokens<double>;

}  // namespace kvbench
