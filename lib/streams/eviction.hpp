// A stream that evicts by attention: which token leaves at which position.
//
// At position j, token j joins the held tokens and the group's queries attend to all of them. If
// more than `kept` tokens lie outside the recent window, the one with the lowest score leaves, of
// equal scores the latest. The latest `protected_recent` tokens outside the window cannot leave.
// Sinks are always held and attended. They have no score and count towards no other rule.
#pragma once

#include <cstdint>

#include "core/math.hpp"
#include "core/types.hpp"
#include "streams/attend.hpp"
#include "streams/team.hpp"

namespace kvbench {

struct EvictionRules {
  Index kept = 0;              ///< most tokens outside the recent window
  Index window = 0;            ///< the recent window: tokens (j - window, j] at position j
  Index protected_recent = 0;  ///< latest tokens outside the window that cannot leave; <= kept
  /// True: a token's score is the sum of its weights, rounded to float32 at each step. False: its
  /// weight from the latest queries, not rounded.
  bool accumulate = true;
  Reduce reduce = Reduce::mean;  ///< of the weights of a group's query heads
  /// Number of kept tokens after the evicted one whose scores are summed.
  Index after = 0;
  Index sink = 0;  ///< tokens [0, sink) are sinks, also while they lie in the window
};

/// What left at one position.
struct Eviction {
  Index token = -1;        ///< -1: nothing left, and the other fields are 0
  double score = 0.0;      ///< of the token when it left
  double after_sum = 0.0;  ///< scores of the next `after_count` kept tokens, added in order
  Index after_count = 0;   ///< min(rules.after, tokens after it outside the window)
};

/// A held token and the column of its key.
struct HeldSlot {
  std::int32_t token, slot;
};

/// Tokens join in ascending order, sinks first. Each occupies a slot; the next token to join reuses
/// the slot of the one that left. Each member of a team holds a copy with equal numbers; the
/// pointers show shared memory. T: element type of logits.
template <class T>
struct EvictionState : StreamHead {
  EvictionRules rules;
  Index stride = 0;  ///< slots, whole panels

  Index held = 0;
  Index free_slot = -1;  ///< below `held`; -1: none

  float* keys = nullptr;      ///< panels of `stride` columns: keys by slot
  T* queries = nullptr;       ///< [group, d] times the scale
  T* logits = nullptr;        ///< [group, stride]
  double* sums = nullptr;     ///< [group]
  double* weights = nullptr;  ///< [stride] by slot, from the latest queries; 0 for a newcomer
  float* scores = nullptr;    ///< [stride] by slot
  HeldSlot* order = nullptr;  ///< [stride] held tokens, ascending
  HeldSlot* moved = nullptr;  ///< [stride] scratch
};

/// Allocates memory for `capacity` tokens at a time. The head and the rules must be set.
template <class T, class Arena>
void reserve(EvictionState<T>& s, Index capacity, Arena& arena) {
  s.stride = s.logit_columns(capacity);
  arena.allocate(s.keys, s.d * s.stride);
  arena.allocate(s.queries, s.group * s.d);
  arena.allocate(s.logits, s.group * s.stride);
  arena.allocate(s.sums, s.group);
  arena.allocate(s.weights, s.stride);
  arena.allocate(s.scores, s.stride);
  arena.allocate(s.order, s.stride);
  arena.allocate(s.moved, s.stride);
}

/// The most tokens that a stream of n tokens holds at a time.
inline Index most_held(const EvictionRules& rules, Index n) {
  const Index kept = rules.kept < n ? rules.kept : n;
  const Index window = rules.window < n ? rules.window : n;
  const Index sink = rules.sink < n ? rules.sink : n;
  const Index all = sink + kept + window + 1;
  return all < n ? all : n;
}

/// `token` joins with score 0. Fewer tokens than the capacity must be held.
template <class Team, class T>
KVB_HD void join(const Team& team, EvictionState<T>& s, Index token) {
  const Index slot = s.free_slot >= 0 ? s.free_slot : s.held;
  put_key(team, s.k + token * s.d, s.d, slot, s.keys);
  team.once([&] {
    s.order[s.held] = {static_cast<std::int32_t>(token), static_cast<std::int32_t>(slot)};
    s.weights[slot] = 0.0;
    s.scores[slot] = 0.0F;
  });
  ++s.held;
  s.free_slot = -1;
}

/// The group's queries at position j attend to all held tokens: sets `weights` and adds them to
/// `scores`. No slot may be free.
template <class Team, class T>
KVB_HD void attend(const Team& team, EvictionState<T>& s, Index j) {
  load_queries(team, s, j, s.queries);
  team.products(s.queries, s.group, s.keys, s.held, s.d, s.logits, s.stride);
  softmax_weights(team, s, s.rules.reduce, 0, s.held, s.logits, s.stride, s.sums, s.weights);
  // Sinks keep the first slots.
  const Index sinks = s.rules.sink < s.held ? s.rules.sink : s.held;
  double* weights = s.weights;
  team.each(sinks, [=](Index i) { weights[i] = 0.0; });
  add_to_scores(team, s.held, weights, s.scores);
}

/// The token with the lowest score leaves, of the first `outside` tokens that are no sinks, without
/// the latest `protected_recent` of these.
template <class Team, class T>
KVB_HD Eviction evict(const Team& team, EvictionState<T>& s, Index outside) {
  const HeldSlot* candidates = s.order + s.rules.sink;
  const bool accumulate = s.rules.accumulate;
  const float* scores = s.scores;
  const double* weights = s.weights;
  const auto score = [=](Index i) {
    const Index slot = candidates[i].slot;
    return accumulate ? static_cast<double>(scores[slot]) : weights[slot];
  };
  const Found lightest = last_smallest(team, outside - s.rules.protected_recent, score);
  const Index at = lightest.index;
  const HeldSlot leaving = candidates[at];
  Eviction out;
  out.token = leaving.token;
  out.score = lightest.value;
  const Index later = outside - at - 1;
  out.after_count = s.rules.after < later ? s.rules.after : later;
  out.after_sum = team.sum(out.after_count, [=](Index i) { return score(at + 1 + i); });

  const Index left = s.held - s.rules.sink - at - 1;
  HeldSlot* from = s.order + s.rules.sink + at;
  HeldSlot* moved = s.moved;
  team.each(left, [=](Index i) { moved[i] = from[i + 1]; });
  team.each(left, [=](Index i) { from[i] = moved[i]; });
  --s.held;
  s.free_slot = leaving.slot;
  return out;
}

/// Position j of a stream. Positions come in order, from 0.
template <class Team, class T>
KVB_HD Eviction evict_step(const Team& team, EvictionState<T>& s, Index j) {
  join(team, s, j);
  attend(team, s, j);
  const Index others = j + 1 - s.rules.sink;  // tokens that are no sinks
  const Index recent = s.rules.window < others ? s.rules.window : others;
  const Index outside = s.held - s.rules.sink - recent;
  return others > 0 && outside > s.rules.kept ? evict(team, s, outside) : Eviction{};
}

}  // namespace kvbench
