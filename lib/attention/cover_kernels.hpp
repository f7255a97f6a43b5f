// Block kernels of the online delta-cover (delta_cover.hpp), 64 rows at a time: CoverDistances
// finds for each of them the nearest representative that was there before the batch, and their
// distances to one another; CoverSettle then lets them join or open in their order, and compares a
// row with those that opened within the batch. The outcome is that of one row after another: the
// nearest is the least of both parts, ties to the earlier cluster. Distances are the CPU's to the
// bit: a thread per partial sum.
//
// Floor: settling is a chain, one phase per row whatever the number of clusters. m rows take at
// least m such phases (the threads' meeting and two comparisons each) and m/32 launches. Distances
// to C clusters add 2 m C d float64 operations, spread over the whole device.
#pragma once

#include <limits>

#include "attention/kcenter.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// Rows of a batch: as many as leave room for their mutual distances in a block's memory.
inline constexpr int kCoverBatch = 64;
/// Parts of the representatives, each the work of a block; the nearest of each part is kept.
inline constexpr int kCoverParts = 64;

/// A cluster and the squared distance to its representative.
struct NearCluster {
  double squared;
  Index cluster;  // -1: none
};

/// The nearer one, of equals the earlier cluster.
KVB_HD inline NearCluster nearer(const NearCluster& a, const NearCluster& b) {
  const bool first = a.squared < b.squared || (a.squared == b.squared && a.cluster < b.cluster);
  return first ? a : b;
}

/// How far a stream has come.
struct CoverProgress {
  Index clusters;
  Index stopped;  // place of the row that needed one cluster too many, or -1
};

/// What the kernels share. The batch at place `begin` is worked on by one launch of each.
struct CoverState {
  const float* points;  // [., d]
  const Index* rows;    // [m] rows of `points`
  Index m;
  Index d;
  double joins_up_to;  // the largest squared distance whose root is at most delta
  Index max_clusters;
  CoverProgress* progress;  // [1]
  Index* representatives;   // [min(m, max_clusters)] rows of `points`
  NearCluster* nearest;     // [kCoverBatch, kCoverParts] of the batch's rows in each part
  double* within;           // [kCoverBatch, kCoverBatch] squared distances of the batch's rows
  Index* cluster;           // [m]
  double* squared;          // [m] to the nearest representative that was there

  KVB_HD int batch(Index begin) const {
    return static_cast<int>(m - begin < kCoverBatch ? m - begin : kCoverBatch);
  }
};

/// A tile of 16 rows by 32 representatives at a time; eight neighbouring threads make the partial
/// sums of 4 x 4 pairs: together they read 32-byte pieces of the rows.
struct CoverDistances {
  static constexpr int kThreads = 256;
  static constexpr int kLanes = static_cast<int>(kDistanceLanes);
  static constexpr int kOwn = 4;  // rows, and representatives, of a team
  static constexpr int kRows = 16;
  static constexpr int kColumns = 32;
  static constexpr int kColumnTeams = kColumns / kOwn;
  static_assert(kThreads / kLanes == kRows / kOwn * kColumnTeams);
  static constexpr int kPairs = kRows * kColumns;
  static constexpr int kFinalists = 8;
  static constexpr int kWithin = kCoverBatch / kColumns;  // parts that are the batch itself
  struct Shared {
    double sums[kLanes][kPairs + 2];  // the 2 keep the stores of two teams on different banks
    NearCluster best[kPairs];
    NearCluster finalists[kRows * kFinalists];
  };

  CoverState state;
  Index begin;

  KVB_HD static Index launch_blocks() {
    return Index{kCoverBatch / kRows} * (kCoverParts + kWithin);
  }

