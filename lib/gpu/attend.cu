#include <cmath>
#include <limits>

#include "core/math.hpp"
#include "gpu/attend.cuh"
#include "gpu/block.cuh"

namespace kvbench::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
// A block processes a tile in steps of kWidth tokens (or channels of values) and sums in steps of
// kDepth channels (or tokens).
constexpr int kRows = kTileRows;
constexpr int kWidth = 64;
constexpr int kDepth = 32;
// A thread's sums: every kWarps-th row, every kWarp-th column.
constexpr int kWarps = kThreads / kWarp;
constexpr int kOwnRows = kRows / kWarps;
constexpr int kOwnCols = kWidth / kWarp;

template <class T>
using Left = T[kRows][kDepth];
using Right = float[kDepth][kWidth + 1];  // one more column avoids bank conflicts on writes
template <class T>
using OwnSums = T[kOwnRows][kOwnCols];

/// sum += left * right for the thread's columns and the first kCount of its rows, terms in order,
/// one FMA each.
template <int kCount, class T>
__device__ void add_own(const Left<T>& left, const Right& right, OwnSums<T>& sum) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int t = 0; t < kDepth; ++t) {
    KVB_UNROLL
    for (int r = 0; r < kCount; ++r) {
      KVB_UNROLL
      for (int c = 0; c < kOwnCols; ++c) {
        sum[r][c] = std::fma(left[warp + r * kWarps][t], static_cast<T>(right[t][lane + c * kWarp]),
                             sum[r][c]);
      }
    }
  }
}

/// For the tile's first `rows` rows: a stream's step has few.
template <class T>
__device__ void add_products(const Left<T>& left, const Right& right, Index rows, OwnSums<T>& sum) {
  if (rows <= kWarps) {
    add_own<1, T>(left, right, sum);
  } else {
    add_own<kOwnRows, T>(left, right, sum);
  }
}

template <class T, class Put>
__device__ void for_own(const OwnSums<T>& sum, Put put) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  KVB_UNROLL
  for (int r = 0; r < kOwnRows; ++r) {
    KVB_UNROLL
    for (int c = 0; c < kOwnCols; ++c) {
      put(warp + r * kWarps, lane + c * kWarp, sum[r][c]);
    }
  }
}

/// weights = <key, query> + log weight for a tile. queries [rows, d].
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    logits(const Tile* tiles, const Query* queries, const Token* tokens, TokenRows keys,
           const T* scaled, T* weights) {
  __shared__ Left<T> q;
  __shared__ Right k;
  const Tile tile = tiles[blockIdx.x];
  const Query first = queries[tile.query];
  const Index end = first.count < tile.begin + kSlab ? first.count : tile.begin + kSlab;
  const auto thread = static_cast<int>(threadIdx.x);
  for (Index at = tile.begin; at < end; at += kWidth) {
    OwnSums<T> sum = {};
    for (Index t0 = 0; t0 < keys.width; t0 += kDepth) {
      for (int x = thread; x < kRows * kDepth; x += kThreads) {
        const int r = x / kDepth;
        const Index t = t0 + x % kDepth;
        q[r][x % kDepth] =
            r < tile.rows && t < keys.width ? scaled[(tile.query + r) * keys.width + t] : T{0};
      }
      for (int x = thread; x < kWidth * kDepth; x += kThreads) {
        const Index i = at + x / kDepth;
        const Index t = t0 + x % kDepth;
        k[x % kDepth][x / kDepth] =
            i < end && t < keys.width ? keys.at(tokens[first.token + i].row)[t] : 0.0F;
      }
      __syncthreads();
      add_products<T>(q, k, tile.rows, sum);
      __syncthreads();
    }
    for_own<T>(sum, [&](int r, int c, T x) {
      if (r < tile.rows && at + c < end) {
        weights[first.weights + r * first.count + at + c] =
            x + static_cast<T>(tokens[first.token + at + c].log_weight);
      }
    });
  }
}

/// A query's logits become weights, 0 for masked tokens.
template <class T>
__global__ void __launch_bounds__(kThreads)
    softmax(const Query* queries, T* weights, Figures* figures) {
  const Query query = queries[blockIdx.x];
  T* w = weights + query.weights;
  auto shift = static_cast<T>(query.sink);
  for (Index i = query.seen.begin + threadIdx.x; i < query.seen.end; i += kThreads) {
    shift = Max()(shift, w[i]);
  }
  shift = block_reduce<kThreads>(shift, Max());
  double total = 0.0;
  double square = 0.0;
  for (Index i = query.seen.begin + threadIdx.x; i < query.seen.end; i += kThreads) {
    w[i] = exp_shared(w[i] - shift);
    const auto x = static_cast<double>(w[i]);
    total += x;
    square = std::fma(x, x, square);
  }
  total = block_reduce<kThreads>(total, Plus());
  square = block_reduce<kThreads>(square, Plus());
  for (Index i = threadIdx.x; i < query.seen.begin; i += kThreads) {
    w[i] = T{0};
  }
  for (Index i = query.seen.end + threadIdx.x; i < query.count; i += kThreads) {
    w[i] = T{0};
  }
  if (threadIdx.x == 0) {
    if (query.sink != -std::numeric_limits<double>::infinity()) {
      total += static_cast<double>(exp_shared(static_cast<T>(query.sink) - shift));
    }
    figures[blockIdx.x] = {static_cast<double>(shift), total, square};
  }
}

