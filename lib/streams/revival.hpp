// A stream in which each step attends to all tokens, reads those in a count sketch as the sketch
// estimates them, and moves tokens into the sketch by accumulated attention. Decisions depend on
// keys, queries and the sketch of the keys; values follow the moves.
//
// Tokens are inserted into Recent, a queue. When it exceeds `recent + slack`, its oldest tokens
// become Candidates until `recent` are left. While there are more than `candidates` of these, the
// one with the lowest score (of equal scores the highest position) goes to Vague, the sketch. Then,
// while the lowest Candidate score times `replace_rate` is below the highest Vague score (of equal
// scores the lowest position), the two swap. The token that returns keeps its estimate as its key.
#pragma once

#include <cstdint>
#include <limits>

#include "core/math.hpp"
#include "core/types.hpp"
#include "streams/attend.hpp"
#include "streams/sketch.hpp"
#include "streams/team.hpp"

namespace kvbench {

/// Position `position` arrives. With `has_query` the group's queries there attend to positions
/// 0 .. position, and the weights, reduced over the group, are added to the float32 scores. Then
/// `insert`, unless it is -1, joins Recent.
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

/// A Candidate goes to Vague and, unless `in` is -1, a Vague token becomes a Candidate.
struct ReviveMove {
  Index cause;  ///< the token whose insertion caused the move
  Index out;    ///< to Vague
  Index in;     ///< from Vague, or -1
  friend bool operator==(const ReviveMove&, const ReviveMove&) = default;
};

enum class ReviveStatus : std::uint8_t { other, candidate, vague };

/// Each member of a team holds a copy with equal numbers; the pointers show shared memory. T:
/// element type of logits.
template <class T>
struct ReviveState : StreamHead {
  ReviveRules rules;
  Index n = 0;
  SketchCells sketch;  ///< of keys; `reserve` sets its cells and counts

  Index arrived = 0;        ///< positions
  Index inserted = 0;       ///< tokens
  Index left_recent = 0;    ///< of them
  Index candidates = 0;     ///< tokens
  Index vague = 0;          ///< tokens
  Index moved = 0;          ///< moves in the log
  std::uint32_t epoch = 1;  ///< mark of cells that change now
  bool stale = false;       ///< cells changed since keys were rebuilt

