// A stream that retains tokens by facility location and attention: which token leaves at which
// position. Knows no method.
//
// At position j the token that leaves the recent window joins the retained ones, S', the group's
// queries at j attend to sinks and S' and add their weights within both to the float32 scores of
// S', and if S' has more than `kept` tokens, the one leaves whose removal costs
//   lambda (f(S') - f(S'-i)) / f(S') + (1 - lambda) (c(S') - c(S'-i)) / c(S')
// least, of equal ones the earliest: f facility location with ground set S'
// (attention/facility_location.hpp), c(A) = phi(sum of the scores in A). A part whose f or c is 0
// is left out; without f the cost is the score itself.
//
// With ground set S every row's maximum is the member's own similarity (equal keys reach it too,
// none exceeds it), so f(S) - f(S - i) = sim(i, i) - max over u != i of sim(i, u): one nearest
// neighbour per member.
#pragma once

#include <cstdint>

#include "core/math.hpp"
#include "core/types.hpp"
#include "streams/concave_phi.hpp"
#include "streams/similarity.hpp"
#include "streams/team.hpp"

namespace kvbench {

struct RetentionRules {
  Index kept = 0;       ///< tokens outside the recent window, at most
  Index window = 0;     ///< the recent window: tokens (j - window, j] at position j
  double lambda = 0.5;  ///< in [0, 1]; 0: no f, 1: no scores
  Similarity kind = Similarity::relu;
  Reduce reduce = Reduce::mean;  ///< of the weights of a group's query heads
  Index sink = 0;  ///< tokens [0, sink) are sinks: they are in every softmax and in no S'
  ConcavePhi phi;
};

/// What happened at one position.
struct Departure {
  Index token = -1;       ///< -1: none left
  Index evaluations = 0;  ///< members whose loss was evaluated; teams differ in this
};

/// A member's nearest neighbour in one integer: its similarity, then its place, so that the larger
/// is the nearer and, of equally near ones, the newer. 0 where no other is similar at all.
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

/// Members are called by places 0 .. members-1, the newest has the last one; their columns come
/// behind those of the sinks. Every thread of a team has a copy, whose numbers change alike; what
/// the pointers show is shared.
template <class T>
struct RetentionState {
  static constexpr Index kBatch = 6;  ///< members whose neighbours are looked for at a time

  RetentionRules rules;
  const float* k = nullptr;         ///< [n, d]
  const float* const* q = nullptr;  ///< [group] of [n, d]
  Index d = 0;
  Index group = 0;  ///< 0 where lambda is 1
  Index sinks = 0;  ///< columns of sinks: min(rules.sink, n), none where lambda is 1
  double scale = 1.0;
  const float* sink_logits = nullptr;  ///< [group] or null
  Index stride = 0;                    ///< columns, whole panels

  Index members = 0;
  std::int64_t nonzero = 0;  ///< members whose key is not zero
  bool fresh = false;        ///< `before` is `nearest` before the newest joined

