// Block kernels (core/machine.hpp) that make logits into attention: softmax of rows, sums of
// columns. Part of dense_kernels.hpp, which says what they cost.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/dense_kernels.hpp"
#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench::dense {

/// Attention probability above which a token is noticed, handed to kernels by value.
struct Notice {
  std::uint8_t* tokens;  ///< [count]: set to 1 where some row exceeds the threshold; null: none
  double threshold;
};

/// How RowMax and RowExp cut a row: chunks of a fixed size, one block each, so that few long rows
/// fill a GPU as well as many short ones; in a chunk thread t owns every 256th key from t.
struct RowChunks {
  static constexpr int kThreads = 256;
  static constexpr int kFan = 16;  // threads, then halves of the tree: 256 -> 16 -> 1
  static constexpr Index kChunk = 4096;

  const Index* seen;  // [rows]
  Index rows, count;

  KVB_HD Index chunks() const { return pieces(count, kChunk); }
  Index blocks() const { return rows * chunks(); }
  KVB_HD Index row_of(Index block) const { return block / chunks(); }
  KVB_HD Index begin_of(Index block) const { return block % chunks() * kChunk; }
  KVB_HD Index end_of(Index block) const { return least(count, begin_of(block) + kChunk); }
};

/// The largest visible logit of every chunk of a row; -inf where it has none.
struct RowMax : RowChunks {
  struct Shared {
    double x[kThreads];
    double y[kFan];
  };

  const double* logits;  // [rows, stride]
  Index stride;
  double* tops;  // [rows, chunks]

  KVB_HD int phases(Index) const { return 3; }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    double top = -std::numeric_limits<double>::infinity();
    if (phase == 0) {
      const Index r = row_of(block);
      const double* row = logits + r * stride;
      const Index end = least(end_of(block), seen[r]);
      for (Index i = begin_of(block) + thread; i < end; i += kThreads) {
        top = row[i] > top ? row[i] : top;
      }
      shared.x[thread] = top;
    } else if (phase == 1 && thread < kFan) {
      for (int j = thread; j < kThreads; j += kFan) {
        top = shared.x[j] > top ? shared.x[j] : top;
      }
      shared.y[thread] = top;
    } else if (phase == 2 && thread == 0) {
      for (int j = 0; j < kFan; ++j) {
        top = shared.y[j] > top ? shared.y[j] : top;
      }
      tops[block] = top;
    }
  }
};

/// Logits become exp(logit - the row's top), 0 where unseen; their sum and the sum of their squares
/// per chunk.
struct RowExp : RowChunks {
  struct Shared {
    double sum[kThreads];
    double square[kThreads];
    double sum_fan[kFan];
    double square_fan[kFan];
  };

  double* logits;  // [rows, stride]
  Index stride;
  const double* tops;  // [rows, chunks]
  double* sums;        // [rows, chunks]
  double* squares;     // [rows, chunks]

  KVB_HD int phases(Index) const { return 3; }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    double sum = 0.0;
    double square = 0.0;
    if (phase == 0) {
      const Index r = row_of(block);
      double top = -std::numeric_limits<double>::infinity();
      for (Index c = 0; c < chunks(); ++c) {
        const double x = tops[r * chunks() + c];
        top = x > top ? x : top;
      }
      double* row = logits + r * stride;
      const Index end = end_of(block);
      const Index visible = least(end, seen[r]);
      Index i = begin_of(block) + thread;
      for (; i < visible; i += kThreads) {
        const double e = exp_shared(row[i] - top);
        row[i] = e;
        sum += e;
        square = std::fma(e, e, square);
      }
      for (; i < end; i += kThreads) {
        row[i] = 0.0;
      }
      shared.sum[thread] = sum;
      shared.square[thread] = square;
    } else if (phase == 1 && thread < kFan) {
      for (int j = thread; j < kThreads; j += kFan) {
        sum += shared.sum[j];
        square += shared.square[j];
      }
      shared.sum_fan[thread] = sum;
      shared.square_fan[thread] = square;
    } else if (phase == 2 && thread == 0) {
      for (int j = 0; j < kFan; ++j) {
        sum += shared.sum_fan[j];
        square += shared.square_fan[j];
      }
      sums[block] = sum;
      squares[block] = square;
    }
  }
};

/// Chunks of a row together, ascending: one thread per row.
struct RowTotals {
  static constexpr int kThreads = 64;
  struct Shared {};

  const double *tops, *sums, *squares;       // [rows, chunks]
  double *shift, *total, *square, *inverse;  // [rows]; inverse: 1 / total, 0 where that is 0
  Index rows, chunks;

  Index blocks() const { return pieces(rows, kThreads); }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index r = block * kThreads + thread;
    if (r >= rows) {
      return;
    }
    double top = -std::numeric_limits<double>::infinity();
    double sum = 0.0;
    double squared = 0.0;
    for (Index c = r * chunks; c < (r + 1) * chunks; ++c) {
      top = tops[c] > top ? tops[c] : top;
      sum += sums[c];
      squared += squares[c];
    }
    shift[r] = top;
    total[r] = sum;
    square[r] = squared;
    inverse[r] = sum > 0.0 ? 1.0 / sum : 0.0;
  }
};

/// out[r, i] = weights[r, i] inverse[r] below seen[r], else 0: one thread per entry.
struct Probabilities {
  static constexpr int kThreads = 256;
  struct Shared {};

  const double* weights;  // [rows, stride]
  const double* inverse;  // [rows]
  const Index* seen;      // [rows]
  double* out;            // [rows, n]
  Index rows, n, stride;

  Index blocks() const { return pieces(rows * n, kThreads); }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index at = block * kThreads + thread;
    if (at < rows * n) {
      const Index r = at / n;
      const Index i = at % n;
      out[at] = i < seen[r] ? weights[r * stride + i] * inverse[r] : 0.0;
    }
  }
};

/// sums[i] += weights[r, i] inverse[r], r ascending, one FMA each: one thread per key.
struct ColumnSums {
  static constexpr int kThreads = 64;
  struct Shared {};

  const double* weights;  // [rows, stride]
  const double* inverse;  // [rows]
  double* sums;           // [count]
  Notice notice;
  Index rows, count, stride;

  Index blocks() const { return pieces(count, kThreads); }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index i = block * kThreads + thread;
    if (i >= count) {
      return;
    }
    double sum = sums[i];
    bool noticed = false;
    for (Index r = 0; r < rows; ++r) {
      const double w = weights[r * stride + i];
      sum = std::fma(w, inverse[r], sum);
      noticed = noticed || w * inverse[r] > notice.threshold;
    }
    sums[i] = sum;
    if (notice.tokens != nullptr && noticed) {
      notice.tokens[i] = 1;
    }
  }
};

}  // namespace kvbench::dense
