#include "attention/query_block.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "attention/product_tile.hpp"
#include "core/math.hpp"
#include "core/vector_sums.hpp"

namespace kvbench {
namespace {

constexpr Index kVector = 16;  // queries are padded to a multiple of this
static_assert(kQueryBlock % kVector == 0 && kTokenSlab % kMostTileRows == 0);

constexpr Index round_up(Index x, Index to) {
  return (x + to - 1) / to * to;
}

// Calls use(first column, std::integral_constant<columns>) for each panel of `width` columns, a
// multiple of kVector.
template <Index kCols, class Use>
[[gnu::always_inline]] inline void for_panels(Index width, const Use& use) {
  Index c = 0;
  for (; c + kCols <= width; c += kCols) {
    use(c, std::integral_constant<Index, kCols>());
  }
  if constexpr (kCols > kVector) {
    if (c < width) {
      use(c, std::integral_constant<Index, kVector>());
    }
  }
}

// out [kRows, C] of row stride ldo = products of keys (rows) and packed queries [d, C].
template <Index kRows, Index C, class T>
[[gnu::always_inline]] inline void logit_tile(const T* const* keys, const T* packed, Index d,
                                              T* out, Index ldo) {
  T sum[kRows][C] = {};
  add_products([&](Index r, Index t) { return keys[r][t]; },
               [&](Index t) { return packed + t * C; }, d, sum);
  for (Index r = 0; r < kRows; ++r) {
    for (Index c = 0; c < C; ++c) {
      out[r * ldo + c] = sum[r][c];
    }
  }
}

// out [rows, cols] of row stride ldo += products of weights [count, .] of row stride ldw,
// transposed, and values [count, C].
template <Index kRows, Index C, class T>
[[gnu::always_inline]] inline void value_tile(const T* weights, Index ldw, const T* values,
                                              Index count, Index rows, Index cols, double* out,
                                              Index ldo) {
  T sum[kRows][C] = {};
  add_products([&](Index r, Index t) { return weights[t * ldw + r]; },
               [&](Index t) { return values + t * C; }, count, sum);
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < cols; ++c) {
      out[r * ldo + c] += static_cast<double>(sum[r][c]);
    }
  }
}

// Kernels of run_kernel.

// Keys [begin, end) with the queries of a panel, in tiles of R rows, the last ones of two.
template <Index R, Index C, class T>
[[gnu::always_inline]] inline void logit_panel(const T* const* keys, Range rows, const T* packed,
                                               Index d, T* out, Index ldo) {
  Index i = rows.begin;
  for (; i + R <= rows.end; i += R) {
    logit_tile<R, C>(keys + i, packed, d, out + i * ldo, ldo);
  }
  for (; i < rows.end; i += 2) {
    logit_tile<2, C>(keys + i, packed, d, out + i * ldo, ldo);
  }
}

struct Logits {
  // out [count, width] = products of keys, padded to an even number, and packed queries. A chunk of
  // keys stays in the first-level cache while all panels pass.
  template <class Tile, class T>
  [[gnu::always_inline]] static void run(Tile, const T* const* keys, const T* packed, Index width,
                                         Index count, Index d, T* out) {
    constexpr Index kCols = Tile::template kCols<T>;
    constexpr Index kRows = Tile::kLongRows;
    for (Index begin = 0; begin < count; begin += 4 * kRows) {
      const Range rows{begin, std::min(count, begin + 4 * kRows)};
      Index c = 0;
      for (; c + kCols <= width; c += kCols) {
        logit_panel<kRows, kCols>(keys, rows, packed + c * d, d, out + c, width);
      }
      if constexpr (kCols > kVector) {
        if (c < width) {
          logit_panel<kRows, kVector>(keys, rows, packed + c * d, d, out + c, width);
        }
      }
    }
  }
};

