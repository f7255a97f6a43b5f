// Facility location over the keys of one KV head: f(A) = sum over v in M of max over u in A of
// sim(v, u), with similarities relu(cos), 1 + cos or |cos|, and its gains. Losses of removing a
// key, with ground set S, are in streams/retention.hpp.
//
// Cosines are inner products of unit keys (one FMA per channel, ascending) in the element type T. A
// similarity is rounded to a multiple of 2^-30 and stored as an integer, so sums are exact in any
// order. Thus f is exactly submodular in what is computed, Minoux's stale bounds hold to the last
// bit, equal keys tie exactly, and neither blocking nor threads nor the device change a selection.
// A zero key has similarity 0 to all keys, itself included. 1 + cos is stored as (1 + cos) / 2:
// every objective divides f by f(M).
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/inner_products.hpp"
#include "core/math.hpp"
#include "core/types.hpp"
#include "streams/similarity.hpp"

namespace kvbench {

/// Keys [capacity, d] divided by their norms, in blocks of columns that inner_products reads.
template <class T>
class UnitKeys {
 public:
  static constexpr Index kBlock = 128;  ///< keys per block
  static constexpr Index kRows = 6;     ///< rows of one tile of inner_products

  UnitKeys(Index capacity, Index d);

  void set(Index place, std::span<const float> key);

  Index d() const { return d_; }
  Index blocks() const { return static_cast<Index>(columns_.size()); }
  Index padded() const { return blocks() * kBlock; }
  double norm(Index place) const { return norms_[place]; }
  bool is_zero(Index place) const { return !(norm(place) > 0.0); }
  /// Unit key `place` as row `to` of `rows` [., d].
  void row(Index place, BasicMatrix<T>& rows, Index to) const;
  /// Block b: [d, kBlock], key b * kBlock + c in column c; 0 where no key was set.
  const BasicMatrix<T>& block(Index b) const { return columns_[b]; }

  /// out[c] = similarity of key `from` to key b * kBlock + c, from their cosines [kBlock].
  void similarities(Similarity kind, Index from, Index b, const T* cosines,
                    std::int32_t* out) const;

 private:
  Index d_;
  std::vector<BasicMatrix<T>> columns_;
  AlignedVector<double> norms_;  // [padded]; 0 for a zero key
  AlignedVector<T> offsets_;     // [padded]; 1/2, or 0 for a zero key; for 1 + cos, halved
};
extern template class UnitKeys<float>;
extern template class UnitKeys<double>;

/// f over a fixed ground set M and a growing A. Members are named by their index in M. Values are
/// in units of 1 / kSimilarityOne. Not thread-safe.
class FacilityGains {
 public:
  virtual ~FacilityGains() = default;

  /// Number of candidates per call of gains() at which it is fastest.
  virtual Index batch() const = 0;
  /// Number below which a call takes as long as with that many.
  virtual Index least_batch() const { return batch(); }
  /// f(M).
  virtual std::int64_t total() const = 0;
  /// f(A).
  virtual std::int64_t value() const = 0;
  /// f(A + u) - f(A) for every u.
  virtual std::vector<std::int64_t> all_gains() = 0;
  /// out[i] = f(A + candidates[i]) - f(A).
  virtual void gains(std::span<const Index> candidates, std::span<std::int64_t> out) = 0;
  /// A += u.
  virtual void add(Index u) = 0;
};

/// Facility location on the CPU. Keeps the n x n matrix of similarities if its 4-byte elements fit
/// into `matrix_bytes`. Otherwise each call computes them from the unit keys. Results are the same.
template <class T>
class FacilityLocation final : public FacilityGains {
 public:
  /// M = rows `ground` of `keys`. Time O(n^2 d / 2) with the matrix, O(n d) without.
  FacilityLocation(MatrixView keys, std::span<const Index> ground, Similarity kind,
                   Index matrix_bytes);

  bool has_matrix() const { return !matrix_.empty(); }
  /// Without the matrix each batch reads all unit keys; smaller batches are bound by memory.
  static constexpr Index kBatch = 32 * UnitKeys<T>::kRows;
  Index batch() const override { return has_matrix() ? 1 : kBatch; }
  Index least_batch() const override { return has_matrix() ? 1 : UnitKeys<T>::kRows; }
  std::int64_t total() const override { return total_; }
  std::int64_t value() const override { return value_; }
  /// Time O(n^2), without the matrix O(n^2 d / 2).
  std::vector<std::int64_t> all_gains() override;
  /// Time O(n) each, without the matrix O(n d).
  void gains(std::span<const Index> candidates, std::span<std::int64_t> out) override;
  /// Time of one gain.
  void add(Index u) override;

 private:
  template <class Visit>
  void sweep(Visit visit);
  std::int64_t gain_in_block(const std::int32_t* similarities, Index b) const;
  std::int64_t gain_in_row(const std::int32_t* row) const;

  Index n_;
  Similarity kind_;
  UnitKeys<T> units_;
  AlignedVector<std::int32_t> matrix_;  // [padded, padded], or empty
  AlignedVector<std::int32_t> best_;    // [padded]: max over A of sim(v, .)
  std::int64_t total_ = 0;
  std::int64_t value_ = 0;
  BasicMatrix<T> rows_, cosines_;  // scratch
};
extern template class FacilityLocation<float>;
extern template class FacilityLocation<double>;

}  // namespace kvbench
