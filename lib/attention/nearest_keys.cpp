#include "attention/nearest_keys.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "attention/float32_bounds.hpp"
#include "attention/inner_products.hpp"
#include "core/shared_work.hpp"

namespace kvbench {
namespace {

constexpr std::size_t kKeyRows = 256;  // tokens of `from` at a time

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
  const Index d = head.d();
  Matrix keys, keys_t;
  gather_rows(head.k, to, keys);
  transpose(keys, keys_t);
  const std::vector<double> inverse = inverse_norms(head.k, to);
  const std::vector<float> inverse32(inverse.begin(), inverse.end());
  double longest = 0.0;
  double shortest = std::numeric_limits<double>::infinity();
  for (const double x : inverse) {
    longest = x > 0.0 ? std::max(longest, 1.0 / x) : longest;
    shortest = x > 0.0 ? std::min(shortest, 1.0 / x) : shortest;
  }
  std::vector<Index> out(from.size());
  const auto parts = static_cast<Index>((from.size() + kKeyRows - 1) / kKeyRows);
  struct Block {
    Matrix rows, products;
  };
  ScratchPool<Block> scratch;
  share_work(parts, [&](Index part) {
    auto block = scratch.take();
    auto& [rows, products] = *block;
    const std::size_t b = static_cast<std::size_t>(part) * kKeyRows;
    const std::size_t count = std::min(kKeyRows, from.size() - b);
    gather_rows(head.k, from.subspan(b, count), rows);
    inner_products(rows, keys_t, products);
    for (Index r = 0; r < static_cast<Index>(count); ++r) {
      const std::span<const float> row(rows.row(r), static_cast<std::size_t>(d));
      const std::span<float> cosine(products.row(r), to.size());  // times the norm of `row`
#pragma omp simd
      for (std::size_t i = 0; i < cosine.size(); ++i) {
        cosine[i] *= inverse32[i];
      }
      // Beside the chain, the inverse norm and the product with it are rounded.
      const double norm = std::sqrt(squared_norm(row));
      const double error = rounding_of_float32(d, 3) * norm + vanishing(d) * (1.0 + 1.0 / shortest);
      double largest = -std::numeric_limits<double>::infinity();
      Index best = 0;
      visit_at_least(cosine, ruled_out_below(largest_of(cosine), error, norm * (1.0 + longest)),
                     [&](std::size_t i) {
                       const double x =
                           inner_product(row, head.k.view().row_span(to[i])) * inverse[i];
                       if (x > largest) {
                         largest = x;
                         best = static_cast<Index>(i);
                       }
                     });
      out[b + static_cast<std::size_t>(r)] = best;
    }
    scratch.give(std::move(block));
  });
  return out;
}

}  // namespace kvbench