struct Largest {
  // shift [width] = the largest of it and of the logits [count, width].
  template <class Tile, class T>
  [[gnu::always_inline]] static void run(Tile, const T* logits, Index count, Index width,
                                         T* shift) {
    for (Index r0 = 0; r0 < width; r0 += kVector) {
      T most[kVector];
      for (Index l = 0; l < kVector; ++l) {
        most[l] = shift[r0 + l];
      }
      for (Index i = 0; i < count; ++i) {
        const T* x = logits + i * width + r0;
#pragma omp simd
        for (Index l = 0; l < kVector; ++l) {
          most[l] = x[l] > most[l] ? x[l] : most[l];
        }
      }
      for (Index l = 0; l < kVector; ++l) {
        shift[r0 + l] = most[l];
      }
    }
  }
};

struct Exponentials {
  // Turns logits [count, width] into weights; adds their sums and squares to total and square.
  template <class Tile, class T>
  [[gnu::always_inline]] static void run(Tile, T* slab, Index count, Index width, const T* shifts,
                                         double* totals, double* squares) {
    for (Index r0 = 0; r0 < width; r0 += kVector) {
      T shift[kVector];
      for (Index l = 0; l < kVector; ++l) {  // -inf - -inf would be NaN
        const T x = shifts[r0 + l];
        shift[l] = x == -std::numeric_limits<T>::infinity() ? T{0} : x;
      }
      double total[kVector] = {};
      double square[kVector] = {};
      for (Index i = 0; i < count; ++i) {
        T* x = slab + i * width + r0;
#pragma omp simd
        for (Index l = 0; l < kVector; ++l) {
          x[l] = exp_shared(x[l] - shift[l]);
          const auto w = static_cast<double>(x[l]);
          total[l] += w;
          square[l] = std::fma(w, w, square[l]);
        }
      }
      for (Index l = 0; l < kVector; ++l) {
        totals[r0 + l] += total[l];
        squares[r0 + l] += square[l];
      }
    }
  }
};

struct AddValues {
  // out [queries, dv] += weights [count, width], transposed, times values [count, dv]. `panel`:
  // scratch for a tile's columns.
  template <class Tile, class T>
  [[gnu::always_inline]] static void run(Tile, const T* slab, Index width, const T* const* rows,
                                         Index count, Index queries, Index dv, T* panel,
                                         double* out) {
    constexpr Index kCols = Tile::template kCols<T>;
    for (Index c0 = 0; c0 < dv; c0 += kCols) {
      // Packed because rows a power of two apart share a few cache sets.
      const Index cols = std::min(kCols, dv - c0);
      for (Index t = 0; t < count; ++t) {
        T* to = panel + t * kCols;
        const T* from = rows[t] + c0;
        if (cols == kCols) {
#pragma omp simd
          for (Index c = 0; c < kCols; ++c) {  // inlined, unlike a copy of `cols` elements
            to[c] = from[c];
          }
        } else {
          std::copy_n(from, cols, to);
        }
      }
      for (Index r = 0; r < queries; r += Tile::kRows) {
        value_tile<Tile::kRows, kCols>(slab + r, width, panel, count,
                                       std::min(Tile::kRows, queries - r), cols, out + r * dv + c0,
                                       dv);
      }
    }
  }
};

struct AddColumns {
  // sums [tokens] += weights [tokens, width] times inverse [width].
  template <class Tile, class T>
  [[gnu::always_inline]] static void run(Tile, const T* weights, Index tokens, Index width,
                                         const double* inverse, double* sums) {
    for (Index i = 0; i < tokens; ++i) {
      const T* row = weights + i * width;
      double lane[kVector] = {};
      for (Index r = 0; r < width; r += kVector) {
#pragma omp simd
        for (Index l = 0; l < kVector; ++l) {
          lane[l] = std::fma(static_cast<double>(row[r + l]), inverse[r + l], lane[l]);
        }
      }
      sums[i] += joined_lanes(lane);
    }
  }
};

