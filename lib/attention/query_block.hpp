// A block of queries that attends to a list of rows: the core of exact attention, scores and the
// estimator. Every sum has one order, so its bits depend neither on the instruction set nor on
// which queries share a block:
//   logit(i, r) = sum_t k_i[t] q_r[t], t ascending, one FMA each, in T; + the log weight
//   weight(i, r) = exp(logit - shift_r) in T; shift_r: the largest logit that query r sees, that of
//     the sink included
//   sums of weights: float64, tokens in order within a slab, slabs in order
//   sums of weighted values: one FMA each in T within a slab, slabs in order in float64
// T = float is the arithmetic of --precision float32, T = double its reference.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "attention/inner_products.hpp"
#include "core/types.hpp"

namespace kvbench {

inline constexpr Index kQueryBlock = 128;  ///< most queries of a block

struct RowList {
  MatrixView of;                ///< keys [., d] or values [., dv]
  std::span<const Index> rows;  ///< empty: the first `count`
  Index count = 0;

  Index row(Index i) const { return rows.empty() ? i : rows[i]; }
};

/// out [d] = the query of query head `g` at `position`, times the scale.
void scaled_query(const KvHead& head, Index g, Index position, double* out);

/// Keeps its memory between calls: tokens x kQueryBlock elements, and slabs.
template <class T>
class QueryBlock {
 public:
  /// This thread's block. Allocating one per call costs as much as the arithmetic of a small set.
  static QueryBlock& of_thread() {
    thread_local QueryBlock block;
    return block;
  }

  /// Allocates memory for calls whose last query sees at most `tokens` keys.
  void reserve(Index queries, Index tokens);

  /// Rows `which` (at most kQueryBlock) of `queries` [., d], times the scale, attend to `keys`. Row
  /// which.begin + r sees keys seen[r]. `log_weights` [keys], finite, or null: all weights are 1.
  /// With `values` [keys], out[r] [dv] += sum_i weight(i, r) value_i. `sink`: a logit that enters
  /// each total only; -inf: none.
  void attend(const MatrixD& queries, Range which, const RowList& keys, const T* log_weights,
              std::span<const Range> seen, const RowList* values, double* out,
              T sink = -std::numeric_limits<T>::infinity());

  /// The queries of query head `g` at `positions`, at most kQueryBlock, attend to the tokens that
  /// they see and to the head's sink logit. out: as above; null: values are not read.
  void attend(const KvHead& head, Index g, std::span<const Index> positions, double* out);

  double shift(Index r) const { return static_cast<double>(shift_[r]); }  ///< -inf: sees nothing
  double total(Index r) const { return total_[r]; }    ///< sum of weights, the sink's included
  double square(Index r) const { return square_[r]; }  ///< sum of the keys' squared weights
  T weight(Index i, Index r) const { return weights_[i * width_ + r]; }

  /// sums[i] += sum_r weight(i, r) / total(r), in 16 lanes joined as a tree; noticed[i] = 1 where
  /// weight(i, r) > threshold * total(r) for some r, unless `noticed` is null.
  void add_columns(double* sums, std::uint8_t* noticed, double threshold) const;

 private:
  void pack(const MatrixD& queries, Range which);
  const T* const* slab_rows(const RowList& list, Index begin, Index count);
  void mask(Index begin, Index count, std::span<const Range> seen);
  void add_values(const RowList& values, Index begin, Index end, double* out);

  Index queries_ = 0;         // in the block
  Index width_ = 0;           // queries_ in whole vectors
  Index first_ = 0;           // no query sees slabs before this token
  Index tokens_ = 0;          // no query sees tokens from here on
  AlignedVector<T> packed_;   // queries, by panels of columns: [panel][d][columns]
  AlignedVector<T> weights_;  // [tokens, width]
  AlignedVector<T> wide_;     // a slab's rows in T, unless T is float
  AlignedVector<T> panel_;    // columns of a slab's values
  std::vector<const T*> pointers_;
  std::array<T, kQueryBlock> shift_;
  std::array<double, kQueryBlock> total_;
  std::array<double, kQueryBlock> square_;
};

/// Bytes that a block of `queries` queries holds which attend to at most `tokens` keys. `element`:
/// bytes of a T.
Index query_block_bytes(Index element, Index queries, Index tokens);

extern template class QueryBlock<float>;
extern template class QueryBlock<double>;

}  // namespace kvbench