  KVB_HD int phases(Index block) const {
    if (state.progress->stopped >= 0 || first_row(block) >= state.batch(begin)) {
      return 0;
    }
    if (is_within(block)) {
      return 2;
    }
    const int count = tiles(block);
    return count > 0 ? 2 * count + 2 : 0;
  }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    if (is_within(block)) {
      if (phase == 0) {
        sum_lanes(block, 0, thread, shared);
      } else {
        store_within(block, thread, shared);
      }
      return;
    }
    const int rest = phase - 2 * tiles(block);
    if (rest < 0) {
      if (phase % 2 == 0) {
        sum_lanes(block, phase / 2, thread, shared);
      } else {
        compare(block, phase / 2, thread, shared);
      }
    } else if (rest == 0) {
      if (thread < kRows * kFinalists) {
        const NearCluster* row = shared.best + thread / kFinalists * kColumns;
        NearCluster best = row[thread % kFinalists];
        for (int i = thread % kFinalists + kFinalists; i < kColumns; i += kFinalists) {
          best = nearer(row[i], best);
        }
        shared.finalists[thread] = best;
      }
    } else if (thread < kRows) {
      NearCluster best = shared.finalists[thread * kFinalists];
      for (int i = 1; i < kFinalists; ++i) {
        best = nearer(shared.finalists[thread * kFinalists + i], best);
      }
      state.nearest[(first_row(block) + thread) * kCoverParts + part(block)] = best;
    }
  }

 private:
  KVB_HD static int part(Index block) { return static_cast<int>(block % (kCoverParts + kWithin)); }
  KVB_HD static bool is_within(Index block) { return part(block) >= kCoverParts; }
  // In the batch.
  KVB_HD static int first_row(Index block) {
    return static_cast<int>(block / (kCoverParts + kWithin)) * kRows;
  }
  KVB_HD int tiles(Index block) const {
    const Index all = (state.progress->clusters + kColumns - 1) / kColumns;
    return static_cast<int>((all - part(block) + kCoverParts - 1) / kCoverParts);
  }
  // Cluster of a part's tile, or row of the batch.
  KVB_HD static Index first_column(Index block, int tile) {
    return is_within(block) ? Index{part(block) - kCoverParts} * kColumns
                            : (Index{tile} * kCoverParts + part(block)) * kColumns;
  }

  // Beyond the end the last one is read again; its sums are not.
  KVB_HD const float* batch_row(Index i) const {
    const Index place = begin + i < state.m ? begin + i : state.m - 1;
    return state.points + state.rows[place] * state.d;
  }
  KVB_HD const float* column_row(Index block, Index column) const {
    if (is_within(block)) {
      return batch_row(column);
    }
    const Index last = state.progress->clusters - 1;
    return state.points + state.representatives[column < last ? column : last] * state.d;
  }

  KVB_HD void sum_lanes(Index block, int tile, int thread, Shared& shared) const {
    const int lane = thread % kLanes;
    const int team = thread / kLanes;
    const int top = team / kColumnTeams * kOwn;
    const int side = team % kColumnTeams;
    const float* row[kOwn];
    const float* column[kOwn];
    for (int r = 0; r < kOwn; ++r) {
      row[r] = batch_row(first_row(block) + top + r);
      column[r] = column_row(block, first_column(block, tile) + r * kColumnTeams + side);
    }
    double acc[kOwn][kOwn] = {};
    for (Index t = lane; t < state.d; t += kLanes) {
      double x[kOwn];
      float y[kOwn];
      for (int r = 0; r < kOwn; ++r) {
        x[r] = static_cast<double>(row[r][t]);
        y[r] = column[r][t];
      }
      for (int r = 0; r < kOwn; ++r) {
        for (int c = 0; c < kOwn; ++c) {
          acc[r][c] = add_square(x[r], y[c], acc[r][c]);
        }
      }
    }
    for (int r = 0; r < kOwn; ++r) {
      for (int c = 0; c < kOwn; ++c) {
        shared.sums[lane][(top + r) * kColumns + c * kColumnTeams + side] = acc[r][c];
      }
    }
  }

  KVB_HD static double squared(int pair, const Shared& shared) {
    double acc[kLanes];
    for (int l = 0; l < kLanes; ++l) {
      acc[l] = shared.sums[l][pair];
    }
    return sum_of_lanes(acc);
  }

  KVB_HD void store_within(Index block, int thread, const Shared& shared) const {
    for (int pair = thread; pair < kPairs; pair += kThreads) {
      const Index row = first_row(block) + pair / kColumns;
      state.within[row * kCoverBatch + first_column(block, 0) + pair % kColumns] =
          squared(pair, shared);
    }
  }

  // A thread's pairs keep their columns over the tiles, whose clusters rise.
  KVB_HD void compare(Index block, int tile, int thread, Shared& shared) const {
    for (int pair = thread; pair < kPairs; pair += kThreads) {
      const Index cluster = first_column(block, tile) + pair % kColumns;
      NearCluster best{std::numeric_limits<double>::infinity(), -1};
      if (tile > 0) {
        best = shared.best[pair];
      }
      if (cluster < state.progress->clusters) {
        const double x = squared(pair, shared);
        if (x < best.squared) {
          best = {x, cluster};
        }
      }
      shared.best[pair] = best;
    }
  }
};

