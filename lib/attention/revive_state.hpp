// State of a stream with revival in a machine's memory, and what decides how it goes on
// (revive_stream.hpp); the heavy work is in revive_kernels.hpp.
#pragma once

#include <cstdint>

#include "attention/panel_attention.hpp"
#include "attention/revive_stream.hpp"
#include "core/math.hpp"

namespace kvbench {

/// What all threads do in a phase.
///
///   begin -> [(prepare -> rebuild? -> logits, for each pass over query heads)? -> team_tops ->
///   tops -> exponentials -> sums -> scores] -> insert -> [scan -> finalists -> decide]* -> begin
///
/// A launch never ends within brackets: shared memory does not outlive it.
enum class ReviveOp : std::int32_t {
  begin,
  prepare,
  rebuild,
  logits,
  team_tops,
  tops,
  exponentials,
  sums,
  scores,
  insert,
  scan,
  finalists,
  decide,
  wait,  ///< for the next launch
};

struct ReviveState {
  ReviveOp op = ReviveOp::begin;
  ReviveOp resume = ReviveOp::begin;  ///< what the next launch begins with, where op is wait
  Index step = 0;
  Index head = 0;         ///< first query head of this pass
  Index inserted = 0;     ///< tokens, the one that is being inserted not yet
  Index left_recent = 0;  ///< of them
  Index candidates = 0;
  Index vague = 0;
  Index out = -1;  ///< the move that was decided and is to be carried out
  Index in = -1;
  Index moves = 0;          ///< in the log
  std::uint32_t epoch = 1;  ///< what cells that change now are marked with
  bool stale = false;       ///< some did since keys were rebuilt
  bool ahead = false;       ///< the other buffer has the next step's logits, unless keys change
  std::int32_t buffer = 0;  ///< of logits
};

enum class RevivePlace : std::uint8_t { other, candidate, vague };

/// A token and its score; token -1: none.
struct Standing {
  float score = 0.0F;
  std::int32_t token = -1;
};

/// Whether Candidate `a` goes before `b`: the lower score, of equals the higher position.
KVB_HD inline bool weaker(const Standing& a, const Standing& b) {
  return a.token >= 0 &&
         (b.token < 0 || a.score < b.score || (a.score == b.score && a.token > b.token));
}

/// Whether Vague token `a` comes back before `b`: the higher score, of equals the lower position.
KVB_HD inline bool stronger(const Standing& a, const Standing& b) {
  return a.token >= 0 &&
         (b.token < 0 || a.score > b.score || (a.score == b.score && a.token < b.token));
}

/// A count sketch of keys.
struct SketchKeys {
  const SketchHash* hashes;  // [rows]
  float* cells;              // [rows * per_row, d]
  std::uint32_t* counts;     // [rows * per_row] tokens in each
  std::uint32_t* epochs;     // [rows * per_row] of each one's last change
  Index rows;
  Index per_row;
  Index d;
  DType dtype;
  CellEstimate kind;

  KVB_HD Index place(Index row, Index token) const {
    return row * per_row + sketch_cell(hashes[row], token, per_row);
  }

  KVB_HD bool changed(Index token, std::uint32_t epoch) const {
    for (Index r = 0; r < rows; ++r) {
      if (epochs[place(r, token)] == epoch) {
        return true;
      }
    }
    return false;
  }

  /// Adds `x` to channel t of the token's cells.
  KVB_HD void add(Index token, Index t, float x) const {
    for (Index r = 0; r < rows; ++r) {
      float& cell = cells[place(r, token) * d + t];
      cell = cell_element(dtype, cell + x);
    }
  }

  /// Adds `change` to the count of the token's cell in a row, and marks the cell.
  KVB_HD void count(Index row, Index token, std::uint32_t change, std::uint32_t epoch) const {
    const Index at = place(row, token);
    counts[at] += change;
    epochs[at] = epoch;
  }

  /// Channel t as it is estimated.
  KVB_HD float key(Index token, Index t) const {
    float x[kMaxSketchRows] = {};
    for (Index r = 0; r < rows; ++r) {
      const Index at = place(r, token);
      x[r] = part_of(cells[at * d + t], at);
    }
    return round_to(dtype, rows == 3 ? median_of_three(x[0], x[1], x[2]) : sort_to_median(x, rows));
  }

