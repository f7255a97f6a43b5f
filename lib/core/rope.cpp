#include "core/rope.hpp"

#include <cmath>
#include <numbers>

namespace kvbench {
namespace {

template <class Turn>
void each_pair(const RopeTables& tables, Index position, const Turn& turn) {
  const float* cos = tables.cos.row(position);
  const float* sin = tables.sin.row(position);
  for (Index t = 0; t < tables.cos.cols(); ++t) {
    turn(static_cast<std::size_t>(tables.first(t)), static_cast<std::size_t>(tables.second(t)),
         static_cast<double>(cos[t]), static_cast<double>(sin[t]));
  }
}

}  // namespace

void unrotate(const RopeTables& tables, Index position, std::span<const float> row,
              std::span<double> out) {
  for (std::size_t c = 0; c < row.size(); ++c) {
    out[c] = static_cast<double>(row[c]);
  }
  each_pair(tables, position, [&](std::size_t a, std::size_t b, double c, double s) {
    const double x = out[a];
    const double y = out[b];
    const double square = c * c + s * s;
    out[a] = (c * x + s * y) / square;
    out[b] = (c * y - s * x) / square;
  });
}

std::vector<std::complex<double>> unrotated_pairs(const RopeTables& tables, Index position,
                                                  std::span<const float> row) {
  std::vector<std::complex<double>> out(static_cast<std::size_t>(tables.cos.cols()));
  auto pair = out.begin();
  each_pair(tables, position, [&](std::size_t a, std::size_t b, double c, double s) {
    *pair++ = std::complex(static_cast<double>(row[a]), static_cast<double>(row[b])) *
              std::complex(c, -s) / (c * c + s * s);
  });
  return out;
}

std::vector<double> frequencies(const RopeTables& tables) {
  std::vector<double> out(static_cast<std::size_t>(tables.cos.cols()), 0.0);
  for (Index p = 1; p < tables.positions(); p *= 2) {
    auto w = out.begin();
    each_pair(tables, p, [&](std::size_t, std::size_t, double c, double s) {
      const auto at = static_cast<double>(p);
      *w += std::remainder(std::atan2(s, c) - *w * at, 2.0 * std::numbers::pi) / at;
      ++w;
    });
  }
  return out;
}

void rotate(const RopeTables& tables, Index position, std::span<const double> row,
            std::span<float> out) {
  for (std::size_t c = 0; c < row.size(); ++c) {
    out[c] = static_cast<float>(row[c]);
  }
  each_pair(tables, position, [&](std::size_t a, std::size_t b, double c, double s) {
    out[a] = static_cast<float>(c * row[a] - s * row[b]);
    out[b] = static_cast<float>(s * row[a] + c * row[b]);
  });
}

}  // namespace kvbench
