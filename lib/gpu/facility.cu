#include <algorithm>
#include <vector>

#include "gpu/block.cuh"
#include "gpu/operations.cuh"
#include "gpu/products.cuh"

namespace kvbench::gpu {
namespace {

constexpr Index kGainBatch = 256;

using Sum = unsigned long long;  // integers with atomicAdd in CUDA

template <class T>
struct Ground {
  const T* units;    // [n, d]; zero keys are 0
  const T* offsets;  // [n]: 1/2, or 0 for zero keys
  Index n;
  Index d;
  Similarity kind;
};

// out[c] += sum over the keys of a tile of max(0, sim(c, .) - best), for 64 candidates.
// `candidates` may be null: all places.
template <class T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<T>)
    add_gains(Ground<T> m, const Index* candidates, Index count, const std::int32_t* best,
              Sum* out) {
  __shared__ Sum sums[kTile][kTileSide + 1];
  const Index tiles = ceil_div(count, kTile);
  const Index row = Index{blockIdx.x} % tiles * kTile;
  const Index column = Index{blockIdx.x} / tiles * kTileColumns<T>;
  const auto place = [&](Index i) { return candidates == nullptr ? i : candidates[i]; };
  OwnSums<T> acc;
  tile_products<T>(
      m.d,
      along_sum<T, LeftSide>(
          m.d, [&](int i) { return row + i < count ? m.units + place(row + i) * m.d : nullptr; }),
      along_sum<T, RightSide>(
          m.d, [&](int j) { return column + j < m.n ? m.units + (column + j) * m.d : nullptr; }),
      acc);
  const T equal = cosine_of_equal<T>(m.d);
  T own[kTileOwn];
  std::int64_t sum[kTileOwn] = {};
  KVB_UNROLL
  for (int r = 0; r < kTileOwn; ++r) {
    const Index i = row + tile_row(r);
    own[r] = i < count ? m.offsets[place(i)] : T{0};
  }
  KVB_UNROLL
  for (int c = 0; c < kOwnColumns<T>; ++c) {
    const Index key = column + tile_column(c);
    if (key < m.n) {
      const T other = m.offsets[key];
      const std::int32_t before = best[key];
      KVB_UNROLL
      for (int r = 0; r < kTileOwn; ++r) {
        const std::int32_t more =
            fixed_similarity(m.kind, acc[r][c], equal, own[r] < other ? own[r] : other) - before;
        sum[r] += more > 0 ? more : 0;
      }
    }
  }
  KVB_UNROLL
  for (int r = 0; r < kTileOwn; ++r) {
    sums[tile_row(r)][tile_column(0)] = static_cast<Sum>(sum[r]);
  }
  __syncthreads();
  const Index thread = threadIdx.x;
  if (thread < kTile && row + thread < count) {
    Sum all = 0;
    for (int i = 0; i < kTileSide; ++i) {
      all += sums[thread][i];
    }
    atomicAdd(out + row + thread, all);
  }
}

// best = max(best, sim(u, .)); out[0] += by how much. A thread per key.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    add_member(Ground<T> m, Index u, std::int32_t* best, Sum* out) {
  const Index key = Index{blockIdx.x} * kTileThreads + threadIdx.x;
  std::int64_t more = 0;
  if (key < m.n) {
    T cosine = 0;
    for (Index t = 0; t < m.d; t += 4) {
      const auto rest = static_cast<int>(m.d - t);
      const Four<T> x = load_four(m.units + u * m.d + t, rest);
      const Four<T> y = load_four(m.units + key * m.d + t, rest);
      KVB_UNROLL
      for (int q = 0; q < 4; ++q) {
        cosine = std::fma(x.x[q], y.x[q], cosine);
      }
    }
    const T own = m.offsets[u];
    const T other = m.offsets[key];
    const std::int32_t similarity =
        fixed_similarity(m.kind, cosine, cosine_of_equal<T>(m.d), own < other ? own : other);
    more = similarity > best[key] ? similarity - best[key] : 0;
    best[key] += static_cast<std::int32_t>(more);
  }
  more = block_reduce<kTileThreads>(more, Plus());
  if (threadIdx.x == 0) {
    atomicAdd(out, static_cast<Sum>(more));
  }
}

template <class T>
class Gains final : public FacilityGains {
 public:
  Gains(const DeviceHead& head, std::span<const Index> ground, Similarity kind)
      : device_(head.device),
        n_(static_cast<Index>(ground.size())),
        units_(device_, n_ * head.host->d()),
        offsets_(device_, n_),
        best_(device_, n_),
        sums_(device_, std::max(n_, kGainBatch)),
        candidates_(device_, kGainBatch),
        ground_{units_.data(), offsets_.data(), n_, head.host->d(), kind} {
    UnitKeys<T> unit(1, ground_.d);
    BasicMatrix<T> units(n_, ground_.d);
    std::vector<T> offsets;
    for (Index i = 0; i < n_; ++i) {
      unit.set(0, head.host->k.view().row_span(ground[i]));
      unit.row(0, units, i);
      offsets.push_back(unit.is_zero(0) ? T{0} : T{0.5});
      total_ += unit.is_zero(0) ? 0 : kSimilarityOne;
    }
    units_.put(std::span<const T>(units.data(), static_cast<std::size_t>(n_ * ground_.d)));
    offsets_.put(offsets);
    best_.set_zero();
  }

  Index batch() const override { return kGainBatch; }
  std::int64_t total() const override { return total_; }
  std::int64_t value() const override { return value_; }

  std::vector<std::int64_t> all_gains() override {
    std::vector<std::int64_t> out(n_);
    sum(nullptr, n_, out);
    return out;
  }

  void gains(std::span<const Index> candidates, std::span<std::int64_t> out) override {
    const auto step = static_cast<std::size_t>(kGainBatch);
    for (std::size_t i = 0; i < candidates.size(); i += step) {
      const std::size_t count = std::min(step, candidates.size() - i);
      candidates_.put(candidates.subspan(i, count));
      sum(candidates_.data(), static_cast<Index>(count), out.subspan(i, count));
    }
  }

  void add(Index u) override {
    std::int64_t gain = 0;
    sums_.set_zero();
    device_.launch(add_member<T>, ceil_div(n_, kTileThreads), kTileThreads, ground_, u,
                   best_.data(), reinterpret_cast<Sum*>(sums_.data()));
    sums_.get(std::span(&gain, 1));
    value_ += gain;
  }

 private:
  void sum(const Index* candidates, Index count, std::span<std::int64_t> out) {
    sums_.set_zero();
    device_.launch(add_gains<T>, ceil_div(count, kTile) * ceil_div(n_, kTileColumns<T>),
                   kTileThreads, ground_, candidates, count, best_.data(),
                   reinterpret_cast<Sum*>(sums_.data()));
    sums_.get(out);
  }

  const Device& device_;
  Index n_;
  Array<T> units_;
  Array<T> offsets_;
  Array<std::int32_t> best_;
  Array<std::int64_t> sums_;
  Array<Index> candidates_;
  Ground<T> ground_;
  std::int64_t total_ = 0;
  std::int64_t value_ = 0;
};

}  // namespace

std::unique_ptr<FacilityGains> facility_location(const DeviceHead& head,
                                                 std::span<const Index> ground, Similarity kind) {
  return with_element(head.host->precision, [&](auto element) -> std::unique_ptr<FacilityGains> {
    return std::make_unique<Gains<decltype(element)>>(head, ground, kind);
  });
}

}  // namespace kvbench::gpu
