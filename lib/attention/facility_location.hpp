// Facility location over the keys of one KV head: f(A) = sum over v in M of max over u in A of
// sim(v, u), with similarities relu(cos), 1 + cos or |cos|, and its gains. The losses of removing
// one key, with the ground set equal to the retained set, are streams/retention.hpp.
//
// Cosines are inner products of unit keys (one FMA per channel, ascending) in the element type T of
// the head's precision; a similarity is then rounded to a multiple of 2^-30 and held as an integer.
// Sums of them are exact, whatever their order: f is exactly submodular in what is computed, so
// that Minoux's stale bounds are bounds to the last bit; equal keys tie exactly; and no blocking,
// thread or device can change a selection. A zero key has similarity 0 to all, itself too. 1 + cos
// is held as (1 + cos) / 2: f enters every objective divided by f(M).
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

/// Keys divided by their norms, in blocks of columns that inner_products can read. [capacity, d].
template <class T>
class UnitKeys {
 public:
  static constexpr Index kBlock = 128;  ///< keys per block
  static constexpr Index kRows = 6;     ///< rows that inner_products handles at its best

  UnitKeys(Index capacity, Index d);

  void set(Index place, std::span<const float> key);

  Index d() const { return d_; }
  Index blocks() const { return static_cast<Index>(columns_.size()); }
  Index padded() const { return blocks() * kBlock; }
  double norm(Index place) const { return norms_[place]; }
  bool is_zero(Index place) const { return !(norm(place) > 0.0); }
  /// Unit key `place` as row `to` of `rows` [., d].
  void row(Index place, BasicMatrix<T>& rows, Index to) const;
  /// Block b: [d, kBlock], key b * kBlock + c in column c; zero columns where nothing was set.
  const BasicMatrix<T>& block(Index b) const { return columns_[b]; }

  /// out[c] = similarity of key `from` to key b * kBlock + c, from their cosines [kBlock].
  void similarities(Similarity kind, Index from, Index b, const T* cosines,
                    std::int32_t* out) const;

 private:
  Index d_;
  std::vector<BasicMatrix<T>> columns_;
  AlignedVector<double> norms_;  // [padded]; 0 for a zero key
  AlignedVector<T> offsets_;     // [padded]; 1/2, or 0 for a zero key: 1 + cos, halved
};
extern template class UnitKeys<float>;
extern template class UnitKeys<double>;

/// f over a fixed ground set M and a growing A. Members are called by their place in M. Values are
/// in units of 1 / kSimilarityOne. Not thread-safe: one object per job.
class FacilityGains {
 public:
  virtual ~FacilityGains() = default;

  /// Gains that are best asked for at once.
  virtual Index batch() const = 0;
  /// f(M).
  virtual std::int64_t total() const = 0;
  /// f(A).
  virtual std::int64_t value() const = 0;
  /// f({u}) for every u, whatever A is.
  virtual std::vector<std::int64_t> singletons() = 0;
  /// out[i] = f(A + candidates[i]) - f(A).
  virtual void gains(std::span<const Index> candidates, std::span<std::int64_t> out) = 0;
  /// A += u.
  virtual void add(Index u) = 0;
};

/// Bytes that FacilityLocation holds for n keys of width d, singletons() included.
Index facility_location_bytes(Precision precision, Index n, Index d, Index matrix_bytes);

/// Facility location on the CPU. The n x n matrix of similarities is kept where it takes no more
/// than `matrix_bytes` (4 bytes each); beyond, similarities are computed anew from the n d elements
/// of unit keys whenever they are asked for. Results do not depend on which.
template <class T>
class FacilityLocation final : public FacilityGains {
 public:
  /// M = rows `ground` of `keys`. Time O(n^2 d / 2) with the matrix, O(n d) without.
  FacilityLocation(MatrixView keys, std::span<const Index> ground, Similarity kind,
                   Index matrix_bytes);

  bool has_matrix() const { return !matrix_.empty(); }
  /// Without the matrix each batch reads all unit keys, and below this many rows a batch waits for
  /// memory, not for arithmetic.
  Index batch() const override { return has_matrix() ? 1 : 8 * UnitKeys<T>::kRows; }
  std::int64_t total() const override { return total_; }
  std::int64_t value() const override { return value_; }
  /// Time O(n^2), without the matrix O(n^2 d / 2).
  std::vector<std::int64_t> singletons() override;
  /// Time O(n) each, without the matrix O(n d).
  void gains(std::span<const Index> candidates, std::span<std::int64_t> out) override;
  /// Time as one gain.
  void add(Index u) override;

 private:
  template <class Visit>
  void sweep(Visit visit);
  std::int64_t gain_in_block(const std::int32_t* similarities, Index b) const;

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
