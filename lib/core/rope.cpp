#include "core/rope.hpp"

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
