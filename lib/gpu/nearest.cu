#include <limits>

#include "attention/nearest_keys.hpp"
#include "gpu/block.cuh"
#include "gpu/operations.cuh"
#include "gpu/products.cuh"

namespace kvbench::gpu {
namespace {

static_assert(kTileColumns<double> == kTile);

constexpr Index kMaxParts = 16;  // of `to`, so that a short `from` fills a device

struct Question {
  const float* keys;      // [., d]
  const Index* from;      // [rows]
  const Index* to;        // [columns]
  const double* inverse;  // [columns] norms
  Index rows, columns, d;
  Index part;  // columns, a multiple of kTile
};

// best[p, r] = the column of part p with the largest cosine to row r. A thread block has 64 rows
// and one part.
__global__ void __launch_bounds__(kTileThreads) nearest_columns(Question q, Place* best) {
  __shared__ Place best_of[kTile][kTileSide + 1];
  const Index tiles = ceil_div(q.rows, kTile);
  const Index row = Index{blockIdx.x} % tiles * kTile;
  const Index part = Index{blockIdx.x} / tiles;
  const Index end = (part + 1) * q.part < q.columns ? (part + 1) * q.part : q.columns;
  Place own[kTileOwn];
  KVB_UNROLL
  for (int r = 0; r < kTileOwn; ++r) {
    own[r] = {-std::numeric_limits<double>::infinity(), q.columns};
  }
  const auto key = [&](const Index* tokens, Index count, Index i) {
    return i < count ? q.keys + tokens[i] * q.d : nullptr;
  };
  const auto left =
      along_sum<double, LeftSide>(q.d, [&](int i) { return key(q.from, q.rows, row + i); });
  for (Index column = part * q.part; column < end; column += kTile) {
    OwnSums<double> acc;
    tile_products<double>(
        q.d, left,
        along_sum<double, RightSide>(q.d, [&](int j) { return key(q.to, q.columns, column + j); }),
        acc);
    KVB_UNROLL
    for (int c = 0; c < kOwnColumns<double>; ++c) {
      const Index at = column + tile_column(c);
      if (at < q.columns) {
        const double inverse = q.inverse[at];
        KVB_UNROLL
        for (int r = 0; r < kTileOwn; ++r) {
          own[r] = LargestFirst{}(own[r], {acc[r][c] * inverse, at});
        }
      }
    }
  }
  KVB_UNROLL
  for (int r = 0; r < kTileOwn; ++r) {
    best_of[tile_row(r)][tile_column(0)] = own[r];
  }
  __syncthreads();
  const Index thread = threadIdx.x;
  if (thread < kTile && row + thread < q.rows) {
    Place first = best_of[thread][0];
    for (int i = 1; i < kTileSide; ++i) {
      first = LargestFirst{}(first, best_of[thread][i]);
    }
    best[part * q.rows + row + thread] = first;
  }
}

}  // namespace

std::vector<Index> nearest_keys(const DeviceHead& head, std::span<const Index> to,
                                std::span<const Index> from) {
  std::vector<Index> out;
  if (from.empty()) {
    return out;
  }
  const auto rows = static_cast<Index>(from.size());
  const auto columns = static_cast<Index>(to.size());
  const Index part = ceil_div(ceil_div(columns, kTile), kMaxParts) * kTile;
  const Index parts = ceil_div(columns, part);
  const std::vector<double> host_inverse = inverse_norms(head.host->k, to);
  const Array<Index> device_from(head.device, from);
  const Array<Index> device_to(head.device, to);
  const Array<double> inverse(head.device, std::span<const double>(host_inverse));
  const Array<Place> best(head.device, parts * rows);
  const Question question{head.k.data(),
                          device_from.data(),
                          device_to.data(),
                          inverse.data(),
                          rows,
                          columns,
                          head.host->d(),
                          part};
  head.device.launch(nearest_columns, ceil_div(rows, kTile) * parts, kTileThreads, question,
                     best.data());
  std::vector<Place> host_best(parts * rows);
  best.get(host_best);
  for (std::size_t r = 0; r < from.size(); ++r) {
    Place nearest = host_best[r];
    for (std::size_t i = r + from.size(); i < host_best.size(); i += from.size()) {
      nearest = host_best[i].value > nearest.value ? host_best[i] : nearest;
    }
    out.push_back(nearest.index);
  }
  return out;
}

}  // namespace kvbench::gpu
