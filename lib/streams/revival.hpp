// A stream in which every step attends all tokens, those that a count sketch holds as they are
// rebuilt from it, and accumulated attention decides what the sketch holds. What is decided depends
// on keys, queries and the sketch of the keys alone; values follow the moves. Knows no method.
//
// Tokens are inserted into Recent, a queue. Where it exceeds `recent + slack`, its oldest become
// Candidates until `recent` are left. While there are more than `candidates` of them, the one of
// lowest score (of equals the highest position) goes to Vague, the sketch. Then, while the lowest
// Candidate's score times `replace_rate` is below the highest Vague score (of equals the lowest
// position), the two change places, and the one that comes back is what was estimated.
//
// T: element type of logits and their exponentials, as in attention/query_block.hpp. A logit is one
// FMA per channel, ascending; the sum of a softmax is float64, in lanes over the positions. So
// every team gets the same bits.
#pragma once

#include <cstdint>
#include <limits>

#include "core/math.hpp"
#include "core/types.hpp"
#include "streams/sketch.hpp"
#include "streams/team.hpp"

namespace kvbench {

/// Position `position` arrives. With `has_query` the group's queries there attend all positions
/// 0 .. position, and what each receives, reduced over the group, is added to its score in float32.
/// Then `insert`, unless it is -1, is put into Recent.
struct ReviveStep {
  Index position;
  Index insert;  ///< <= position
  bool has_query;
};

struct ReviveRules {
  Index recent = 0;           ///< tokens
  Index slack = 0;            ///< tokens
  Index candidates = 0;       ///< tokens
  double replace_rate = 1.0;  ///< >= 1
  Reduce reduce = Reduce::mean;
};

/// A Candidate goes to Vague; where `in` is not -1, that Vague token takes its place.
struct ReviveMove {
  Index cause;  ///< the token whose insertion led to it
  Index out;
  Index in;
  friend bool operator==(const ReviveMove&, const ReviveMove&) = default;
};

enum class RevivePlace : std::uint8_t { other, candidate, vague };

/// Every member of a team has a copy, whose numbers change alike; what the pointers show is shared.
template <class T>
struct ReviveState {
  ReviveRules rules;
  const float* k = nullptr;         ///< [n, d]
  const float* const* q = nullptr;  ///< [group] of [., d]
  Index n = 0, d = 0, group = 0;
  Index q_start = 0;  ///< position of the first query
  double scale = 1.0;
  const float* sink_logits = nullptr;  ///< [group] or null
  /// Of keys. Without cells and counts, which `reserve` adds.
  SketchCells sketch;

  Index arrived = 0;        ///< positions
  Index inserted = 0;       ///< tokens
  Index left_recent = 0;    ///< of them
  Index candidates = 0;     ///< tokens
  Index vague = 0;          ///< tokens
  Index moved = 0;          ///< moves in the log
  std::uint32_t epoch = 1;  ///< what cells that change now are marked with
  bool stale = false;       ///< some did since keys were rebuilt

