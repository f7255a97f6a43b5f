// A stream that retains tokens by facility location and attention: which token leaves at which
// position.
//
// At position j, the token that leaves the recent window joins the retained tokens, S'. The group's
// queries at j attend to sinks and S' and add their weights to the float32 scores of S'. If S' has
// more than `kept` tokens, the one whose removal costs least leaves, of equal costs the earliest:
//   lambda (f(S') - f(S'-i)) / f(S') + (1 - lambda) (c(S') - c(S'-i)) / c(S')
// f is facility location with ground set S' (attention/facility_location.hpp), c(A) = phi(sum of
// the scores in A). A term whose f or c is 0 is dropped; without f the cost is the score itself.
//
// With ground set S the maximum of each row is the member's own similarity, which equal keys reach
// and none exceeds. So f(S) - f(S - i) = sim(i, i) - max over u != i of sim(i, u): one nearest
// neighbour per member.
#pragma once

#include <cstdint>

#include "core/math.hpp"
#include "core/types.hpp"
#include "streams/attend.hpp"
#include "streams/concave_phi.hpp"
#include "streams/similarity.hpp"
#include "streams/team.hpp"

namespace kvbench {

struct RetentionRules {
  Index kept = 0;       ///< most tokens outside the recent window
  Index window = 0;     ///< the recent window: tokens (j - window, j] at position j
  double lambda = 0.5;  ///< in [0, 1]; 0: without f, 1: without scores
  Similarity kind = Similarity::relu;
  Reduce reduce = Reduce::mean;  ///< of the weights of a group's query heads
  Index sink = 0;                ///< tokens [0, sink) are sinks: in every softmax and in no S'
  ConcavePhi phi;
};

/// What left at one position.
struct Departure {
  Index token = -1;       ///< -1: none
  Index evaluations = 0;  ///< members whose loss was evaluated; depends on the team
};

/// A member's nearest neighbour in one integer, similarity above place: the larger integer is the
/// nearer neighbour and, of equally near ones, the newer. 0: no other member is similar.
struct Nearest {
  static KVB_HD std::int64_t make(std::int32_t similarity, Index place) {
    return similarity > 0 ? (std::int64_t{similarity} << 32) + place : 0;
  }
  static KVB_HD std::int32_t similarity(std::int64_t x) {
    return static_cast<std::int32_t>(x >> 32);
  }
  /// -1 where there is none.
  static KVB_HD Index place(std::int64_t x) { return x == 0 ? -1 : (x & 0xffffffff); }
};

/// Members have places 0 .. members-1, the newest the last. Their columns follow those of the
/// sinks. Each member of a team holds a copy with equal numbers; the pointers show shared memory.
/// T: element type of products. `group` is 0 where lambda is 1.
template <class T>
struct RetentionState : StreamHead {
  static constexpr Index kBatch = 6;  ///< members whose neighbours are searched at a time

  RetentionRules rules;
  Index sinks = 0;   ///< columns of sinks: min(rules.sink, n); 0 where lambda is 1
  Index stride = 0;  ///< columns, whole panels

  Index members = 0;
  std::int64_t nonzero = 0;  ///< members whose key is not zero
  bool fresh = false;        ///< `before` is `nearest` before the newest joined

  T* units = nullptr;       ///< panels of `stride` columns: keys divided by their norms
  double* norms = nullptr;  ///< [stride] by column; 0 for a zero key
  T* rows = nullptr;        ///< [row_count(), d] queries and the newcomer's unit key, or a batch
  T* products = nullptr;    ///< [row_count(), stride]
  double* sums = nullptr;   ///< [group]
  // [stride] by place:
  double* weights = nullptr;
  double* bounds = nullptr;
  float* scores = nullptr;
  std::int32_t* tokens = nullptr;
  std::int32_t* similarities = nullptr;  ///< scratch
  std::int64_t* nearest = nullptr;       ///< Nearest
  std::int64_t* before = nullptr;
  Index* orphans = nullptr;  ///< places whose nearest neighbour left

