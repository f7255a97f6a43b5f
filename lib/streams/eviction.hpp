// A stream that evicts by attention: which token goes at which position. Knows no method.
//
// At position j token j joins the tokens held, the group's queries attend to all of them, and if
// more than `kept` lie outside the recent window, the one with the lowest score goes; of equal ones
// the latest. The `protected_recent` latest of those outside the window do not go. Sinks are always
// held and attended; they have no score, and no other rule speaks of them.
//
// T: element type of logits and their exponentials, as in attention/query_block.hpp. A logit is one
// FMA per channel, ascending; the sum of a softmax is float64, in lanes over the slots. So every
// team gets the same bits.
#pragma once

#include <cstdint>

#include "core/math.hpp"
#include "core/types.hpp"
#include "streams/team.hpp"

namespace kvbench {

struct EvictionRules {
  Index kept = 0;              ///< tokens outside the recent window, at most
  Index window = 0;            ///< the recent window: tokens (j - window, j] at position j
  Index protected_recent = 0;  ///< tokens outside the window that stay, the latest; <= kept
  /// True: a token's score is the sum of its weights, in float32, each step rounded once. False:
  /// its weight from the latest queries alone, not rounded.
  bool accumulate = true;
  Reduce reduce = Reduce::mean;  ///< of the weights of a group's query heads
  /// Of how many kept tokens behind the evicted one scores are summed; 0: of none.
  Index after = 0;
  Index sink = 0;  ///< tokens [0, sink) are sinks, also where the window has not lost them yet
};

/// What went at one position.
struct Eviction {
  Index token = -1;        ///< -1: nothing; the rest is then 0
  double score = 0.0;      ///< of the token when it went
  double after_sum = 0.0;  ///< scores of the next `after_count` tokens that stay, ascending
  Index after_count = 0;   ///< min(rules.after, tokens behind it outside the window)
};

/// A token held and the column of its key.
struct HeldSlot {
  std::int32_t token, slot;
};

/// Tokens join in ascending order, sinks first. Each has a slot; one that goes leaves its slot to
/// the next that joins. Every member of a team has a copy, whose numbers change alike; what the
/// pointers show is shared.
template <class T>
struct EvictionState {
  EvictionRules rules;
  const float* k = nullptr;         ///< [n, d]
  const float* const* q = nullptr;  ///< [group] of [., d]
  Index q_start = 0;                ///< position of the first query
  Index d = 0, group = 0;
  double scale = 1.0;
  const float* sink_logits = nullptr;  ///< [group] or null
  Index stride = 0;                    ///< slots, whole panels

  Index held = 0;
  Index free_slot = -1;  ///< below `held`; -1: none

