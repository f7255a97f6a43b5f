// Rotated codes by their definition: matrices written out, sums on grids, one number at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reference/quantize.hpp"

namespace reference {

struct RotatedRows {
  Rows rows;                                 // read back
  std::vector<std::vector<unsigned>> codes;  // of each row's coordinates
};

inline constexpr std::int64_t kSteps = 400000;

// The law is within 12 standard deviations but for 1e-30.
inline double grid_end(std::int64_t d) {
  return std::min(std::acos(-1.0) / 2, 12.0 / std::sqrt(static_cast<double>(d)));
}

/// Distance of the angles that cell_means and distortion sum over.
inline double grid_step(std::int64_t d) {
  return 2 * grid_end(d) / static_cast<double>(kSteps);
}

// Calls use(x, weight) on a fine grid of angles, x = sin(angle), weight = cos(angle)^(d - 2).
template <class Use>
void on_grid(std::int64_t d, const Use& use) {
  for (std::int64_t i = 0; i < kSteps; ++i) {
    const double angle = -grid_end(d) + grid_step(d) * (static_cast<double>(i) + 0.5);
    use(std::sin(angle), std::pow(std::cos(angle), static_cast<double>(d - 2)));
  }
}

/// Means of the cells between `cuts` of a coordinate of a uniform unit vector in d dimensions.
inline std::vector<double> cell_means(const std::vector<double>& cuts, std::int64_t d) {
  std::vector<double> sums(cuts.size() + 1, 0.0);
  std::vector<double> mass(cuts.size() + 1, 0.0);
  std::size_t cell = 0;
  on_grid(d, [&](double x, double weight) {
    while (cell < cuts.size() && x > cuts[cell]) {
      ++cell;
    }
    sums[cell] += x * weight;
    mass[cell] += weight;
  });
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] /= mass[i];
  }
  return sums;
}

/// Mean squared distance of such a coordinate to the nearest of `levels`.
inline double distortion(const std::vector<double>& levels, std::int64_t d) {
  double sum = 0.0;
  double mass = 0.0;
  on_grid(d, [&](double x, double weight) {
    double best = std::abs(levels[0] - x);
    for (const double level : levels) {
      best = std::min(best, std::abs(level - x));
    }
    sum += weight * best * best;
    mass += weight;
  });
  return sum / mass;
}

/// The normalised Hadamard matrix times diag(signs).
inline Rows hadamard(const std::vector<double>& signs) {
  const std::size_t d = signs.size();
  Rows out(d, Vec(d, 0));
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = 0; j < d; ++j) {
      const int sign = __builtin_popcountll(i & j) % 2 == 0 ? 1 : -1;
      out[i][j] =
          static_cast<Real>(sign) * static_cast<Real>(signs[j]) / std::sqrt(static_cast<Real>(d));
    }
  }
  return out;
}

/// x = mean + |y| u with u coded as R' nearest(R u): `rotation` R [d, d]; `levels` of the codebook,
/// none for 0 bits; `mean` [d]; `unit`: the coded direction is rescaled.
inline RotatedRows rotated_rows(const Rows& x, const Rows& rotation,
                                const std::vector<double>& levels, const Vec& mean, bool unit) {
  RotatedRows out;
  const std::size_t d = mean.size();
  for (const Vec& row : x) {
    Vec y(d, 0);
    Real square = 0;
    for (std::size_t c = 0; c < d; ++c) {
      y[c] = row[c] - mean[c];
      square += y[c] * y[c];
    }
    const Real norm = std::sqrt(square);
    Vec coded(d, 0);
    std::vector<unsigned> codes(d, 0);
    for (std::size_t i = 0; i < d && !levels.empty() && norm > 0; ++i) {
      Real turned = 0;
      for (std::size_t c = 0; c < d; ++c) {
        turned += rotation[i][c] * y[c] / norm;
      }
      for (std::size_t l = 1; l < levels.size(); ++l) {
        if (std::abs(static_cast<Real>(levels[l]) - turned) <
            std::abs(static_cast<Real>(levels[codes[i]]) - turned)) {
          codes[i] = static_cast<unsigned>(l);
        }
      }
      for (std::size_t c = 0; c < d; ++c) {
        coded[c] += rotation[i][c] * static_cast<Real>(levels[codes[i]]);
      }
    }
    Real length = 0;
    for (const Real value : coded) {
      length += value * value;
    }
    for (std::size_t c = 0; c < d; ++c) {
      const Real scale = half(norm) / (unit && length > 0 ? std::sqrt(length) : Real{1});
      coded[c] = mean[c] + coded[c] * scale;
    }
    out.rows.push_back(coded);
    out.codes.push_back(codes);
  }
  return out;
}

/// y + |r| sqrt(pi/2)/d S' sign(S r) for r = x - y, row by row; `sketch` S [d, d].
inline Rows with_signs(const Rows& x, const Rows& y, const Rows& sketch) {
  Rows out = y;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t d = x[i].size();
    Real square = 0;
    for (std::size_t c = 0; c < d; ++c) {
      square += (x[i][c] - y[i][c]) * (x[i][c] - y[i][c]);
    }
    const Real factor =
        half(std::sqrt(square)) * std::sqrt(std::acos(Real{-1}) / 2) / static_cast<Real>(d);
    for (const Vec& s : sketch) {
      Real sum = 0;
      for (std::size_t c = 0; c < d; ++c) {
        sum += s[c] * (x[i][c] - y[i][c]);
      }
      for (std::size_t c = 0; c < d; ++c) {
        out[i][c] += (sum < 0 ? -factor : factor) * s[c];
      }
    }
  }
  return out;
}

/// Codes of `bits` bits each, one after another from the low bit on.
inline std::vector<std::uint8_t> packed(const std::vector<std::vector<unsigned>>& codes, int bits) {
  std::vector<std::uint8_t> out;
  std::size_t at = 0;
  for (const std::vector<unsigned>& row : codes) {
    for (const unsigned code : row) {
      for (int b = 0; b < bits; ++b, ++at) {
        if (at % 8 == 0) {
          out.push_back(0);
        }
        out.back() = static_cast<std::uint8_t>(out.back() | (((code >> b) & 1U) << (at % 8)));
      }
    }
  }
  return out;
}

}  // namespace reference