  /// Channels first, first + stride, ... into out[kLanes * channel]. Three rows, the usual number,
  /// keep their places in registers.
  KVB_HD void estimate(Index token, float* out, Index first, Index stride) const {
    if (rows != 3) {
      for (Index t = first; t < d; t += stride) {
        out[t * KeyPanels::kLanes] = key(token, t);
      }
      return;
    }
    const Index a = place(0, token), b = place(1, token), c = place(2, token);
    for (Index t = first; t < d; t += stride) {
      const float x = median_of_three(part_of(cells[a * d + t], a), part_of(cells[b * d + t], b),
                                      part_of(cells[c * d + t], c));
      out[t * KeyPanels::kLanes] = round_to(dtype, x);
    }
  }

 private:
  KVB_HD float part_of(float sum, Index at) const {
    return kind == CellEstimate::mean ? sum / static_cast<float>(counts[at]) : sum;
  }
};

/// The stream: what was asked, and its arrays.
struct RevivePart {
  const ReviveStep* steps;  // [step_count + 1]; the last is only looked at, after the end
  const Index* inserted;    // tokens in the order in which they are inserted
  Index step_count, q_start;

  Index recent, slack, capacity;  // tokens; capacity: of candidates
  double replace_rate;
  Reduce reduce;
  int attention_phases;  // prepare .. scores

  SketchKeys sketch;
  PanelAttention attention;     // its panels: keys as attended now
  std::uint32_t* stale_tokens;  // [n / 32] a bit for each token of the panel
  RevivePlace* places;          // [n]
  float* scores;                // [n]
  ReviveMove* log;              // [log_room]
  Index log_room;

  KVB_HD const ReviveStep& step(const ReviveState& s) const { return steps[s.step]; }
  KVB_HD Index query_row(Index at) const { return steps[at].position - q_start; }

  /// Whether the next step's logits can be made in this one: where one pass makes all of them.
  KVB_HD bool can_go_ahead(const ReviveState& s) const {
    return s.step + 1 < step_count && steps[s.step + 1].has_query &&
           attention.heads_from(0) == attention.group;
  }

  /// How many tokens will have left Recent once the next is inserted: none, or all but the newest.
  KVB_HD Index left_after(const ReviveState& s) const {
    const Index size = s.inserted + 1 - s.left_recent;
    return size > recent + slack ? s.inserted + 1 - recent : s.left_recent;
  }

  /// Goes on with `op`, the first of `phases` that must be in one launch; with `left` phases left
  /// and room in the log, in this one.
  KVB_HD void enter(ReviveState& s, ReviveOp op, int phases, int left) const {
    const bool fits = phases <= left && (op != ReviveOp::scan || s.moves < log_room);
    s.op = fits ? op : ReviveOp::wait;
    s.resume = op;
  }

  KVB_HD void begin(ReviveState& s, int left) const {
    if (s.step == step_count) {
      s.op = ReviveOp::wait;
      s.resume = ReviveOp::begin;
    } else if (step(s).has_query) {
      if (s.ahead && !s.stale) {
        s.buffer = 1 - s.buffer;
        enter(s, ReviveOp::team_tops, attention_phases, left);
      } else {
        s.head = 0;
        enter(s, ReviveOp::prepare, attention_phases, left);
      }
      s.ahead = false;
    } else {
      after_attention(s, left);
    }
  }

  KVB_HD void after_attention(ReviveState& s, int left) const {
    if (step(s).insert >= 0) {
      enter(s, ReviveOp::insert, 1, left);
    } else {
      end_step(s, left);
    }
  }

  KVB_HD void end_step(ReviveState& s, int left) const {
    ++s.step;
    s.out = -1;
    s.in = -1;
    enter(s, ReviveOp::begin, 1, left);
  }

  /// After an insertion: tokens move only where there are too many candidates, or some in each of
  /// Candidate and Vague.
  KVB_HD void settle(ReviveState& s, int left) const {
    if (s.candidates > capacity || (s.candidates > 0 && s.vague > 0)) {
      enter(s, ReviveOp::scan, 3, left);
    } else {
      end_step(s, left);
    }
  }

  KVB_HD void decide(ReviveState& s, const Standing& weakest, const Standing& strongest,
                     int left) const {
    const bool full = s.candidates > capacity;
    const bool swap =
        !full && weakest.token >= 0 && strongest.token >= 0 &&
        static_cast<double>(weakest.score) * replace_rate < static_cast<double>(strongest.score);
    if (!full && !swap) {
      end_step(s, left);
      return;
    }
    s.out = weakest.token;
    s.in = swap ? strongest.token : -1;
    places[s.out] = RevivePlace::vague;
    if (swap) {
      places[s.in] = RevivePlace::candidate;
    } else {
      --s.candidates;
      ++s.vague;
    }
    log[s.moves++] = {step(s).insert, s.out, s.in};
    s.stale = true;
    enter(s, ReviveOp::scan, 3, left);
  }
};

}  // namespace kvbench