  KVB_HD bool tracks() const { return rules.lambda > 0.0; }
  KVB_HD Index row_count() const { return group + 1 > kBatch ? group + 1 : kBatch; }
  KVB_HD std::int64_t self(Index place) const {
    return norms[sinks + place] > 0.0 ? kSimilarityOne : 0;
  }
  /// f(S) - f(S - i), in units of 1 / kSimilarityOne.
  KVB_HD std::int64_t loss(Index place) const {
    return self(place) - Nearest::similarity(nearest[place]);
  }
};

/// Allocates memory for `capacity` members at a time. Fields above `stride` must be set.
template <class T, class Arena>
void reserve(RetentionState<T>& s, Index capacity, Arena& arena) {
  s.stride = s.logit_columns(s.sinks + capacity);
  arena.allocate(s.units, s.d * s.stride);
  arena.allocate(s.norms, s.stride);
  arena.allocate(s.rows, s.row_count() * s.d);
  arena.allocate(s.products, s.row_count() * s.stride);
  arena.allocate(s.sums, s.group);
  arena.allocate(s.weights, s.stride);
  arena.allocate(s.bounds, s.stride);
  arena.allocate(s.scores, s.stride);
  arena.allocate(s.tokens, s.stride);
  arena.allocate(s.similarities, s.stride);
  arena.allocate(s.nearest, s.stride);
  arena.allocate(s.before, s.stride);
  arena.allocate(s.orphans, s.stride);
}

/// The state of a stream over `head` [n tokens], without memory.
template <class T>
RetentionState<T> retention_state(const StreamHead& head, Index n, const RetentionRules& rules) {
  RetentionState<T> s;
  static_cast<StreamHead&>(s) = head;
  s.rules = rules;
  if (rules.lambda < 1.0) {
    s.sinks = rules.sink < n ? rules.sink : n;
  } else {
    s.group = 0;
    s.sink_logits = nullptr;
  }
  return s;
}

/// Writes the key's unit key to column `column` and to row `row`.
template <class Team, class T>
KVB_HD void set_unit(const Team& team, RetentionState<T>& s, Index column, const float* key,
                     Index row) {
  double square = 0.0;
  for (Index t = 0; t < s.d; ++t) {
    const auto x = static_cast<double>(key[t]);
    square = std::fma(x, x, square);
  }
  const double norm = std::sqrt(square);
  T* to = s.units + in_panels(column, 0, s.d);
  T* copy = s.rows + row * s.d;
  team.each(s.d, [=](Index t) {
    const T unit = norm > 0.0 ? static_cast<T>(static_cast<double>(key[t]) / norm) : T{0};
    to[t * kPanel] = unit;
    copy[t] = unit;
  });
  double* norms = s.norms;
  team.once([=] { norms[column] = norm; });
}

/// similarities[i] = similarity of members i and `place`, from the cosines, i in [0, count); 0 for
/// `place` itself. Returns the nearest.
template <class Team, class T>
KVB_HD std::int64_t find_nearest(const Team& team, RetentionState<T>& s, Index place, Index count,
                                 const T* cosines) {
  const double* norms = s.norms + s.sinks;
  const T offset = norms[place] > 0.0 ? T{0.5} : T{0};
  const T equal = cosine_of_equal<T>(s.d);
  std::int32_t* out = s.similarities;
  const auto fill = [=](Index i, Similarity kind) {
    const std::int32_t x =
        fixed_similarity(kind, cosines[i], equal, norms[i] > 0.0 ? offset : T{0});
    out[i] = i == place ? 0 : x;
  };
  // A constant kind lets each loop vectorise.
  switch (s.rules.kind) {
    case Similarity::relu: team.each(count, [=](Index i) { fill(i, Similarity::relu); }); break;
    case Similarity::one_plus:
      team.each(count, [=](Index i) { fill(i, Similarity::one_plus); });
      break;
    case Similarity::absolute:
      team.each(count, [=](Index i) { fill(i, Similarity::absolute); });
      break;
  }
  // Of equal ones the newest: it becomes the neighbour of all equal keys, and the older ones leave
  // without orphans.
  const Index last = count - 1;
  const Found found =
      team.largest(count, [=](Index i) { return static_cast<double>(out[last - i]); });
  return found.index < 0
             ? 0
             : Nearest::make(static_cast<std::int32_t>(found.value), last - found.index);
}

/// S += key, with score 0. Also computes the products of the group's queries at position `j` with
/// sinks and members, for add_scores.
template <class Team, class T>
KVB_HD void add_member(const Team& team, RetentionState<T>& s, const float* key, Index token,
                       Index j) {
  const Index place = s.members;
  load_queries(team, s, j, s.rows);
  set_unit(team, s, s.sinks + place, key, s.group);
  team.once([&] {
    s.tokens[place] = static_cast<std::int32_t>(token);
    s.scores[place] = 0.0F;
  });
  ++s.members;
  s.nonzero += s.norms[s.sinks + place] > 0.0 ? 1 : 0;
  s.fresh = true;
  team.products(s.rows, s.group + (s.tracks() ? 1 : 0), s.units, s.sinks + s.members, s.d,
                s.products, s.stride);
  if (!s.tracks()) {
    return;
  }
  const std::int64_t own =
      find_nearest(team, s, place, place, s.products + s.group * s.stride + s.sinks);
  std::int64_t* nearest = s.nearest;
  std::int64_t* before = s.before;
  const std::int32_t* similarities = s.similarities;
  team.each(place, [=](Index i) {
    const std::int64_t old = nearest[i];
    const std::int64_t newcomer = Nearest::make(similarities[i], place);
    before[i] = old;
    nearest[i] = newcomer > old ? newcomer : old;
  });
  team.once([=] { nearest[place] = own; });
}

/// Finds the nearest neighbours of `count` orphans.
template <class Team, class T>
KVB_HD void adopt(const Team& team, RetentionState<T>& s, Index count) {
  for (Index first = 0; first < count; first += RetentionState<T>::kBatch) {
    const Index rows =
        count - first < RetentionState<T>::kBatch ? count - first : RetentionState<T>::kBatch;
    const Index* orphans = s.orphans + first;
    for (Index r = 0; r < rows; ++r) {
      const T* unit = s.units + in_panels(s.sinks + orphans[r], 0, s.d);
      T* row = s.rows + r * s.d;
      team.each(s.d, [=](Index t) { row[t] = unit[t * kPanel]; });
    }
    team.products(s.rows, rows, s.units, s.sinks + s.members, s.d, s.products, s.stride);
    for (Index r = 0; r < rows; ++r) {
      const Index place = orphans[r];
      const std::int64_t found =
          find_nearest(team, s, place, s.members, s.products + r * s.stride + s.sinks);
      std::int64_t* nearest = s.nearest;
      team.once([=] { nearest[place] = found; });
    }
  }
}

/// S -= the member at `place`; the newest moves to its place.
template <class Team, class T>
KVB_HD void remove_member(const Team& team, RetentionState<T>& s, Index place) {
  const Index last = s.members - 1;
  const bool undo = place == last && s.fresh;
  s.nonzero -= s.self(place) > 0 ? 1 : 0;
  s.members = last;
  s.fresh = false;
  if (place != last) {
    const T* from = s.units + in_panels(s.sinks + last, 0, s.d);
    T* to = s.units + in_panels(s.sinks + place, 0, s.d);
    team.each(s.d, [=](Index t) { to[t * kPanel] = from[t * kPanel]; });
    team.once([&] {
      s.norms[s.sinks + place] = s.norms[s.sinks + last];
      s.tokens[place] = s.tokens[last];
      s.scores[place] = s.scores[last];
      s.nearest[place] = s.nearest[last];
    });
  }
  if (!s.tracks()) {
    return;
  }
  std::int64_t* nearest = s.nearest;
  const std::int64_t* before = s.before;
  if (undo) {
    team.each(last, [=](Index i) { nearest[i] = before[i]; });
    return;
  }
  const Index count = team.collect(
      last, [=](Index i) { return Nearest::place(nearest[i]) == place; }, s.orphans);
  team.each(last, [=](Index i) {
    const std::int64_t own = nearest[i];
    const bool moved = Nearest::place(own) == last;
    nearest[i] = moved ? Nearest::make(Nearest::similarity(own), place) : own;
  });
  adopt(team, s, count);
}

/// The group's queries attend to sinks and members: adds the members' weights to their scores.
template <class Team, class T>
KVB_HD void add_scores(const Team& team, RetentionState<T>& s) {
  const double* norms = s.norms;
  for (Index g = 0; g < s.group; ++g) {
    T* p = s.products + g * s.stride;
    team.each(s.sinks + s.members, [=](Index i) { p[i] *= static_cast<T>(norms[i]); });
  }
  softmax_weights(team, s, s.rules.reduce, s.sinks, s.members, s.products, s.stride, s.sums,
                  s.weights);
  add_to_scores(team, s.members, s.weights, s.scores);
}

/// The member whose removal costs least. The exact loss of importance is computed only where its
/// lower bound, phi'(sum) score, does not rule the member out.
template <class Team, class T, class Phi>
KVB_HD Searched cheapest_member(const Team& team, const RetentionState<T>& s, const Phi& phi) {
  // Covers the rounding of phi, at most 1e-13 relative.
  constexpr double kPhiSlack = 1e-10;
  const float* scores = s.scores;
  const double lambda = s.rules.lambda;
  const double f_all = s.tracks() ? static_cast<double>(s.nonzero * kSimilarityOne) : 0.0;
  const auto all =
      phi.at(team.sum(s.members, [=](Index i) { return static_cast<double>(scores[i]); }));
  const double f_weight = f_all > 0.0 ? lambda / f_all : 0.0;
  const double c_weight = all.y > 0.0 ? (1.0 - lambda) / all.y : 0.0;
  const double slope = c_weight > 0.0 ? c_weight * phi.slope(all) * (1.0 - kPhiSlack) : 0.0;
  double* bounds = s.bounds;
  team.each(s.members, [&](Index i) {
    const auto score = static_cast<double>(scores[i]);
    // Without f the score itself decides: rounding in phi would blur the order.
    bounds[i] = f_weight > 0.0 ? f_weight * static_cast<double>(s.loss(i)) + slope * score : score;
  });
  const auto loss = [&](Index i) {
    return f_weight > 0.0 && c_weight > 0.0
               ? f_weight * static_cast<double>(s.loss(i)) +
                     c_weight * phi.decrement(all, static_cast<double>(scores[i]))
               : bounds[i];
  };
  return team.smallest_bounded(
      s.members, [=](Index i) { return bounds[i]; }, loss,
      [&](Index i) { return Index{s.tokens[i]}; });
}

/// Position j of a stream. Positions come in order, from 0. phi: rules.phi, or its equal.
template <class Team, class T, class Phi>
KVB_HD Departure retain_step(const Team& team, RetentionState<T>& s, const Phi& phi, Index j) {
  if (j < s.sinks) {
    set_unit(team, s, j, s.k + j * s.d, s.group);
  }
  const Index newcomer = j - s.rules.window;
  if (newcomer < s.rules.sink) {
    return {};
  }
  if (s.rules.kept <= 0) {
    return {newcomer, 0};
  }
  add_member(team, s, s.k + newcomer * s.d, newcomer, j);
  if (s.group > 0) {
    add_scores(team, s);
  }
  if (s.members <= s.rules.kept) {
    return {};
  }
  const Searched leaves = cheapest_member(team, s, phi);
  const Departure out{s.tokens[leaves.found.index], leaves.evaluated};
  remove_member(team, s, leaves.found.index);
  return out;
}

}  // namespace kvbench