struct Notice {
  // noticed [tokens] |= whether a weight of the token exceeds its query's threshold.
  template <class Tile, class T>
  [[gnu::always_inline]] static void run(Tile, const T* weights, Index tokens, Index width,
                                         const double* threshold, std::uint8_t* noticed) {
    for (Index i = 0; i < tokens; ++i) {
      const T* row = weights + i * width;
      int above = 0;
#pragma omp simd reduction(| : above)
      for (Index r = 0; r < width; ++r) {
        above |= static_cast<double>(row[r]) > threshold[r] ? 1 : 0;
      }
      noticed[i] = static_cast<std::uint8_t>(noticed[i] | above);
    }
  }
};

}  // namespace

Index query_block_bytes(Index element, Index queries, Index tokens) {
  return element * round_up(tokens, kMostTileRows) * round_up(queries, kVector);
}

void scaled_query(const KvHead& head, Index g, Index position, double* out) {
  const float* from = head.q[g].row(position - head.q_start());
  for (Index t = 0; t < head.d(); ++t) {
    out[t] = static_cast<double>(from[t]) * head.scale;
  }
}

template <class T>
void QueryBlock<T>::reserve(Index queries, Index tokens) {
  weights_.reserve(round_up(tokens, kMostTileRows) * round_up(queries, kVector));
}

template <class T>
void QueryBlock<T>::pack(const MatrixD& queries, Range which) {
  const Index d = queries.cols();
  queries_ = which.size();
  width_ = round_up(queries_, kVector);
  packed_.assign(width_ * d, T{0});
  const auto pack_panel = [&](Index c0, auto cols) {
    T* panel = packed_.data() + c0 * d;
    for (Index c = 0; c < std::min<Index>(cols, queries_ - c0); ++c) {
      const double* q = queries.row(which.begin + c0 + c);
      for (Index t = 0; t < d; ++t) {
        panel[t * cols + c] = static_cast<T>(q[t]);
      }
    }
  };
  with_tile([&](auto tile) { for_panels<decltype(tile)::template kCols<T>>(width_, pack_panel); });
}

// Pointers to rows [begin, begin + count) of the list, padded to whole tiles with the last.
template <class T>
const T* const* QueryBlock<T>::slab_rows(const RowList& list, Index begin, Index count) {
  const Index width = list.of.cols;
  pointers_.resize(round_up(count, kMostTileRows));
  if constexpr (std::is_same_v<T, float>) {
    for (Index i = 0; i < count; ++i) {
      pointers_[i] = list.of.row(list.row(begin + i));
    }
  } else {
    wide_.resize(count * width);
    for (Index i = 0; i < count; ++i) {
      const float* from = list.of.row(list.row(begin + i));
      std::copy_n(from, width, wide_.data() + i * width);
      pointers_[i] = wide_.data() + i * width;
    }
  }
  std::fill(pointers_.begin() + count, pointers_.end(), pointers_[count - 1]);
  return pointers_.data();
}

// Sets logits of the slab that a query does not see to -inf.
template <class T>
void QueryBlock<T>::mask(Index begin, Index count, std::span<const Range> seen) {
  for (Index r = 0; r < queries_; ++r) {
    const auto hide = [&](Index from, Index to) {
      for (Index i = from; i < to; ++i) {
        weights_[i * width_ + r] = -std::numeric_limits<T>::infinity();
      }
    };
    hide(begin, std::min(begin + count, seen[r].begin));
    hide(std::max(begin, seen[r].end), begin + count);
  }
}

