#include <algorithm>
#include <vector>

#include "gpu/facility.cuh"
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

// out[c] += sum over a tile of 64 keys of max(0, sim(c, .) - best), for 64 candidates. `candidates`
// may be null: all places. With `add`, `count` is 1 and best becomes max(best, sim(candidate, .)).
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    add_gains(Ground<T> m, const Index* candidates, Index count, std::int32_t* best, bool add,
              Sum* out) {
  __shared__ Sum sums[kTile][kTileSide + 1];
  const Index tiles = ceil_div(count, kTile);
  const Index row = Index{blockIdx.x} % tiles * kTile;
  const Index column = Index{blockIdx.x} / tiles * kTile;
  const auto place = [&](Index i) { return candidates == nullptr ? i : candidates[i]; };
  T acc[kTileOwn][kTileOwn];
  tile_products(
      m.d,
      [&](int i, Index t) { return row + i < count ? m.units[place(row + i) * m.d + t] : T{0}; },
      [&](int j, Index t) { return column + j < m.n ? m.units[(column + j) * m.d + t] : T{0}; },
      acc);
  const T equal = cosine_of_equal<T>(m.d);
  KVB_UNROLL
  for (int r = 0; r < kTileOwn; ++r) {
    const Index i = row + tile_row(r);
    const T own = i < count ? m.offsets[place(i)] : T{0};
    std::int64_t sum = 0;
    KVB_UNROLL
    for (int c = 0; c < kTileOwn; ++c) {
      const Index key = column + tile_column(c);
      if (i < count && key < m.n) {
        const T other = m.offsets[key];
        const std::int32_t similarity =
            fixed_similarity(m.kind, acc[r][c], equal, own < other ? own : other);
        const std::int32_t more = similarity - best[key];
        sum += more > 0 ? more : 0;
        if (add && more > 0) {
          best[key] = similarity;
        }
      }
    }
    sums[tile_row(r)][tile_column(0)] = static_cast<Sum>(sum);
  }
  __syncthreads();
  const Index thread = threadIdx.x;
  if (thread < kTile && row + thread < count) {
    Sum sum = 0;
    for (int i = 0; i < kTileSide; ++i) {
      sum += sums[thread][i];
    }
    atomicAdd(out + row + thread, sum);
  }
}

template <class T>
class Gains final : public FacilityGains {
 public:
  Gains(const Head& head, std::span<const Index> ground, Similarity kind)
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
    sum(nullptr, n_, best_.data(), false, out);
    return out;
  }

  void gains(std::span<const Index> candidates, std::span<std::int64_t> out) override {
    const auto step = static_cast<std::size_t>(kGainBatch);
    for (std::size_t i = 0; i < candidates.size(); i += step) {
      const std::size_t count = std::min(step, candidates.size() - i);
      candidates_.put(candidates.subspan(i, count));
      sum(candidates_.data(), static_cast<Index>(count), best_.data(), false,
          out.subspan(i, count));
    }
  }

  void add(Index u) override {
    std::int64_t gain = 0;
    candidates_.put(std::span<const Index>(&u, 1));
    sum(candidates_.data(), 1, best_.data(), true, std::span(&gain, 1));
    value_ += gain;
  }

 private:
  void sum(const Index* candidates, Index count, std::int32_t* best, bool add,
           std::span<std::int64_t> out) {
    sums_.set_zero();
    device_.launch(add_gains<T>, ceil_div(count, kTile) * ceil_div(n_, kTile), kTileThreads,
                   ground_, candidates, count, best, add, reinterpret_cast<Sum*>(sums_.data()));
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

std::unique_ptr<FacilityGains> facility_location(const Head& head, std::span<const Index> ground,
                                                 Similarity kind) {
  return with_element(head.host->precision, [&](auto element) -> std::unique_ptr<FacilityGains> {
    return std::make_unique<Gains<decltype(element)>>(head, ground, kind);
  });
}

}  // namespace kvbench::gpu