/// partial = sum of weight * value over a tile's slab.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    weigh(const Tile* tiles, const Query* queries, const Token* tokens, TokenRows values,
          const T* weights, T* partial) {
  __shared__ Left<T> w;
  __shared__ Right v;
  const Tile tile = tiles[blockIdx.x];
  const Query first = queries[tile.query];
  if (first.slabs == 0) {
    return;
  }
  const Index end = first.count < tile.begin + kSlab ? first.count : tile.begin + kSlab;
  const auto thread = static_cast<int>(threadIdx.x);
  for (Index c0 = 0; c0 < values.width; c0 += kWidth) {
    OwnSums<T> sum = {};
    for (Index at = tile.begin; at < end; at += kDepth) {
      for (int x = thread; x < kRows * kDepth; x += kThreads) {
        const int r = x / kDepth;
        const Index i = at + x % kDepth;
        w[r][x % kDepth] =
            r < tile.rows && i < end ? weights[first.weights + r * first.count + i] : T{0};
      }
      for (int x = thread; x < kDepth * kWidth; x += kThreads) {
        const Index i = at + x / kWidth;
        const Index c = c0 + x % kWidth;
        v[x / kWidth][x % kWidth] =
            i < end && c < values.width ? values.at(tokens[first.token + i].row)[c] : 0.0F;
      }
      __syncthreads();
      add_products<T>(w, v, tile.rows, sum);
      __syncthreads();
    }
    for_own<T>(sum, [&](int r, int c, T x) {
      if (r < tile.rows && c0 + c < values.width) {
        const Index slab = first.partial + r * first.slabs + tile.begin / kSlab;
        partial[slab * values.width + c0 + c] = x;
      }
    });
  }
}

/// numerators [queries, dv]: partial sums added in the order of slabs.
template <class T>
__global__ void add_slabs(const Query* queries, Index count, Index dv, const T* partial,
                          double* numerators) {
  const Index at = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (at < count * dv) {
    const Query query = queries[at / dv];
    double sum = 0.0;
    for (Index s = query.seen.begin / kSlab; s < query.slabs && s * kSlab < query.seen.end; ++s) {
      sum += static_cast<double>(partial[(query.partial + s) * dv + at % dv]);
    }
    numerators[at] = sum;
  }
}

}  // namespace

void QueryPlan::add(Index token, Index count, std::span<const Range> seen, bool values,
                    double sink) {
  const auto before = static_cast<Index>(queries.size());
  const auto rows = static_cast<Index>(seen.size());
  for (Index r = 0; r < rows; r += kTileRows) {
    const Index in_tile = std::min<Index>(kTileRows, rows - r);
    const std::span<const Range> rows_seen = seen.subspan(r, in_tile);
    const Index end = std::ranges::max(rows_seen, {}, &Range::end).end;
    const Index first = std::ranges::min(rows_seen, {}, &Range::begin).begin / kSlab * kSlab;
    for (Index begin = first; begin < end; begin += kSlab) {
      tiles.push_back({before + r, in_tile, begin});
    }
  }
  const Index slabs = values ? slabs_of(count) : 0;
  for (const Range s : seen) {
    queries.push_back({token, count, s, weights, slabs, partials, sink});
    weights += count;
    partials += slabs;
  }
}

template <class T>
Attended<T> attend(const Device& device, const QueryPlan& plan, const Array<Token>& tokens,
                   TokenRows keys, TokenRows values, const Array<T>& scaled) {
  const auto count = static_cast<Index>(plan.queries.size());
  const auto tile_count = static_cast<Index>(plan.tiles.size());
  const Array<Query> queries(device, std::span(plan.queries));
  const Array<Tile> tiles(device, std::span(plan.tiles));
  Attended<T> out{{device, plan.weights}, {device, count}, {}};
  device.launch(logits<T>, tile_count, kThreads, tiles.data(), queries.data(), tokens.data(), keys,
                scaled.data(), out.weights.data());
  device.launch(softmax<T>, count, kThreads, queries.data(), out.weights.data(),
                out.figures.data());
  if (plan.partials > 0) {
    const Array<T> partial(device, plan.partials * values.width);
    out.numerators = {device, count * values.width};
    device.launch(weigh<T>, tile_count, kThreads, tiles.data(), queries.data(), tokens.data(),
                  values, out.weights.data(), partial.data());
    device.launch(add_slabs<T>, ceil_div(count * values.width, kThreads), kThreads, queries.data(),
                  count, values.width, partial.data(), out.numerators.data());
  }
  return out;
}

template Attended<float> attend(const Device&, const QueryPlan&, const Array<Token>&, TokenRows,
                                TokenRows, const Array<float>&);
template Attended<double> attend(const Device&, const QueryPlan&, const Array<Token>&, TokenRows,
                                 TokenRows, const Array<double>&);

}  // namespace kvbench::gpu