  float* keys = nullptr;            ///< panels of n columns: keys as they are attended
  float* cells = nullptr;           ///< those of the sketch
  std::uint32_t* counts = nullptr;  ///< those of the sketch
  std::uint32_t* epochs = nullptr;  ///< [cells of the sketch] of the last change
  T* queries = nullptr;             ///< [group, d] times the scale
  T* logits = nullptr;              ///< [group, logit_stride]; later the exponentials
  double* sums = nullptr;           ///< [group] of the exponentials
  double* received = nullptr;       ///< [n] by each position from the latest queries
  Index* queue = nullptr;           ///< [n] tokens in the order of their insertion
  RevivePlace* places = nullptr;    ///< [n]
  float* scores = nullptr;          ///< [n], zeros at first; the caller's
  ReviveMove* moves = nullptr;      ///< the log: as many as there is room for; the caller's
};

template <class T>
KVB_HD Index logit_stride(const ReviveState<T>& s) {
  return whole_panels(s.n + (s.sink_logits == nullptr ? 0 : 1));
}

/// Memory; fields above `arrived` must be set.
template <class T, class Arena>
void reserve(ReviveState<T>& s, Arena& arena) {
  const Index stride = whole_panels(s.n);
  const Index cells = s.sketch.rows * s.sketch.per_row;
  arena.take(s.cells, cells * s.d);
  arena.take(s.counts, cells);
  s.sketch.cells = s.cells;
  s.sketch.counts = s.counts;
  arena.take(s.epochs, cells);
  arena.take(s.keys, s.d * stride);
  arena.take(s.queries, s.group * s.d);
  arena.take(s.logits, s.group * logit_stride(s));
  arena.take(s.sums, s.group);
  arena.take(s.received, s.n);
  arena.take(s.queue, s.n);
  arena.take(s.places, s.n);
}

/// Moves of the next step, at most: all Candidates, once. Who came back has the highest score of
/// Vague and does not go again.
template <class T>
KVB_HD Index max_moves(const ReviveState<T>& s) {
  return s.candidates + s.inserted - s.left_recent + 1;
}

/// Tokens of Vague whose cells changed are rebuilt.
template <class Team, class T>
KVB_HD void rebuild(const Team& team, ReviveState<T>& s) {
  if (!s.stale) {
    return;
  }
  team.each(s.arrived, [&s](Index i) {
    bool changed = false;
    if (s.places[i] == RevivePlace::vague) {
      for (Index r = 0; r < s.sketch.rows; ++r) {
        changed = changed || s.epochs[s.sketch.place(r, i)] == s.epoch;
      }
    }
    if (changed) {
      float* column = s.keys + in_panels(i, 0, s.d);
      constexpr Index kPart = 64;
      float part[kPart];
      for (Index first = 0; first < s.d; first += kPart) {
        const Index count = s.d - first < kPart ? s.d - first : kPart;
        s.sketch.estimate(i, first, count, part);
        for (Index t = 0; t < count; ++t) {
          column[(first + t) * kPanel] = part[t];
        }
      }
    }
  });
  ++s.epoch;
  s.stale = false;
}

/// The group's queries at a position attend all positions up to it.
template <class Team, class T>
KVB_HD void attend_all(const Team& team, ReviveState<T>& s, Index position) {
  rebuild(team, s);
  for (Index g = 0; g < s.group; ++g) {
    const float* q = s.q[g] + (position - s.q_start) * s.d;
    T* query = s.queries + g * s.d;
    const double scale = s.scale;
    team.each(s.d, [=](Index t) { query[t] = static_cast<T>(static_cast<double>(q[t]) * scale); });
  }
  const Index seen = position + 1;
  const Index stride = logit_stride(s);
  team.products(s.queries, s.group, s.keys, seen, s.d, s.logits, stride);
  const Index terms = append_sinks(team, s.sink_logits, s.group, seen, s.logits, stride);
  for (Index g = 0; g < s.group; ++g) {
    T* row = s.logits + g * stride;
    const T largest = team.max(terms, [=](Index i) { return row[i]; });
    team.each(terms, [=](Index i) { row[i] = exp_shared(row[i] - largest); });
  }
  const T* exponentials = s.logits;
  team.sums(
      s.group, terms, [=](Index g, Index i) { return exponentials[g * stride + i]; }, s.sums);
  double* received = s.received;
  const bool largest_head = s.rules.reduce == Reduce::max;
  const double heads = s.rules.reduce == Reduce::mean ? static_cast<double>(s.group) : 1.0;
  for (Index g = 0; g < s.group; ++g) {
    const T* row = s.logits + g * stride;
    const double inverse = 1.0 / (s.sums[g] * heads);
    team.each(seen, [=](Index i) {
      const double p = static_cast<double>(row[i]) * inverse;
      const double so_far = g == 0 ? 0.0 : received[i];
      const double larger = so_far < p ? p : so_far;
      received[i] = largest_head ? larger : so_far + p;
    });
  }
  float* scores = s.scores;
  team.each(seen, [=](Index i) {
    scores[i] = static_cast<float>(static_cast<double>(scores[i]) + received[i]);
  });
}

/// The Candidate of lowest score; of equals the highest position.
template <class Team, class T>
KVB_HD Found weakest_candidate(const Team& team, const ReviveState<T>& s) {
  const Index last = s.arrived - 1;
  const RevivePlace* places = s.places + last;
  const float* scores = s.scores + last;
  // Of equals the first is found, so the highest position comes first.
  const Found found = team.smallest(s.arrived, [=](Index i) {
    return places[-i] == RevivePlace::candidate ? static_cast<double>(scores[-i])
                                                : std::numeric_limits<double>::quiet_NaN();
  });
  return {found.value, last - found.place};
}

/// The Vague token of highest score; of equals the lowest position.
template <class Team, class T>
KVB_HD Found strongest_vague(const Team& team, const ReviveState<T>& s) {
  const RevivePlace* places = s.places;
  const float* scores = s.scores;
  return team.largest(s.arrived, [=](Index i) {
    return places[i] == RevivePlace::vague ? static_cast<double>(scores[i])
                                           : std::numeric_limits<double>::quiet_NaN();
  });
}

/// Adds x to channel t of the token's cells, without sign.
template <class T>
KVB_HD void add_to_cells(const ReviveState<T>& s, Index token, Index t, float x) {
  for (Index r = 0; r < s.sketch.rows; ++r) {
    float& cell = s.cells[s.sketch.place(r, token) * s.d + t];
    cell = cell_element(s.sketch.dtype, cell + x);
  }
}

template <class Team, class T>
KVB_HD void move_token(const Team& team, ReviveState<T>& s, const ReviveMove& m) {
  float* out = s.keys + in_panels(m.out, 0, s.d);
  float* in = m.in < 0 ? nullptr : s.keys + in_panels(m.in, 0, s.d);
  team.each(s.d, [&](Index t) {
    if (in != nullptr) {
      s.sketch.estimate(m.in, t, 1, in + t * kPanel);
      add_to_cells(s, m.in, t, -in[t * kPanel]);
    }
    add_to_cells(s, m.out, t, out[t * kPanel]);
  });
  team.each(s.sketch.rows, [&](Index r) {
    if (in != nullptr) {
      const Index from = s.sketch.place(r, m.in);
      --s.counts[from];
      s.epochs[from] = s.epoch;
    }
    const Index to = s.sketch.place(r, m.out);
    ++s.counts[to];
    s.epochs[to] = s.epoch;
  });
  team.once([&] {
    s.places[m.out] = RevivePlace::vague;
    if (in != nullptr) {
      s.places[m.in] = RevivePlace::candidate;
    }
    s.moves[s.moved] = m;
  });
  ++s.moved;
  s.stale = true;
}

/// A token is put into Recent, and what has to move does.
template <class Team, class T>
KVB_HD void insert(const Team& team, ReviveState<T>& s, Index token) {
  team.once([&] { s.queue[s.inserted] = token; });
  ++s.inserted;
  if (s.inserted - s.left_recent > s.rules.recent + s.rules.slack) {
    const Index leaving = s.inserted - s.rules.recent - s.left_recent;
    const Index* queue = s.queue + s.left_recent;
    RevivePlace* places = s.places;
    team.each(leaving, [=](Index i) { places[queue[i]] = RevivePlace::candidate; });
    s.left_recent += leaving;
    s.candidates += leaving;
  }
  for (; s.candidates > s.rules.candidates; --s.candidates, ++s.vague) {
    move_token(team, s, {token, weakest_candidate(team, s).place, -1});
  }
  while (s.candidates > 0 && s.vague > 0) {
    const Found out = weakest_candidate(team, s);
    const Found in = strongest_vague(team, s);
    if (!(out.value * s.rules.replace_rate < in.value)) {
      return;
    }
    move_token(team, s, {token, out.place, in.place});
  }
}

/// The next step; positions ascend, and so do inserted tokens. Its moves are added to the log.
template <class Team, class T>
KVB_HD void revive_step(const Team& team, ReviveState<T>& s, const ReviveStep& step) {
  for (; s.arrived <= step.position; ++s.arrived) {
    const float* key = s.k + s.arrived * s.d;
    float* column = s.keys + in_panels(s.arrived, 0, s.d);
    team.each(s.d, [=](Index t) { column[t * kPanel] = key[t]; });
  }
  if (step.has_query) {
    attend_all(team, s, step.position);
  }
  if (step.insert >= 0) {
    insert(team, s, step.insert);
  }
}

}  // namespace kvbench