  T* units = nullptr;       ///< panels of `stride` columns: keys divided by their norms
  double* norms = nullptr;  ///< [stride] by column; 0 for a zero key
  T* rows = nullptr;        ///< [rows(), d] queries and the newcomer's unit key, or a batch
  T* products = nullptr;    ///< [rows(), stride]
  double* sums = nullptr;   ///< [group] of exponentials
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

/// Memory for `capacity` members at a time; fields above `members` must be set.
template <class T, class Arena>
void reserve(RetentionState<T>& s, Index capacity, Arena& arena) {
  s.stride = whole_panels(s.sinks + capacity + (s.sink_logits == nullptr ? 0 : 1));
  arena.take(s.units, s.d * s.stride);
  arena.take(s.norms, s.stride);
  arena.take(s.rows, s.row_count() * s.d);
  arena.take(s.products, s.row_count() * s.stride);
  arena.take(s.sums, s.group);
  arena.take(s.weights, s.stride);
  arena.take(s.bounds, s.stride);
  arena.take(s.scores, s.stride);
  arena.take(s.tokens, s.stride);
  arena.take(s.similarities, s.stride);
  arena.take(s.nearest, s.stride);
  arena.take(s.before, s.stride);
  arena.take(s.orphans, s.stride);
}

/// Fills the arrays' fields that a stream over `head` needs, but for `k` and `q`.
template <class T>
RetentionState<T> retention_state(const KvHead& head, const RetentionRules& rules) {
  RetentionState<T> s;
  s.rules = rules;
  s.d = head.d();
  s.group = rules.lambda < 1.0 ? head.group() : 0;
  s.sinks = rules.lambda < 1.0 ? (rules.sink < head.n() ? rules.sink : head.n()) : 0;
  s.scale = head.scale;
  return s;
}

/// Column `column` becomes the key's unit key, which is written to row `row` too.
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

/// similarities[i] = of member i and the member `place`, from the cosines, i in [0, count). The
/// nearest of them; `place` itself is none.
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
  // Each loop has its kind as a constant, so that it vectorises.
  switch (s.rules.kind) {
    case Similarity::relu: team.each(count, [=](Index i) { fill(i, Similarity::relu); }); break;
    case Similarity::one_plus:
      team.each(count, [=](Index i) { fill(i, Similarity::one_plus); });
      break;
    case Similarity::absolute:
      team.each(count, [=](Index i) { fill(i, Similarity::absolute); });
      break;
  }
  // Of equal ones the newest: among equal keys it is everyone's neighbour, and it is older ones
  // that leave, without orphans.
  const Index last = count - 1;
  const Found found =
      team.largest(count, [=](Index i) { return static_cast<double>(out[last - i]); });
  return found.place < 0
             ? 0
             : Nearest::make(static_cast<std::int32_t>(found.value), last - found.place);
}

/// S += key, with score 0. The group's products with sinks and members are made too, for
/// add_scores; `j`: the position of the queries, not read where there are none.
template <class Team, class T>
KVB_HD void add_member(const Team& team, RetentionState<T>& s, const float* key, Index token,
                       Index j) {
  const Index place = s.members;
  for (Index g = 0; g < s.group; ++g) {
    const float* q = s.q[g] + j * s.d;
    T* row = s.rows + g * s.d;
    const double scale = s.scale;
    team.each(s.d, [=](Index t) { row[t] = static_cast<T>(static_cast<double>(q[t]) * scale); });
  }
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

/// Looks for the nearest neighbours of `count` orphans.
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

/// S -= the member at `place`; the newest moves into the hole.
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

/// Adds the attention of the group's queries, within sinks and members, to the members' scores.
template <class Team, class T>
KVB_HD void add_scores(const Team& team, RetentionState<T>& s) {
  const Index columns = s.sinks + s.members;
  const double* norms = s.norms;
  for (Index g = 0; g < s.group; ++g) {
    T* p = s.products + g * s.stride;
    team.each(columns, [=](Index i) { p[i] *= static_cast<T>(norms[i]); });
  }
  const Index terms = append_sinks(team, s.sink_logits, s.group, columns, s.products, s.stride);
  for (Index g = 0; g < s.group; ++g) {
    T* p = s.products + g * s.stride;
    const T shift = team.max(terms, [=](Index i) { return p[i]; });
    team.each(terms, [=](Index i) { p[i] = exp_shared(p[i] - shift); });
  }
  const T* exponentials = s.products;
  const Index stride = s.stride;
  team.sums(
      s.group, terms, [=](Index g, Index i) { return exponentials[g * stride + i]; }, s.sums);
  double* weights = s.weights;
  const bool largest_head = s.rules.reduce == Reduce::max;
  const double heads = s.rules.reduce == Reduce::mean ? static_cast<double>(s.group) : 1.0;
  for (Index g = 0; g < s.group; ++g) {
    const T* p = s.products + g * s.stride + s.sinks;
    const double inverse = 1.0 / (s.sums[g] * heads);
    team.each(s.members, [=](Index i) {
      const double weight = static_cast<double>(p[i]) * inverse;
      const double so_far = g == 0 ? 0.0 : weights[i];
      const double larger = so_far < weight ? weight : so_far;
      weights[i] = largest_head ? larger : so_far + weight;
    });
  }
  float* scores = s.scores;
  team.each(s.members, [=](Index i) {
    scores[i] = static_cast<float>(static_cast<double>(scores[i]) + weights[i]);
  });
}

/// The member whose removal costs least. The exact loss of importance is asked for only where a
/// bound, phi'(sum) score, does not already rule the member out.
template <class Team, class T, class Phi>
KVB_HD Searched cheapest_member(const Team& team, const RetentionState<T>& s, const Phi& phi) {
  // Bounds are shrunk by this much for the rounding of phi (1e-13 relative at worst).
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
    // Without f the order of losses is that of the scores, which rounding in phi would blur.
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

/// Position j of a stream; positions come in order, from 0. phi: rules.phi, or what is equal to it.
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
  const Departure out{s.tokens[leaves.found.place], leaves.asked};
  remove_member(team, s, leaves.found.place);
  return out;
}

}  // namespace kvbench
