#include "attention/nearest_keys.hpp"

#include <algorithm>
#include <cmath>

#include "attention/inner_products.hpp"

namespace kvbench {
namespace {

constexpr std::size_t kRows = 256;  // tokens of `from` at a time

}  // namespace

std::vector<double> inverse_norms(MatrixView keys, std::span<const Index> tokens) {
  std::vector<double> out;
  out.reserve(tokens.size());
  for (const Index token : tokens) {
    const double square = squared_norm(keys.row_span(token));
    out.push_back(square > 0.0 ? 1.0 / std::sqrt(square) : 0.0);
  }
  return out;
}

std::vector<Index> nearest_keys(const KvHead& head, std::span<const Index> to,
                                std::span<const Index> from) {
  MatrixD keys;
  MatrixD keys_t;
  MatrixD rows;
  MatrixD products;
  gather_rows(head.k, to, keys);
  transpose(keys, keys_t);
  const std::vector<double> inverse = inverse_norms(head.k, to);
  std::vector<Index> out;
  out.reserve(from.size());
  for (std::size_t b = 0; b < from.size(); b += kRows) {
    const std::size_t count = std::min(kRows, from.size() - b);
    gather_rows(head.k, from.subspan(b, count), rows);
    inner_products(rows, keys_t, products);
    for (Index r = 0; r < static_cast<Index>(count); ++r) {
      const double* row = products.row(r);
      std::size_t best = 0;
      for (std::size_t i = 1; i < inverse.size(); ++i) {
        if (row[i] * inverse[i] > row[best] * inverse[best]) {
          best = i;
        }
      }
      out.push_back(static_cast<Index>(best));
    }
  }
  return out;
}

}  // namespace kvbench