  float* keys = nullptr;      ///< panels of `stride` columns: keys by slot
  T* queries = nullptr;       ///< [group, d] times the scale
  T* logits = nullptr;        ///< [group, stride]; later the exponentials
  double* sums = nullptr;     ///< [group] of the exponentials
  double* weights = nullptr;  ///< [stride] by slot, from the latest queries; 0 for a newcomer
  float* scores = nullptr;    ///< [stride] by slot
  HeldSlot* order = nullptr;  ///< [stride] tokens held, ascending
  HeldSlot* moved = nullptr;  ///< [stride] scratch
};

/// Memory for `capacity` tokens at a time; fields above `held` must be set.
template <class T, class Arena>
void reserve(EvictionState<T>& s, Index capacity, Arena& arena) {
  s.stride = whole_panels(capacity + (s.sink_logits == nullptr ? 0 : 1));
  arena.take(s.keys, s.d * s.stride);
  arena.take(s.queries, s.group * s.d);
  arena.take(s.logits, s.group * s.stride);
  arena.take(s.sums, s.group);
  arena.take(s.weights, s.stride);
  arena.take(s.scores, s.stride);
  arena.take(s.order, s.stride);
  arena.take(s.moved, s.stride);
}

/// Tokens of a stream of n that are held at a time, at most.
inline Index most_held(const EvictionRules& rules, Index n) {
  const Index kept = rules.kept < n ? rules.kept : n;
  const Index window = rules.window < n ? rules.window : n;
  const Index sink = rules.sink < n ? rules.sink : n;
  const Index all = sink + kept + window + 1;
  return all < n ? all : n;
}

/// `token` joins with score 0. There must be room.
template <class Team, class T>
KVB_HD void join(const Team& team, EvictionState<T>& s, Index token) {
  const Index slot = s.free_slot >= 0 ? s.free_slot : s.held;
  const float* key = s.k + token * s.d;
  float* column = s.keys + in_panels(slot, 0, s.d);
  team.each(s.d, [=](Index t) { column[t * kPanel] = key[t]; });
  team.once([&] {
    s.order[s.held] = {static_cast<std::int32_t>(token), static_cast<std::int32_t>(slot)};
    s.weights[slot] = 0.0;
    s.scores[slot] = 0.0F;
  });
  ++s.held;
  s.free_slot = -1;
}

/// The group's queries at position j attend to all tokens held: their softmax weights, reduced over
/// the query heads, become `weights` and are added to `scores`. No slot may be free.
template <class Team, class T>
KVB_HD void attend(const Team& team, EvictionState<T>& s, Index j) {
  for (Index g = 0; g < s.group; ++g) {
    const float* q = s.q[g] + (j - s.q_start) * s.d;
    T* query = s.queries + g * s.d;
    const double scale = s.scale;
    team.each(s.d, [=](Index t) { query[t] = static_cast<T>(static_cast<double>(q[t]) * scale); });
  }
  team.products(s.queries, s.group, s.keys, s.held, s.d, s.logits, s.stride);
  const Index terms = append_sinks(team, s.sink_logits, s.group, s.held, s.logits, s.stride);
  for (Index g = 0; g < s.group; ++g) {
    T* row = s.logits + g * s.stride;
    const T largest = team.max(terms, [=](Index i) { return row[i]; });
    team.each(terms, [=](Index i) { row[i] = exp_shared(row[i] - largest); });
  }
  const T* exponentials = s.logits;
  const Index stride = s.stride;
  team.sums(
      s.group, terms, [=](Index g, Index i) { return exponentials[g * stride + i]; }, s.sums);
  double* weights = s.weights;
  float* scores = s.scores;
  const bool largest_head = s.rules.reduce == Reduce::max;
  const double heads = s.rules.reduce == Reduce::mean ? static_cast<double>(s.group) : 1.0;
  for (Index g = 0; g < s.group; ++g) {
    const T* row = s.logits + g * s.stride;
    const double inverse = 1.0 / (s.sums[g] * heads);
    team.each(s.held, [=](Index i) {
      const double weight = static_cast<double>(row[i]) * inverse;
      const double so_far = g == 0 ? 0.0 : weights[i];
      const double larger = so_far < weight ? weight : so_far;
      weights[i] = largest_head ? larger : so_far + weight;
    });
  }
  // Sinks have the first slots, for good.
  const Index sinks = s.rules.sink < s.held ? s.rules.sink : s.held;
  team.each(s.held, [=](Index i) {
    const double weight = i < sinks ? 0.0 : weights[i];
    weights[i] = weight;
    scores[i] = static_cast<float>(static_cast<double>(scores[i]) + weight);
  });
}

/// The token of the lowest score goes, of the first `outside` that are no sinks but for the
/// `protected_recent` latest of these.
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
  const Index last = outside - s.rules.protected_recent - 1;
  // Of equal ones the latest, so the latest comes first.
  const Found lightest = team.smallest(last + 1, [=](Index i) { return score(last - i); });
  const Index place = last - lightest.place;
  const HeldSlot gone = candidates[place];
  Eviction out;
  out.token = gone.token;
  out.score = lightest.value;
  const Index behind = outside - place - 1;
  out.after_count = s.rules.after < behind ? s.rules.after : behind;
  out.after_sum = team.sum(out.after_count, [=](Index i) { return score(place + 1 + i); });

  const Index left = s.held - s.rules.sink - place - 1;
  HeldSlot* from = s.order + s.rules.sink + place;
  HeldSlot* moved = s.moved;
  team.each(left, [=](Index i) { moved[i] = from[i + 1]; });
  team.each(left, [=](Index i) { from[i] = moved[i]; });
  --s.held;
  s.free_slot = gone.slot;
  return out;
}

/// Position j of a stream; positions come in order, from 0.
template <class Team, class T>
KVB_HD Eviction evict_step(const Team& team, EvictionState<T>& s, Index j) {
  join(team, s, j);
  attend(team, s, j);
  const Index others = j + 1 - s.rules.sink;  // sinks aside
  const Index recent = s.rules.window < others ? s.rules.window : others;
  const Index outside = s.held - s.rules.sink - recent;
  return others > 0 && outside > s.rules.kept ? evict(team, s, outside) : Eviction{};
}

}  // namespace kvbench
