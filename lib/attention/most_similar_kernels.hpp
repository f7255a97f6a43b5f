// The block kernel of most_similar.hpp: products as on the CPU, one FMA per channel, ascending.
#pragma once

#include <cmath>

#include "core/machine.hpp"

namespace kvbench {

/// place[r] = the column i with the largest <from_r, to_i> * inverse[i], the lowest of equals. A
/// block owns 32 rows, a warp 4 of them, a lane every 32nd column: lanes read neighbouring columns
/// of `to`, and all of a warp the same element of a row.
struct MostSimilar {
  static constexpr int kThreads = 256;
  static constexpr int kLanes = 32;
  static constexpr int kOwn = 4;
  static constexpr int kRows = kThreads / kLanes * kOwn;
  struct Shared {
    double cosine[kRows][kLanes];
    Index place[kRows][kLanes];
  };

  const float* keys;      // [., d]
  const Index* from;      // [rows] rows of `keys`
  const float* to;        // [d, stride], channels outermost
  const double* inverse;  // [columns]
  Index rows, columns, d, stride;
  Index* place;  // [rows]

  KVB_HD Index blocks() const { return (rows + kRows - 1) / kRows; }
  KVB_HD int phases(Index) const { return 2; }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    const int lane = thread % kLanes;
    const int own = thread / kLanes * kOwn;
    const Index r0 = block * kRows + own;
    if (phase == 1) {
      for (int r = 0; lane == 0 && r < kOwn && r0 + r < rows; ++r) {
        int best = 0;
        for (int l = 1; l < kLanes && l < columns; ++l) {
          const double x = shared.cosine[own + r][l];
          const double most = shared.cosine[own + r][best];
          if (x > most || (x == most && shared.place[own + r][l] < shared.place[own + r][best])) {
            best = l;
          }
        }
        place[r0 + r] = shared.place[own + r][best];
      }
      return;
    }
    const float* row[kOwn];
    double most[kOwn];
    Index at[kOwn];
    for (int r = 0; r < kOwn; ++r) {
      // Beyond the last row its product is made again and not written.
      row[r] = keys + from[r0 + r < rows ? r0 + r : rows - 1] * d;
      most[r] = 0.0;
      at[r] = lane;
    }
    for (Index i = lane; i < columns; i += kLanes) {
      double acc[kOwn] = {};
      for (Index t = 0; t < d; ++t) {
        const auto x = static_cast<double>(to[t * stride + i]);
        for (int r = 0; r < kOwn; ++r) {
          acc[r] = std::fma(static_cast<double>(row[r][t]), x, acc[r]);
        }
      }
      for (int r = 0; r < kOwn; ++r) {
        const double cosine = acc[r] * inverse[i];
        if (i == lane || cosine > most[r]) {
          most[r] = cosine;
          at[r] = i;
        }
      }
    }
    for (int r = 0; r < kOwn; ++r) {
      shared.cosine[own + r][lane] = most[r];
      shared.place[own + r][lane] = at[r];
    }
  }
};

}  // namespace kvbench
