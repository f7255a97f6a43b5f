// Block kernels (core/machine.hpp) of attention in which every query has a list of tokens of its
// own: the steps of a stream, a batch of them per launch.
//
// A list is cut into slabs of 512 entries. SlabSums makes one query's sums over one slab under the
// slab's own largest logit, JoinSlabs adds slabs up in their order under the largest of all.
// Nothing depends on which lists share a launch.
//
// Cost per entry and query: d + dv FMAs and an exponential; 4 (d + dv) bytes of key and value, from
// the second-level cache where queries of a group, or steps of a stream, read the same tokens.
#pragma once

#include <cmath>
#include <limits>

#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench {

/// What one launch block sums.
struct Slab {
  const float* keys;          // [., d]
  const float* values;        // [., dv]; null: no values are summed
  const Index* rows;          // [count] of both
  const double* log_weights;  // [count]; null: every weight is 1
  Index count;
  Index query;
};

/// Slabs [begin, end) of one list and one query.
struct SlabRun {
  Index begin, end;
};

/// Of slab s: tops[s], sums[s] = sum of w exp(logit - top), numerators[s, c] = the same times
/// values, entries ascending, one FMA each.
struct SlabSums {
  static constexpr int kThreads = 128;
  static constexpr int kFan = 8;
  static constexpr Index kSlab = 512;
  struct Shared {
    double x[kSlab];
    double fan[kThreads];
    double few[kFan];
  };

  const Slab* slabs;
  const double* queries;  // [., d], times the scale
  Index d, dv;
  double* tops;        // [slabs]
  double* sums;        // [slabs]
  double* numerators;  // [slabs, dv]

  KVB_HD int phases(Index) const { return 5; }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    const Slab& slab = slabs[block];
    switch (phase) {
      case 0: logits(slab, thread, shared); break;
      case 1:
        if (thread < kFan) {
          double top = shared.fan[thread];
          for (int i = thread + kFan; i < kThreads; i += kFan) {
            top = shared.fan[i] > top ? shared.fan[i] : top;
          }
          shared.few[thread] = top;
        }
        break;
      case 2: exponentials(slab, block, thread, shared); break;
      case 3:
        if (thread < kFan) {
          double sum = 0.0;
          for (int i = thread; i < kThreads; i += kFan) {
            sum += shared.fan[i];
          }
          shared.few[thread] = sum;
        }
        break;
      default: weigh(slab, block, thread, shared);
    }
  }

 private:
  KVB_HD void logits(const Slab& slab, int thread, Shared& shared) const {
    const double* q = queries + slab.query * d;
    double top = -std::numeric_limits<double>::infinity();
    for (Index i = thread; i < slab.count; i += kThreads) {
      const float* key = slab.keys + slab.rows[i] * d;
      double x = 0.0;
      for (Index t = 0; t < d; ++t) {
        x = std::fma(q[t], static_cast<double>(key[t]), x);
      }
      x += slab.log_weights == nullptr ? 0.0 : slab.log_weights[i];
      shared.x[i] = x;
      top = x > top ? x : top;
    }
    shared.fan[thread] = top;
  }

  KVB_HD void exponentials(const Slab& slab, Index block, int thread, Shared& shared) const {
    double top = shared.few[0];
    for (int i = 1; i < kFan; ++i) {
      top = shared.few[i] > top ? shared.few[i] : top;
    }
    double sum = 0.0;
    for (Index i = thread; i < slab.count; i += kThreads) {
      const double e = exp_shared(shared.x[i] - top);
      shared.x[i] = e;
      sum += e;
    }
    shared.fan[thread] = sum;
    if (thread == 0) {
      tops[block] = top;
    }
  }

  KVB_HD void weigh(const Slab& slab, Index block, int thread, Shared& shared) const {
    if (thread == 0) {
      double sum = 0.0;
      for (int i = 0; i < kFan; ++i) {
        sum += shared.few[i];
      }
      sums[block] = sum;
    }
    for (Index c = thread; slab.values != nullptr && c < dv; c += kThreads) {
      double sum = 0.0;
      for (Index i = 0; i < slab.count; ++i) {
        sum = std::fma(shared.x[i], static_cast<double>(slab.values[slab.rows[i] * dv + c]), sum);
      }
      numerators[block * dv + c] = sum;
    }
  }
};

/// Slabs of a run together, ascending, under the largest of their tops. A block per run, a thread
/// per channel.
struct JoinSlabs {
  static constexpr int kThreads = 128;
  struct Shared {};

  const SlabRun* runs;
  const double *tops, *sums, *numerators;  // of SlabSums
  Index dv;
  double *shift, *total;  // [runs]
  double* out;            // [runs, dv]

  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const SlabRun& own = runs[block];
    double top = -std::numeric_limits<double>::infinity();
    for (Index s = own.begin; s < own.end; ++s) {
      top = tops[s] > top ? tops[s] : top;
    }
    double sum = 0.0;
    for (Index s = own.begin; thread == 0 && s < own.end; ++s) {
      sum += sums[s] * exp_shared(tops[s] - top);
    }
    if (thread == 0) {
      shift[block] = top;
      total[block] = sum;
    }
    for (Index c = thread; c < dv; c += kThreads) {
      double acc = 0.0;
      for (Index s = own.begin; s < own.end; ++s) {
        acc = std::fma(numerators[s * dv + c], exp_shared(tops[s] - top), acc);
      }
      out[block * dv + c] = acc;
    }
  }
};

}  // namespace kvbench
