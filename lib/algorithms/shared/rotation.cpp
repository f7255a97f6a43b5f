#include "algorithms/shared/rotation.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "core/vector_sums.hpp"

namespace kvbench {
namespace {

// Gram-Schmidt on a Gaussian matrix, each row orthogonalised twice.
MatrixD orthonormal(Index d, const RngStream& stream) {
  MatrixD out(d, d);
  for (Index i = 0; i < d; ++i) {
    double* row = out.row(i);
    for (Index c = 0; c < d; ++c) {
      row[c] = stream.normal(static_cast<std::uint64_t>(i * d + c));
    }
    for (int round = 0; round < 2; ++round) {
      for (Index j = 0; j < i; ++j) {
        add(-dot(row, out.row(j), d), out.row(j), d, row);
      }
    }
    const double norm = std::sqrt(dot(row, row, d));
    for (Index c = 0; c < d; ++c) {
      row[c] /= norm;
    }
  }
  return out;
}

}  // namespace

void hadamard_transform(std::span<double> x) {
  for (std::size_t half = 1; half < x.size(); half *= 2) {
    for (std::size_t block = 0; block < x.size(); block += 2 * half) {
      for (std::size_t i = block; i < block + half; ++i) {
        const double a = x[i];
        const double b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const double norm = 1.0 / std::sqrt(static_cast<double>(x.size()));
  for (double& value : x) {
    value *= norm;
  }
}

Rotation::Rotation(RotationKind kind, Index d, const RngStream& stream) : kind_(kind) {
  if (kind == RotationKind::hadamard) {
    if (!is_power_of_two(d)) {
      throw std::logic_error("Hadamard rotation: the width must be a power of two");
    }
    for (Index c = 0; c < d; ++c) {
      signs_.push_back(stream.uniform(static_cast<std::uint64_t>(c)) < 0.5 ? -1.0 : 1.0);
    }
  } else if (kind == RotationKind::orthogonal) {
    rows_ = orthonormal(d, stream);
  }
}

void Rotation::apply(std::span<double> x) const {
  if (kind_ == RotationKind::hadamard) {
    for (std::size_t c = 0; c < x.size(); ++c) {
      x[c] *= signs_[c];
    }
    hadamard_transform(x);
  } else if (kind_ == RotationKind::orthogonal) {
    const std::vector<double> from(x.begin(), x.end());
    for (Index i = 0; i < rows_.rows(); ++i) {
      x[i] = dot(rows_.row(i), from.data(), rows_.cols());
    }
  }
}

void Rotation::invert(std::span<double> x) const {
  if (kind_ == RotationKind::hadamard) {
    hadamard_transform(x);
    for (std::size_t c = 0; c < x.size(); ++c) {
      x[c] *= signs_[c];
    }
  } else if (kind_ == RotationKind::orthogonal) {
    const std::vector<double> from(x.begin(), x.end());
    std::ranges::fill(x, 0.0);
    for (Index i = 0; i < rows_.rows(); ++i) {
      add(from[i], rows_.row(i), rows_.cols(), x.data());
    }
  }
}

}  // namespace kvbench
