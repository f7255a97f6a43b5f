#include "algorithms/shared/rotated_codes.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "algorithms/shared/lloyd_max.hpp"
#include "core/float16.hpp"
#include "core/vector_sums.hpp"

namespace kvbench {
namespace {

constexpr Index kNormBytes = 2;

double half(double norm) {
  return static_cast<double>(
      half_to_float(float_to_half(std::min(static_cast<float>(norm), 65504.0F))));
}

double norm_of(std::span<const double> x) {
  return std::sqrt(dot(x.data(), x.data(), static_cast<Index>(x.size())));
}

std::vector<double> mean_of(MatrixView x, DType dtype) {
  std::vector<double> out(x.cols, 0.0);
  for (Index i = 0; i < x.rows; ++i) {
    for (Index c = 0; c < x.cols; ++c) {
      out[c] += static_cast<double>(x.row(i)[c]);
    }
  }
  for (double& value : out) {
    value = static_cast<double>(stored(dtype, value / static_cast<double>(x.rows)));
  }
  return out;
}

class Sketch {
 public:
  Sketch(Index d, const RngStream& stream) : s_(d, d) {
    for (Index i = 0; i < d * d; ++i) {
      s_.data()[i] = stream.normal(static_cast<std::uint64_t>(i));
    }
  }

  // r = exact - y.
  void add_residual(std::span<const double> exact, std::span<double> y) const {
    const Index d = s_.rows();
    std::vector<double> r(exact.begin(), exact.end());
    add(-1.0, y.data(), d, r.data());
    const double length = half(norm_of(r));
    const double factor = length * std::sqrt(std::numbers::pi / 2.0) / static_cast<double>(d);
    for (Index i = 0; i < d; ++i) {
      const double sign = dot(s_.row(i), r.data(), d) < 0.0 ? -1.0 : 1.0;
      add(factor * sign, s_.row(i), d, y.data());
    }
  }

 private:
  MatrixD s_;
};

}  // namespace

CodeBytes rotated_bytes(const RotatedFormat& format, Index rows, Index width, Index element_bytes) {
  if (rows == 0) {
    return {};
  }
  const bool normed = !format.signs || format.bits > 1;
  return {(rows * width * format.bits + 7) / 8,
          rows * kNormBytes * ((normed ? 1 : 0) + (format.signs ? 1 : 0)) +
              (format.centred ? width * element_bytes : 0)};
}

Matrix rotated_codes(Matrix x, const RotatedFormat& format, DType dtype, const RngStream& rotation,
                     const RngStream& sketch) {
  const Index d = x.cols();
  const int bits = format.bits - (format.signs ? 1 : 0);
  const Codebook* book = bits > 0 ? &unit_codebook(bits, d) : nullptr;
  const Rotation turn(format.rotation, d, rotation);
  const std::optional<Sketch> signs =
      format.signs ? std::optional<Sketch>({d, sketch}) : std::nullopt;
  const std::vector<double> mean =
      format.centred && x.rows() > 0 ? mean_of(x, dtype) : std::vector<double>(d, 0.0);
  std::vector<double> exact(d);
  std::vector<double> y(d);
  for (Index i = 0; i < x.rows(); ++i) {
    for (Index c = 0; c < d; ++c) {
      exact[c] = static_cast<double>(x.row(i)[c]) - mean[c];
    }
    const double norm = norm_of(exact);
    std::ranges::fill(y, 0.0);
    if (book != nullptr && norm > 0.0) {
      for (Index c = 0; c < d; ++c) {
        y[c] = exact[c] / norm;
      }
      turn.apply(y);
      for (double& value : y) {
        value = book->nearest(value);
      }
      turn.invert(y);
      const double length = half(norm) / (format.unit_norm ? norm_of(y) : 1.0);
      for (double& value : y) {
        value *= length;
      }
    }
    if (signs) {
      signs->add_residual(exact, y);
    }
    for (Index c = 0; c < d; ++c) {
      x.row(i)[c] = static_cast<float>(mean[c] + y[c]);
    }
  }
  return x;
}

}  // namespace kvbench
