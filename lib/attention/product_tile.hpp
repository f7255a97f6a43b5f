// The register tile of all products: sums over t = 0, 1, ... by one FMA each, in the element type
// T. Neither the tile's shape nor the instruction set changes a sum.
#pragma once

#include <cmath>

#include "core/isa.hpp"
#include "core/types.hpp"

namespace kvbench {

/// sum[r][c] += left(r, t) * right(t)[c] over t in [0, depth), ascending.
template <class T, Index R, Index C, class Left, class Right>
[[gnu::always_inline]] inline void add_products(const Left& left, const Right& right, Index depth,
                                                T (&sum)[R][C]) {
  for (Index t = 0; t < depth; ++t) {
    const T* columns = right(t);
    for (Index r = 0; r < R; ++r) {
      const T x = left(r, t);
#pragma omp simd
      for (Index c = 0; c < C; ++c) {
        sum[r][c] = std::fma(x, columns[c], sum[r][c]);
      }
    }
  }
}

}  // namespace kvbench
