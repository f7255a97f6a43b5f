// Random rotations, which spread outlier channels over all channels.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/rng.hpp"
#include "core/types.hpp"

namespace kvbench {

enum class RotationKind {
  hadamard,    ///< random signs, then the normalised Hadamard matrix; requires a power of two
  orthogonal,  ///< uniform: the Q of a Gaussian matrix
  none
};

/// An orthogonal [d, d] matrix R, a pure function of the stream.
class Rotation {
 public:
  /// Time O(d) for hadamard, O(d^3) for orthogonal. Throws std::logic_error for a bad d.
  Rotation(RotationKind kind, Index d, const RngStream& stream);

  /// x [d]. Time O(d log d), or O(d^2) for orthogonal.
  void apply(std::span<double> x) const;
  void invert(std::span<double> x) const;

 private:
  RotationKind kind_;
  std::vector<double> signs_;  // [d], hadamard
  MatrixD rows_;               // [d, d], orthogonal
};

/// Multiplies x by the normalised Hadamard matrix in Sylvester's order, which is its own inverse.
/// The length must be a power of two.
void hadamard_transform(std::span<double> x);

inline bool is_power_of_two(Index d) {
  return d > 0 && (d & (d - 1)) == 0;
}

}  // namespace kvbench
