// Rotary position embedding (Su et al., "RoFormer", 2021, arXiv:2104.09864) with the tables that
// the model computed, so that scaled variants need no formula here.
#pragma once

#include <complex>
#include <cstdint>
#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// The two channels of pair t of rope_dim / 2.
enum class RopeLayout : std::uint8_t {
  half,         ///< t and t + rope_dim / 2 (Llama as Hugging Face has it)
  interleaved,  ///< 2 t and 2 t + 1 (GPT-J, Cohere)
};

/// cos and sin by position. Channels from rope_dim on are not rotated. Entries may include an
/// attention factor (yarn), so cos^2 + sin^2 need not be 1.
struct RopeTables {
  Matrix cos;  ///< [positions, rope_dim / 2]
  Matrix sin;  ///< [positions, rope_dim / 2]
  RopeLayout layout = RopeLayout::half;

  Index positions() const { return cos.rows(); }
  Index dim() const { return 2 * cos.cols(); }

  /// The two channels of pair t.
  Index first(Index t) const { return layout == RopeLayout::half ? t : 2 * t; }
  Index second(Index t) const { return layout == RopeLayout::half ? t + cos.cols() : 2 * t + 1; }
};

/// Inverts the rotation at `position`, divided by cos^2 + sin^2. `row` and `out` [d], d >=
/// tables.dim(); 0 <= position < tables.positions(). float64.
void unrotate(const RopeTables& tables, Index position, std::span<const float> row,
              std::span<double> out);

/// The same by pair: channel `first` is the real part, `second` the imaginary one.
std::vector<std::complex<double>> unrotated_pairs(const RopeTables& tables, Index position,
                                                  std::span<const float> row);

/// Radians per position of each pair, from the tables' angles at positions 1, 2, 4, ...: each
/// halves the error that float32 leaves. float64.
std::vector<double> frequencies(const RopeTables& tables);

/// Rotates `row` [d] at `position`, rounded to float32.
void rotate(const RopeTables& tables, Index position, std::span<const double> row,
            std::span<float> out);

}  // namespace kvbench
