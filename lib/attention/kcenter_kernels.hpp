// Block kernels of greedy k-center (kcenter.hpp). A centre costs two launches and no copy: Admit
// takes its place from the machine's own memory, Farthest writes the next one there. Distances are
// the CPU's to the bit: a thread per partial sum.
#pragma once

#include <limits>

#include "attention/kcenter.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// A place and the squared distance to its nearest centre.
struct FarRow {
  double squared;
  Index place;
};

/// Whether `a` is to be chosen before `b`: the farther one, of equals the lower place.
KVB_HD inline bool comes_before(const FarRow& a, const FarRow& b) {
  return a.squared > b.squared || (a.squared == b.squared && a.place < b.place);
}

/// What the kernels share. Centre `number` is admitted by one launch of each.
struct CenterState {
  const float* points;  // [., d]
  const Index* rows;    // [m] rows of `points`
  Index m;
  Index d;
  Index* centers;    // [count + 1] places; the first is given
  double* most;      // [count] squared radius after each centre
  double* squared;   // [m]
  Index* nearest;    // [m]
  FarRow* farthest;  // [blocks of Admit] of each block

  /// Nothing happens any more once every row lies on a centre; the host takes over there.
  KVB_HD bool done(Index number) const { return number > 0 && !(most[number - 1] > 0.0); }
};

/// Every row that is strictly nearer to centre `number` than to all before becomes its own. Eight
/// neighbouring threads make the partial sums of a row: together they read its 32-byte pieces.
struct Admit {
  static constexpr int kThreads = 256;
  static constexpr int kLanes = static_cast<int>(kDistanceLanes);
  static constexpr int kTeams = kThreads / kLanes;
  static constexpr int kOwn = 4;  // rows of a team, for more reads in flight
  static constexpr int kRows = kTeams * kOwn;
  static constexpr int kFinalists = 16;
  struct Shared {
    double sums[kLanes][kRows + 4];  // the 4 keep a warp's 4 x 8 stores on different banks
    FarRow best[kRows];
    FarRow finalists[kFinalists];
  };

  CenterState state;
  Index number;

  KVB_HD Index launch_blocks() const { return (state.m + kRows - 1) / kRows; }
  KVB_HD int phases(Index) const { return state.done(number) ? 0 : 4; }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    switch (phase) {
      case 0: sum_lanes(block, thread, shared); break;
      case 1: update_row(block, thread, shared); break;
      case 2:
        if (thread < kFinalists) {
          FarRow best = shared.best[thread];
          for (int i = thread + kFinalists; i < kRows; i += kFinalists) {
            best = comes_before(shared.best[i], best) ? shared.best[i] : best;
          }
          shared.finalists[thread] = best;
        }
        break;
      default:
        if (thread == 0) {
          FarRow best = shared.finalists[0];
          for (int i = 1; i < kFinalists; ++i) {
            best = comes_before(shared.finalists[i], best) ? shared.finalists[i] : best;
          }
          state.farthest[block] = best;
        }
    }
  }

 private:
  KVB_HD void sum_lanes(Index block, int thread, Shared& shared) const {
    const int lane = thread % kLanes;
    const int team = thread / kLanes;
    const float* center = state.points + state.rows[state.centers[number]] * state.d;
    const float* row[kOwn];
    for (int r = 0; r < kOwn; ++r) {
      // Beyond the end the last row is read again; its sums are not.
      const Index place = block * kRows + r * kTeams + team;
      row[r] = state.points + state.rows[place < state.m ? place : state.m - 1] * state.d;
    }
    double acc[kOwn] = {};
    for (Index t = lane; t < state.d; t += kLanes) {
      const auto c = static_cast<double>(center[t]);
      for (int r = 0; r < kOwn; ++r) {
        acc[r] = add_square(c, row[r][t], acc[r]);
      }
    }
    for (int r = 0; r < kOwn; ++r) {
      shared.sums[lane][r * kTeams + team] = acc[r];
    }
  }

  KVB_HD void update_row(Index block, int thread, Shared& shared) const {
    if (thread >= kRows) {
      return;
    }
    const Index place = block * kRows + thread;
    if (place >= state.m) {
      shared.best[thread] = {-1.0, place};
      return;
    }
    double acc[kLanes];
    for (int l = 0; l < kLanes; ++l) {
      acc[l] = shared.sums[l][thread];
    }
    const double x = sum_of_lanes(acc);
    const double before =
        number == 0 ? std::numeric_limits<double>::infinity() : state.squared[place];
    const double now = x < before ? x : before;
    if (x < before) {
      state.squared[place] = x;
    }
    if (x < before || place == state.centers[number]) {
      state.nearest[place] = number;
    }
    shared.best[thread] = {now, place};
  }
};

/// The farthest row of all is the next centre. One launch block.
struct Farthest {
  static constexpr int kThreads = 256;
  static constexpr int kFinalists = 16;
  struct Shared {
    FarRow best[kThreads];
    FarRow finalists[kFinalists];
  };

  CenterState state;
  Index number;
  Index candidates;  // blocks of Admit

  KVB_HD int phases(Index) const { return 3; }

  KVB_HD void run(int phase, Index, int thread, Shared& shared) const {
    if (phase == 0) {
      FarRow best{-1.0, state.m};
      for (Index i = thread; i < candidates && !state.done(number); i += kThreads) {
        best = comes_before(state.farthest[i], best) ? state.farthest[i] : best;
      }
      shared.best[thread] = best;
    } else if (phase == 1) {
      if (thread < kFinalists) {
        FarRow best = shared.best[thread];
        for (int i = thread + kFinalists; i < kThreads; i += kFinalists) {
          best = comes_before(shared.best[i], best) ? shared.best[i] : best;
        }
        shared.finalists[thread] = best;
      }
    } else if (thread == 0) {
      FarRow best = shared.finalists[0];
      for (int i = 1; i < kFinalists; ++i) {
        best = comes_before(shared.finalists[i], best) ? shared.finalists[i] : best;
      }
      // Where all is done there is no candidate, and the radius stays below or at 0.
      state.most[number] = best.squared;
      state.centers[number + 1] = best.place;
    }
  }
};

}  // namespace kvbench