template <class T>
void QueryBlock<T>::attend(const MatrixD& queries, Range which, const RowList& keys,
                           const T* log_weights, std::span<const Range> seen, const RowList* values,
                           double* out, T sink) {
  pack(queries, which);
  const auto [earliest, latest] = std::ranges::minmax(seen, {}, &Range::begin);
  const auto [shortest, farthest] = std::ranges::minmax(seen, {}, &Range::end);
  tokens_ = farthest.end;
  first_ = std::min(earliest.begin, tokens_) / kTokenSlab * kTokenSlab;
  weights_.resize(round_up(tokens_, kMostTileRows) * width_);
  std::fill_n(weights_.begin(), first_ * width_, T{0});
  shift_.fill(sink);
  const Index width = width_;
  for (Index begin = first_; begin < tokens_; begin += kTokenSlab) {
    const Index count = std::min(kTokenSlab, tokens_ - begin);
    T* slab = weights_.data() + begin * width;
    run_kernel<Logits>(slab_rows(keys, begin, count), std::as_const(packed_).data(), width, count,
                       queries.cols(), slab);
    if (log_weights != nullptr) {
      for (Index i = 0; i < count; ++i) {
        const T log_weight = log_weights[begin + i];
#pragma omp simd
        for (Index r = 0; r < width; ++r) {
          slab[i * width + r] += log_weight;
        }
      }
    }
    if (begin < latest.begin || begin + count > shortest.end) {
      mask(begin, count, seen);
    }
    run_kernel<Largest>(static_cast<const T*>(slab), count, width, shift_.data());
  }
  total_.fill(0.0);
  square_.fill(0.0);
  if (sink != -std::numeric_limits<T>::infinity()) {
    std::ranges::transform(shift_, total_.begin(),
                           [&](T shift) { return static_cast<double>(exp_shared(sink - shift)); });
  }
  panel_.resize(kTokenSlab * kMostTileCols<T>);
  for (Index begin = first_; begin < tokens_; begin += kTokenSlab) {
    const Index end = std::min(begin + kTokenSlab, tokens_);
    run_kernel<Exponentials>(weights_.data() + begin * width, end - begin, width,
                             static_cast<const T*>(shift_.data()), total_.data(), square_.data());
    if (values != nullptr) {  // while the weights are in the cache
      add_values(*values, begin, end, out);
    }
  }
}

// out += weights of tokens [begin, end), transposed, times their values.
template <class T>
void QueryBlock<T>::add_values(const RowList& values, Index begin, Index end, double* out) {
  const Index count = end - begin;
  run_kernel<AddValues>(std::as_const(weights_).data() + begin * width_, width_,
                        slab_rows(values, begin, count), count, queries_, values.of.cols,
                        panel_.data(), out);
}

template <class T>
void QueryBlock<T>::attend(const KvHead& head, Index g, std::span<const Index> positions,
                           double* out) {
  MatrixD queries(static_cast<Index>(positions.size()), head.d());
  std::vector<Range> seen;
  for (Index r = 0; r < queries.rows(); ++r) {
    scaled_query(head, g, positions[r], queries.row(r));
    seen.push_back(head.visible(positions[r]));
  }
  const RowList values{head.v, {}, head.n()};
  attend(queries, {0, queries.rows()}, {head.k, {}, head.n()}, nullptr, seen,
         out == nullptr ? nullptr : &values, out, static_cast<T>(sink_logit(head, g)));
}

template <class T>
void QueryBlock<T>::add_columns(double* sums, std::uint8_t* noticed, double threshold) const {
  std::array<double, kQueryBlock> inverse = {};
  std::array<double, kQueryBlock> weight;  // whose probability is `threshold`
  weight.fill(std::numeric_limits<double>::infinity());
  for (Index r = 0; r < queries_; ++r) {
    inverse[r] = total_[r] > 0.0 ? 1.0 / total_[r] : 0.0;
    weight[r] = threshold * total_[r];
  }
  const T* weights = weights_.data() + first_ * width_;
  const Index tokens = tokens_ - first_;
  run_kernel<AddColumns>(weights, tokens, width_, std::as_const(inverse).data(), sums + first_);
  if (noticed != nullptr) {
    run_kernel<Notice>(weights, tokens, width_, std::as_const(weight).data(), noticed + first_);
  }
}

template class QueryBlock<float>;
template class QueryBlock<double>;

}  // namespace kvbench
