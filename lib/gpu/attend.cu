#include <cmath>
#include <limits>

#include "core/math.hpp"
#include "gpu/attend.cuh"
#include "gpu/block.cuh"
#include "gpu/products.cuh"

namespace kvbench::gpu {
namespace {

constexpr int kThreads = 256;
/// weights = <key, query> + log weight for a tile. queries [rows, d].
template <class T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<T>)
    logits(const Tile* tiles, const Query* queries, const Token* tokens, RowTable keys,
           const T* scaled, T* weights) {
  const Tile tile = tiles[blockIdx.x];
  const Query first = queries[tile.query];
  const Index end = first.count < tile.begin + kSlab ? first.count : tile.begin + kSlab;
  const auto q = along_sum<T, LeftSide>(keys.width, [&](int r) {
    return r < tile.rows ? scaled + (first.scaled + r) * keys.width : nullptr;
  });
  for (Index at = tile.begin; at < end; at += kTileColumns<T>) {
    const Token* list = tokens + first.token + at;
    const auto k = along_sum<T, RightSide>(
        keys.width, [&](int i) { return at + i < end ? keys.at(list[i].row) : nullptr; });
    OwnSums<T> sum;
    tile_products<T>(keys.width, q, k, sum, tile.rows);
    KVB_UNROLL
    for (int c = 0; c < kOwnColumns<T>; ++c) {
      const int i = tile_column(c);
      const T log_weight = at + i < end ? static_cast<T>(list[i].log_weight) : T{0};
      KVB_UNROLL
      for (int r = 0; r < kTileOwn; ++r) {
        if (tile_row(r) < tile.rows && at + i < end) {
          weights[first.weights + tile_row(r) * first.count + at + i] = sum[r][c] + log_weight;
        }
      }
    }
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
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<T>)
    weigh(const Tile* tiles, const Query* queries, const Token* tokens, RowTable values,
          const T* weights, T* partial) {
  __shared__ const float* rows[kSlab];
  const Tile tile = tiles[blockIdx.x];
  const Query first = queries[tile.query];
  if (first.slabs == 0) {
    return;
  }
  const Index rest = first.count - tile.begin;
  const Index count = rest < kSlab ? rest : kSlab;
  for (Index i = threadIdx.x; i < count; i += kTileThreads) {
    rows[i] = values.at(tokens[first.token + tile.begin + i].row);
  }
  __syncthreads();
  const auto w = along_sum<T, LeftSide>(count, [&](int r) {
    return r < tile.rows ? weights + first.weights + r * first.count + tile.begin : nullptr;
  });
  for (Index c0 = 0; c0 < values.width; c0 += kTileColumns<T>) {
    const auto v = across_sum<T, RightSide>(count, values.width - c0,
                                            [&, c0](Index i) { return rows[i] + c0; });
    OwnSums<T> sum;
    tile_products<T>(count, w, v, sum, tile.rows);
    KVB_UNROLL
    for (int r = 0; r < kTileOwn; ++r) {
      const Index slab = first.partial + tile_row(r) * first.slabs + tile.begin / kSlab;
      KVB_UNROLL
      for (int c = 0; c < kOwnColumns<T>; ++c) {
        if (tile_row(r) < tile.rows && c0 + tile_column(c) < values.width) {
          partial[slab * values.width + c0 + tile_column(c)] = sum[r][c];
        }
      }
    }
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

void QueryPlan::add(Index scaled, Index token, Index count, std::span<const Range> seen,
                    bool values, double sink) {
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
    queries.push_back({scaled++, token, count, s, weights, slabs, partials, sink});
    weights += count;
    partials += slabs;
  }
}

template <class T>
Attended<T> attend(const Device& device, const QueryPlan& plan, const Array<Token>& tokens,
                   RowTable keys, RowTable values, const Array<T>& scaled) {
  const auto count = static_cast<Index>(plan.queries.size());
  const auto tile_count = static_cast<Index>(plan.tiles.size());
  const Array<Query> queries(device, std::span(plan.queries));
  const Array<Tile> tiles(device, std::span(plan.tiles));
  Attended<T> out{{device, plan.weights}, {device, count}, {}};
  device.launch(logits<T>, tile_count, kTileThreads, tiles.data(), queries.data(), tokens.data(),
                keys, scaled.data(), out.weights.data());
  device.launch(softmax<T>, count, kThreads, queries.data(), out.weights.data(),
                out.figures.data());
  if (plan.partials > 0) {
    const Array<T> partial(device, plan.partials * values.width);
    out.numerators = {device, count * values.width};
    device.launch(weigh<T>, tile_count, kTileThreads, tiles.data(), queries.data(), tokens.data(),
                  values, out.weights.data(), partial.data());
    device.launch(add_slabs<T>, ceil_div(count * values.width, kThreads), kThreads, queries.data(),
                  count, values.width, partial.data(), out.numerators.data());
  }
  return out;
}

template Attended<float> attend(const Device&, const QueryPlan&, const Array<Token>&, RowTable,
                                RowTable, const Array<float>&);
template Attended<double> attend(const Device&, const QueryPlan&, const Array<Token>&, RowTable,
                                 RowTable, const Array<double>&);

}  // namespace kvbench::gpu