/// Lets the rows of a batch join or open, a phase each. One launch block.
struct CoverSettle {
  static constexpr int kThreads = 256;
  static constexpr int kHelpers = kThreads / kCoverBatch;  // threads that gather a row's parts
  struct Shared {
    double within[kCoverBatch][kCoverBatch];
    NearCluster part[kHelpers][kCoverBatch];
    NearCluster nearest[kCoverBatch];
    Index cluster[kCoverBatch];
    bool opened[kCoverBatch];
    CoverProgress progress[2];  // row i reads number i % 2 and writes the other
  };

  CoverState state;
  Index begin;

  KVB_HD int phases(Index) const {
    return state.progress->stopped >= 0 ? 0 : state.batch(begin) + 3;
  }

  KVB_HD void run(int phase, Index, int thread, Shared& shared) const {
    const int size = state.batch(begin);
    if (phase == 0) {
      gather(thread, shared);
    } else if (phase == 1) {
      if (thread < size) {
        NearCluster best = shared.part[0][thread];
        for (int i = 1; i < kHelpers; ++i) {
          best = nearer(shared.part[i][thread], best);
        }
        shared.nearest[thread] = best;
      }
    } else if (thread < size && phase - 2 < size) {
      settle(phase - 2, thread, shared);
    } else if (thread < size) {
      store(thread, shared);
    }
  }

 private:
  KVB_HD void gather(int thread, Shared& shared) const {
    for (int i = thread; i < kCoverBatch * kCoverBatch; i += kThreads) {
      const int row = i / kCoverBatch;
      const int column = i % kCoverBatch;
      if (row < column && column < state.batch(begin)) {
        shared.within[row][column] = state.within[i];
      }
    }
    const Index tiles =
        (state.progress->clusters + CoverDistances::kColumns - 1) / CoverDistances::kColumns;
    const int row = thread / kHelpers;
    NearCluster best{std::numeric_limits<double>::infinity(), -1};
    for (int i = thread % kHelpers; row < state.batch(begin) && i < kCoverParts && i < tiles;
         i += kHelpers) {
      best = nearer(state.nearest[row * kCoverParts + i], best);
    }
    shared.part[thread % kHelpers][row] = best;
    if (thread == 0) {
      shared.progress[0] = *state.progress;
    }
  }

  // Every thread derives by itself what becomes of row i, from what no one writes any more, and
  // brings its own row's nearest up to date.
  KVB_HD void settle(int i, int thread, Shared& shared) const {
    const CoverProgress before = shared.progress[i % 2];
    const NearCluster own = shared.nearest[i];
    CoverProgress after = before;
    bool opens = false;
    if (before.stopped < 0 && (before.clusters == 0 || !(own.squared <= state.joins_up_to))) {
      opens = before.clusters < state.max_clusters;
      after.clusters += opens ? 1 : 0;
      after.stopped = opens ? -1 : begin + i;
    }
    if (opens && thread > i) {
      const double x = shared.within[i][thread];
      if (x < shared.nearest[thread].squared) {
        shared.nearest[thread] = {x, before.clusters};
      }
    }
    if (thread == 0) {
      shared.cluster[i] = opens ? before.clusters : own.cluster;
      shared.opened[i] = opens;
      shared.progress[(i + 1) % 2] = after;
    }
  }

  // What is written behind the row that stopped the stream is read by no one.
  KVB_HD void store(int thread, const Shared& shared) const {
    state.cluster[begin + thread] = shared.cluster[thread];
    state.squared[begin + thread] = shared.nearest[thread].squared;
    if (shared.opened[thread]) {
      state.representatives[shared.cluster[thread]] = state.rows[begin + thread];
    }
    if (thread == 0) {
      *state.progress = shared.progress[state.batch(begin) % 2];
    }
  }
};

}  // namespace kvbench