  float* keys = nullptr;            ///< panels of n columns: keys or their estimates
  float* cells = nullptr;           ///< the sketch's
  std::uint32_t* counts = nullptr;  ///< the sketch's
  std::uint32_t* epochs = nullptr;  ///< [cells of the sketch] of the last change
  T* queries = nullptr;             ///< [group, d] times the scale
  T* logits = nullptr;              ///< [group, logit_columns(n)]
  double* sums = nullptr;           ///< [group]
  double* weights = nullptr;        ///< [n] from the latest queries
  Index* queue = nullptr;           ///< [n] tokens in order of insertion
  ReviveStatus* status = nullptr;   ///< [n]
  float* scores = nullptr;          ///< [n], initially 0; the caller's memory
  ReviveMove* moves = nullptr;      ///< the log; the caller's memory
};

/// Allocates memory. Fields above `arrived` must be set.
template <class T, class Arena>
void reserve(ReviveState<T>& s, Arena& arena) {
  const Index stride = whole_panels(s.n);
  const Index cells = s.sketch.rows * s.sketch.per_row;
  arena.allocate(s.cells, cells * s.d);
  arena.allocate(s.counts, cells);
  s.sketch.cells = s.cells;
  s.sketch.counts = s.counts;
  arena.allocate(s.epochs, cells);
  arena.allocate(s.keys, s.d * stride);
  arena.allocate(s.queries, s.group * s.d);
  arena.allocate(s.logits, s.group * s.logit_columns(s.n));
  arena.allocate(s.sums, s.group);
  arena.allocate(s.weights, s.n);
  arena.allocate(s.queue, s.n);
  arena.allocate(s.status, s.n);
}

/// The most moves of the next step: each Candidate goes once. A token that returns had the highest
/// score of Vague and does not go again in the same step.
template <class T>
KVB_HD Index max_moves(const ReviveState<T>& s) {
  return s.candidates + s.inserted - s.left_recent + 1;
}

/// Estimates the keys of Vague tokens whose cells changed.
template <class Team, class T>
KVB_HD void rebuild(const Team& team, ReviveState<T>& s) {
  if (!s.stale) {
    return;
  }
  team.each(s.arrived, [&s](Index i) {
    bool changed = false;
    if (s.status[i] == ReviveStatus::vague) {
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

/// The group's queries at a position attend to all positions up to it.
template <class Team, class T>
KVB_HD void attend_all(const Team& team, ReviveState<T>& s, Index position) {
  rebuild(team, s);
  load_queries(team, s, position, s.queries);
  const Index seen = position + 1;
  const Index stride = s.logit_columns(s.n);
  team.products(s.queries, s.group, s.keys, seen, s.d, s.logits, stride);
  softmax_weights(team, s, s.rules.reduce, 0, seen, s.logits, stride, s.sums, s.weights);
  add_to_scores(team, seen, s.weights, s.scores);
}

/// The Candidate with the lowest score, of equal scores the highest position.
template <class Team, class T>
KVB_HD Found weakest_candidate(const Team& team, const ReviveState<T>& s) {
  const ReviveStatus* status = s.status;
  const float* scores = s.scores;
  return last_smallest(team, s.arrived, [=](Index i) {
    return status[i] == ReviveStatus::candidate ? static_cast<double>(scores[i])
                                                : std::numeric_limits<double>::quiet_NaN();
  });
}

/// The Vague token with the highest score, of equal scores the lowest position.
template <class Team, class T>
KVB_HD Found strongest_vague(const Team& team, const ReviveState<T>& s) {
  const ReviveStatus* status = s.status;
  const float* scores = s.scores;
  return team.largest(s.arrived, [=](Index i) {
    return status[i] == ReviveStatus::vague ? static_cast<double>(scores[i])
                                            : std::numeric_limits<double>::quiet_NaN();
  });
}

/// Adds x to channel t of the token's cells; signs do not apply.
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
    s.status[m.out] = ReviveStatus::vague;
    if (in != nullptr) {
      s.status[m.in] = ReviveStatus::candidate;
    }
    s.moves[s.moved] = m;
  });
  ++s.moved;
  s.stale = true;
}

/// Puts a token into Recent and carries out the moves that this causes.
template <class Team, class T>
KVB_HD void insert(const Team& team, ReviveState<T>& s, Index token) {
  team.once([&] { s.queue[s.inserted] = token; });
  ++s.inserted;
  if (s.inserted - s.left_recent > s.rules.recent + s.rules.slack) {
    const Index leaving = s.inserted - s.rules.recent - s.left_recent;
    const Index* queue = s.queue + s.left_recent;
    ReviveStatus* status = s.status;
    team.each(leaving, [=](Index i) { status[queue[i]] = ReviveStatus::candidate; });
    s.left_recent += leaving;
    s.candidates += leaving;
  }
  for (; s.candidates > s.rules.candidates; --s.candidates, ++s.vague) {
    move_token(team, s, {token, weakest_candidate(team, s).index, -1});
  }
  while (s.candidates > 0 && s.vague > 0) {
    const Found out = weakest_candidate(team, s);
    const Found in = strongest_vague(team, s);
    if (!(out.value * s.rules.replace_rate < in.value)) {
      return;
    }
    move_token(team, s, {token, out.index, in.index});
  }
}

/// The next step. Positions and inserted tokens ascend. Appends its moves to the log.
template <class Team, class T>
KVB_HD void revive_step(const Team& team, ReviveState<T>& s, const ReviveStep& step) {
  for (; s.arrived <= step.position; ++s.arrived) {
    put_key(team, s.k + s.arrived * s.d, s.d, s.arrived, s.keys);
  }
  if (step.has_query) {
    attend_all(team, s, step.position);
  }
  if (step.insert >= 0) {
    insert(team, s, step.insert);
  }
}

}  // namespace kvbench
