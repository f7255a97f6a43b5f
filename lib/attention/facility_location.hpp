// Facility location over the keys of one KV head: f(A) = sum over v in M of max over u in A of
// sim(v, u), with similarities relu(cos), 1 + cos or |cos|; its gains (prefill) and, with the
// ground set equal to the retained set, the losses of removing one key (stream).
//
// Cosines are inner products of float64 unit keys (one FMA per channel, ascending); a similarity
// is then rounded to a multiple of 2^-30 (1e-9, a thousandth of what float16 keys resolve) and held
// as an integer. Sums of them are exact, whatever their order: f is exactly submodular in what is
// computed, so that Minoux's stale bounds are bounds to the last bit; equal keys tie exactly; and
// no blocking, thread or device can change a selection. A zero key has similarity 0 to all, itself
// too. 1 + cos is held as (1 + cos) / 2: f enters every objective divided by f(M).
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/similarity.hpp"
#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench {

class DeviceCoverage;
class DeviceHead;

enum class Similarity { relu, one_plus, absolute };

/// The integer that stands for similarity 1 (for 1 + cos: 2).
inline constexpr std::int32_t kSimilarityOne = std::int32_t{1} << 30;

/// Rounded to the nearest integer; x in [0, 1 + rounding], where adding a half and cutting off is
/// right and, unlike lround, vectorises.
KVB_HD inline std::int32_t to_fixed(double x) {
  // NOLINTNEXTLINE(bugprone-incorrect-roundings)
  return static_cast<std::int32_t>(x * static_cast<double>(kSimilarityOne) + 0.5);
}

/// The integer of two keys' similarity from their cosine (0 where either is a zero key). `offset`,
/// read for one_plus alone: 1/2, or 0 where either is a zero key.
KVB_HD inline std::int32_t fixed_similarity(Similarity kind, double cosine, double offset) {
  if (kind == Similarity::absolute) {
    return to_fixed(std::abs(cosine));
  }
  const double x = kind == Similarity::relu ? cosine : 0.5 * cosine + offset;
  return to_fixed(x > 0.0 ? x : 0.0);
}

/// Keys divided by their norms, in blocks of columns that inner_products can read. [capacity, d].
class UnitKeys {
 public:
  static constexpr Index kBlock = 128;  ///< keys per block
  static constexpr Index kRows = 6;     ///< rows that inner_products handles at its best

  UnitKeys(Index capacity, Index d);

  void set(Index place, std::span<const float> key);
  void copy(Index from, Index to);

  Index d() const { return d_; }
  Index blocks() const { return static_cast<Index>(columns_.size()); }
  Index padded() const { return blocks() * kBlock; }
  double norm(Index place) const { return norms_[static_cast<std::size_t>(place)]; }
  bool is_zero(Index place) const { return !(norm(place) > 0.0); }
  /// Unit key `place` as row `to` of `rows` [., d].
  void row(Index place, MatrixD& rows, Index to) const;
  /// Block b: [d, kBlock], key b * kBlock + c in column c; zero columns where nothing was set.
  const MatrixD& block(Index b) const { return columns_[static_cast<std::size_t>(b)]; }

  /// out[c] = similarity of key `from` to key b * kBlock + c, from their cosines [kBlock].
  void similarities(Similarity kind, Index from, Index b, const double* cosines,
                    std::int32_t* out) const;

 private:
  Index d_;
  std::vector<MatrixD> columns_;
  AlignedVector<double> norms_;    // [padded]; 0 for a zero key
  AlignedVector<double> offsets_;  // [padded]; 1/2, or 0 for a zero key: 1 + cos, halved
};

/// f over a fixed ground set M and a growing A. The n x n matrix of similarities is kept where it
/// takes no more than `matrix_bytes` (4 bytes each); beyond, similarities are computed anew from
/// the 8 n d bytes of unit keys whenever they are asked for. Results do not depend on which. Not
/// thread-safe: one object per job.
class FacilityLocation {
 public:
  /// A batch of gains on a device costs about one round trip, up to this many.
  static constexpr Index kDeviceBatch = 256;

