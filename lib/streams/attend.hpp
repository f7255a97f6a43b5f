// The steps that the streams share: a key becomes a column of panels, the group's queries attend to
// the columns, and the weights are added to scores.
//
// Each logit is a chain of FMAs over the channels, ascending, in T; the sum of a softmax is
// float64, in lanes. So every team computes the same bits.
#pragma once

#include "core/math.hpp"
#include "core/types.hpp"
#include "streams/team.hpp"

namespace kvbench {

/// One KV head as a stream reads it. The owner keeps the memory alive.
struct StreamHead {
  const float* k = nullptr;         ///< [n, d]
  const float* const* q = nullptr;  ///< [group] of [., d]
  Index q_start = 0;                ///< position of the first query
  Index d = 0, group = 0;
  double scale = 1.0;
  const float* sink_logits = nullptr;  ///< [group] or null

  /// Columns that a row of `count` logits needs.
  KVB_HD Index logit_columns(Index count) const {
    return whole_panels(count + (sink_logits == nullptr ? 0 : 1));
  }
};

/// `head`, with its arrays in the memory of the team that reads them.
inline StreamHead stream_head(const KvHead& head, const float* k, const float* const* q,
                              const float* sink_logits) {
  return {k, q, head.q_start(), head.d(), head.group(), head.scale, sink_logits};
}

/// Column `column` of `panels` becomes `key` [d].
template <class Team>
KVB_HD void put_key(const Team& team, const float* key, Index d, Index column, float* panels) {
  float* to = panels + in_panels(column, 0, d);
  team.each(d, [=](Index t) { to[t * kPanel] = key[t]; });
}

/// rows [group, d] = the group's queries at `position`, times the scale.
template <class Team, class T>
KVB_HD void load_queries(const Team& team, const StreamHead& head, Index position, T* rows) {
  for (Index g = 0; g < head.group; ++g) {
    const float* q = head.q[g] + (position - head.q_start) * head.d;
    T* row = rows + g * head.d;
    const double scale = head.scale;
    team.each(head.d, [=](Index t) { row[t] = static_cast<T>(static_cast<double>(q[t]) * scale); });
  }
}

/// weights[i] = softmax weight of column first + i, i in [0, count), reduced over the group. The
/// softmax is over columns [0, first + count) and the head's sink logit. `logits` [group, stride]
/// become exponentials; stride >= head.logit_columns(first + count). `sums` [group]: scratch.
template <class Team, class T>
KVB_HD void softmax_weights(const Team& team, const StreamHead& head, Reduce reduce, Index first,
                            Index count, T* logits, Index stride, double* sums, double* weights) {
  const Index columns = first + count;
  Index terms = columns;
  if (const float* sinks = head.sink_logits; sinks != nullptr) {
    team.each(head.group,
              [=](Index g) { logits[g * stride + columns] = static_cast<T>(sinks[g]); });
    ++terms;
  }
  for (Index g = 0; g < head.group; ++g) {
    T* row = logits + g * stride;
    const T largest = team.max(terms, [=](Index i) { return row[i]; });
    team.each(terms, [=](Index i) { row[i] = exp_shared(row[i] - largest); });
  }
  team.sums(
      head.group, terms, [=](Index g, Index i) { return logits[g * stride + i]; }, sums);
  const bool largest_head = reduce == Reduce::max;
  const double heads = reduce == Reduce::mean ? static_cast<double>(head.group) : 1.0;
  for (Index g = 0; g < head.group; ++g) {
    const T* row = logits + g * stride + first;
    const double inverse = 1.0 / (sums[g] * heads);
    team.each(count, [=](Index i) {
      const double weight = static_cast<double>(row[i]) * inverse;
      const double so_far = g == 0 ? 0.0 : weights[i];
      const double larger = so_far < weight ? weight : so_far;
      weights[i] = largest_head ? larger : so_far + weight;
    });
  }
}

/// scores[i] += weights[i], i in [0, count), each rounded once to float32.
template <class Team>
KVB_HD void add_to_scores(const Team& team, Index count, const double* weights, float* scores) {
  team.each(count, [=](Index i) {
    scores[i] = static_cast<float>(static_cast<double>(scores[i]) + weights[i]);
  });
}

/// The smallest value(i), i in [0, n), of equal ones the highest i. Some value must not be NaN.
template <class Team, class Value>
KVB_HD Found last_smallest(const Team& team, Index n, const Value& value) {
  const Index last = n - 1;
  const Found found = team.smallest(n, [=](Index i) { return value(last - i); });
  return {found.value, last - found.index};
}

}  // namespace kvbench
