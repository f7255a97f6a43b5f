// Rotated codes by their definition: matrices written out, sums on grids, one number at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reference/reference.hpp"

namespace reference {

/// Distance of the angles that the next two sum over.
double grid_step(std::int64_t d);

/// Means of the cells between `cuts` of a coordinate of a uniform unit vector in d dimensions.
std::vector<double> cell_means(const std::vector<double>& cuts, std::int64_t d);

/// Mean squared distance of such a coordinate to the nearest of `levels`.
double distortion(const std::vector<double>& levels, std::int64_t d);

/// The normalised Hadamard matrix times diag(signs).
Rows hadamard(const std::vector<double>& signs);

struct RotatedRows {
  Rows rows;                                 // read back
  std::vector<std::vector<unsigned>> codes;  // of each row's coordinates
};

/// x = mean + |y| u with u coded as R' nearest(R u): `rotation` R [d, d]; `levels` of the codebook,
/// none for 0 bits; `mean` [d]; `unit`: the coded direction is rescaled.
RotatedRows rotated_rows(const Rows& x, const Rows& rotation, const std::vector<double>& levels,
                         const Vec& mean, bool unit);

/// y + |r| sqrt(pi/2)/d S' sign(S r) for r = x - y, row by row; `sketch` S [d, d].
Rows with_signs(const Rows& x, const Rows& y, const Rows& sketch);

/// Codes of `bits` bits each, one after another from the low bit on.
std::vector<std::uint8_t> packed(const std::vector<std::vector<unsigned>>& codes, int bits);

}  // namespace reference