  /// M = rows `ground` of `keys`; members are called by their place in `ground`.
  /// Time O(n^2 d / 2) with the matrix, O(n d) without. With `device` not null there is no matrix,
  /// the unit keys move there, and so does all that is asked.
  FacilityLocation(MatrixView keys, std::span<const Index> ground, Similarity kind,
                   Index matrix_bytes, const DeviceHead* device = nullptr);
  ~FacilityLocation();
  FacilityLocation(const FacilityLocation&) = delete;
  FacilityLocation& operator=(const FacilityLocation&) = delete;

  bool has_matrix() const { return !matrix_.empty(); }
  /// Gains that are best asked for at once: without the matrix each batch reads all unit keys, and
  /// below this many rows a batch waits for memory, not for arithmetic.
  Index batch() const {
    if (device_ != nullptr) {
      return kDeviceBatch;
    }
    return has_matrix() ? 1 : 8 * UnitKeys::kRows;
  }

  /// f(M) in units of 1 / kSimilarityOne.
  std::int64_t total() const { return total_; }
  /// f(A).
  std::int64_t value() const { return value_; }
  /// f({u}) for every u. Time O(n^2), without the matrix O(n^2 d / 2).
  std::vector<std::int64_t> singletons();
  /// out[i] = f(A + candidates[i]) - f(A). Time O(n) each, without the matrix O(n d).
  void gains(std::span<const Index> candidates, std::span<std::int64_t> out);
  /// A += u. Time as one gain.
  void add(Index u);

 private:
  template <class Visit>
  void sweep(Visit visit);
  std::int64_t gain_in_block(const std::int32_t* similarities, Index b) const;

  Index n_;
  Similarity kind_;
  UnitKeys units_;
  AlignedVector<std::int32_t> matrix_;  // [padded, padded], or empty
  AlignedVector<std::int32_t> best_;    // [padded]: max over A of sim(v, .)
  std::int64_t total_ = 0;
  std::int64_t value_ = 0;
  MatrixD rows_, cosines_;                  // scratch
  std::unique_ptr<DeviceCoverage> device_;  // null: the CPU
};

/// The retained set S of a stream and each member's nearest neighbour in it. With ground set S
/// every row's maximum is the member's own similarity (equal keys reach it too, none exceeds it),
/// so f(S) - f(S - i) = sim(i, i) - max over u != i of sim(i, u): one number per member.
///
/// Members are called by places 0 .. size()-1; the newest has the last one.
class RetainedKeys {
 public:
  /// Bytes of state per member beside its key: the neighbour's similarity and place.
  static constexpr Index kNeighbourBytes = 8;

  /// With `track` false no neighbours are kept and loss() may not be asked for.
  RetainedKeys(Index capacity, Index d, Similarity kind, bool track);

  Index size() const { return size_; }
  const UnitKeys& units() const { return units_; }

  /// S += key, at place size() - 1. Time O(|S| d).
  void add(std::span<const float> key);
  /// S -= the member at `place`; the newest moves into the hole. Removing the newest right after
  /// its add() takes O(|S|), another member O((1 + r) |S| d), r members having it as neighbour.
  void remove(Index place);

  /// f(S) - f(S - i), in units of 1 / kSimilarityOne.
  std::int64_t loss(Index place) const {
    return self(place) - neighbours_[static_cast<std::size_t>(place)].similarity;
  }
  /// f(S).
  std::int64_t value() const { return value_; }

 private:
  struct Neighbour {
    std::int32_t similarity = 0;
    std::int32_t place = -1;  // of one that attains it; -1 where it is 0, the least there is
  };

  std::int32_t self(Index place) const { return units_.is_zero(place) ? 0 : kSimilarityOne; }
  void find_neighbours(std::span<const Index> places);

  Similarity kind_;
  bool track_;
  Index size_ = 0;
  UnitKeys units_;
  std::int64_t value_ = 0;
  std::vector<Neighbour> neighbours_;
  std::vector<Neighbour> before_;  // neighbours_ before the last add()
  std::vector<Index> orphans_;     // scratch
  MatrixD rows_, cosines_;         // scratch
};

}  // namespace kvbench
