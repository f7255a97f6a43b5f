// Block kernels that make operands of tile products (core/tile_product.hpp): halves in tiles, from
// rows or from channels, and the facts by which they are scaled. Bytes: what is read, and 2 or 4
// per element written.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/dense_kernels.hpp"
#include "core/machine.hpp"
#include "core/tile_product.hpp"

namespace kvbench::fast {

using dense::least;
using dense::pieces;

/// Rows of packed operands are padded to a multiple of this, so that a block of four warps with 32
/// rows each never reads past the end.
inline constexpr Index kRowUnit = 128;

KVB_HD constexpr Index padded_rows(Index rows) {
  return pieces(rows, kRowUnit) * kRowUnit;
}

/// Halves of a packed operand of so many rows and channels, per plane.
KVB_HD constexpr Index packed_size(Index rows, Index d) {
  return padded_rows(rows) * pieces(d, kTileSide) * kTileSide;
}

/// The largest magnitude of some elements, as bits (which order as their values do), and whether
/// one has more than 11 significant bits.
struct OperandFacts {
  std::uint32_t most_bits;
  std::uint32_t wide;
};

/// Facts of every piece of an array: one block each.
struct FindFacts {
  static constexpr int kThreads = 256;
  static constexpr Index kPiece = 64 * kThreads;
  struct Shared {
    OperandFacts facts[kThreads];
  };

  const float* in;  // [count]
  Index count;
  OperandFacts* out;  // [blocks]

  Index blocks() const { return pieces(count, kPiece); }
  KVB_HD int phases(Index) const { return 2; }

  KVB_HD static void join(OperandFacts& to, const OperandFacts& from) {
    to.most_bits = to.most_bits < from.most_bits ? from.most_bits : to.most_bits;
    to.wide |= from.wide;
  }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    OperandFacts facts{0, 0};
    if (phase == 0) {
      const Index end = least(count, (block + 1) * kPiece);
      for (Index i = block * kPiece + thread; i < end; i += kThreads) {
        join(facts,
             {std::bit_cast<std::uint32_t>(in[i]) & 0x7fffffffU, fits_half(in[i]) ? 0U : 1U});
      }
      shared.facts[thread] = facts;
    } else if (thread == 0) {
      for (int i = 0; i < kThreads; ++i) {
        join(facts, shared.facts[i]);
      }
      out[block] = facts;
    }
  }
};

/// How an array on the machine is made halves. Waits.
template <class M>
HalfScale half_scale_of(M& machine, const Array<float, M>& x) {
  const FindFacts kernel{x.data(), x.size(), nullptr};
  std::vector<OperandFacts> facts(static_cast<std::size_t>(kernel.blocks()));
  OperandFacts all{0, 0};
  if (!facts.empty()) {
    const Array<OperandFacts, M> there(machine, kernel.blocks());
    machine.launch(FindFacts{x.data(), x.size(), there.data()}, kernel.blocks());
    there.get(facts);
  }
  for (const OperandFacts& f : facts) {
    FindFacts::join(all, f);
  }
  return half_scale(static_cast<double>(std::bit_cast<float>(all.most_bits)), all.wide != 0);
}

/// The same of numbers on the host.
template <class Real>
HalfScale half_scale_of(std::span<const Real> x) {
  double most = 0.0;
  bool wide = false;
  for (const Real value : x) {
    most = std::max(most, std::abs(static_cast<double>(value)));
    const auto narrow = static_cast<float>(value);
    wide = wide || static_cast<Real>(narrow) != value || !fits_half(narrow);
  }
  return half_scale(most, wide);
}

/// Rows of a row-major matrix as an operand. A block per tile.
template <class In>
struct PackRows {
  static constexpr int kThreads = kTileSize;
  struct Shared {};

  const In* in;       // [., d]
  const Index* rows;  // [count]; null: 0, 1, ...
  Index count, d;
  double scale;       // S
  std::uint16_t* hi;  // packed, padded_rows(count) rows
  std::uint16_t* lo;  // the same; null: none

  KVB_HD Index depth_tiles() const { return pieces(d, kTileSide); }
  Index blocks() const { return pieces(count, kRowUnit) * (kRowUnit / kTileSide) * depth_tiles(); }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index i = block / depth_tiles() * kTileSide + thread / kTileSide;
    const Index t = block % depth_tiles() * kTileSide + thread % kTileSide;
    double x = 0.0;
    if (i < count && t < d) {
      x = static_cast<double>(in[(rows == nullptr ? i : rows[i]) * d + t]) * scale;
    }
    const SplitHalf split = split_half(x);
    const Index at = block * kTileSize + thread;
    hi[at] = split.hi;
    if (lo != nullptr) {
      lo[at] = split.lo;
    }
  }
};

/// Blocks of columns, channels outermost, as one operand of groups x stride rows. A block per tile.
struct PackChannels {
  static constexpr int kThreads = kTileSize;
  struct Shared {};

  const double* in;         // [groups, d, stride]
  Index groups, stride, d;  // stride: a multiple of 16
  double scale;             // S
  std::uint16_t* hi;        // packed, padded_rows(groups stride) rows
  std::uint16_t* lo;        // the same; null: none

  KVB_HD Index depth_tiles() const { return pieces(d, kTileSide); }
  Index blocks() const {
    return pieces(groups * stride, kRowUnit) * (kRowUnit / kTileSide) * depth_tiles();
  }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    // Neighbouring threads read neighbouring columns.
    const int r = thread % kTileSide;
    const int c = thread / kTileSide;
    const Index i = block / depth_tiles() * kTileSide + r;
    const Index t = block % depth_tiles() * kTileSide + c;
    double x = 0.0;
    if (i < groups * stride && t < d) {
      x = in[(i / stride * d + t) * stride + i % stride] * scale;
    }
    const SplitHalf split = split_half(x);
    const Index at = block * kTileSize + r * kTileSide + c;
    hi[at] = split.hi;
    if (lo != nullptr) {
      lo[at] = split.lo;
    }
  }
};

/// An operand in a machine's memory.
template <class M>
class Packed {
 public:
  Packed() = default;
  /// Room for `rows` rows; `scale` says whether lo is kept.
  Packed(M& machine, Index rows, Index d, HalfScale scale)
      : scale_(scale),
        d_(d),
        hi_(machine, packed_size(rows, d)),
        lo_(machine, scale.split ? packed_size(rows, d) : 0) {}

  const HalfScale& scale() const { return scale_; }
  double factor() const { return std::ldexp(1.0, scale_.exponent); }
  std::uint16_t* hi() const { return hi_.data(); }
  std::uint16_t* lo() const { return scale_.split ? lo_.data() : nullptr; }
  SplitRows view() const { return {hi(), lo(), pieces(d_, kTileSide)}; }

  /// Rows `rows` (null: 0, 1, ...) of `in`, on the machine.
  template <class In>
  void pack(M& machine, const In* in, const Index* rows, Index count) {
    const PackRows<In> kernel{in, rows, count, d_, factor(), hi(), lo()};
    if (kernel.blocks() > 0) {
      machine.launch(kernel, kernel.blocks());
    }
  }

  void pack_channels(M& machine, const double* in, Index groups, Index stride) {
    const PackChannels kernel{in, groups, stride, d_, factor(), hi(), lo()};
    if (kernel.blocks() > 0) {
      machine.launch(kernel, kernel.blocks());
    }
  }

 private:
  HalfScale scale_;
  Index d_ = 0;
  Array<std::uint16_t, M> hi_;
  Array<std::uint16_t, M> lo_;
};

}  // namespace kvbench::fast
