// The block kernel of merge_rows.hpp: sums in the CPU's order, so the rows are its to the bit.
#pragma once

#include "core/float16.hpp"
#include "core/machine.hpp"
#include "core/types.hpp"

namespace kvbench {

/// out[j, c] of `rows` lists. A thread per number: neighbours read along a row. A list's sum is
/// sequential; its next kAhead rows are asked for at once.
struct MergeRows {
  static constexpr int kThreads = 256;
  static constexpr int kAhead = 8;
  struct Shared {};

  const float* from;     // [., cols]
  const Index* members;  // rows of `from`
  const double* shares;  // [members], or null: means
  const Range* lists;    // [rows]
  const Index* onto;     // [rows] rows of `from`; not read for means
  Index rows;
  Index cols;
  DType type;
  float* out;  // [rows, cols]

  KVB_HD Index blocks() const { return (rows * cols + kThreads - 1) / kThreads; }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index at = block * kThreads + thread;
    const Index j = at / cols;
    if (j >= rows) {
      return;
    }
    const Index c = at % cols;
    const Index begin = lists[j].begin;
    const Index end = lists[j].end;
    double sum = 0.0;
    Index i = begin;
    for (; i + kAhead <= end; i += kAhead) {
      double x[kAhead];
      for (int a = 0; a < kAhead; ++a) {
        x[a] = part(i + a, c);
      }
      for (int a = 0; a < kAhead; ++a) {
        sum += x[a];
      }
    }
    for (; i < end; ++i) {
      sum += part(i, c);
    }
    out[at] = stored(type, shares == nullptr ? sum / static_cast<double>(end - begin)
                                             : static_cast<double>(from[onto[j] * cols + c]) + sum);
  }

 private:
  KVB_HD double part(Index i, Index c) const {
    const auto x = static_cast<double>(from[members[i] * cols + c]);
    return shares == nullptr ? x : x / shares[i];
  }
};

}  // namespace kvbench
