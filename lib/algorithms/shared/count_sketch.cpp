#include "algorithms/shared/count_sketch.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/float16.hpp"
#include "core/shared_work.hpp"

namespace kvbench {
namespace {

Index channels_at_once(Index cells) {
  constexpr Index kSide = 16;               // at least two cache lines of sums
  constexpr Index kCache = Index{1} << 16;  // sums
  return std::max(kSide, kCache / std::max<Index>(1, cells) / kSide * kSide);
}

}  // namespace

CountSketch::CountSketch(const SketchShape& shape, const RngStream& words)
    : shape_(shape),
      keys_(shape.rows * shape.cells, shape.d),
      values_(shape.rows * shape.cells, shape.dv),
      counts_(shape.rows * shape.cells, 0),
      largest_(largest_element(shape.dtype)) {
  for (Index r = 0; r < shape.rows; ++r) {
    const auto w = static_cast<std::uint64_t>(4 * r);
    hashes_.push_back({words.word(w), words.word(w + 1), words.word(w + 2), words.word(w + 3)});
  }
}

void CountSketch::accumulate(float* cell, const float* x, float factor, Index count) {
#pragma omp simd
  for (Index t = 0; t < count; ++t) {
    cell[t] += factor * x[t];
  }
  round_to(shape_.dtype, cell, count);
  if (!all_finite(cell, count)) {
    for (Index t = 0; t < count; ++t) {
      overflows_ += cell[t] > largest_ || cell[t] < -largest_ ? 1 : 0;
      cell[t] = std::clamp(cell[t], -largest_, largest_);
    }
  }
}

void CountSketch::change(Index position, const float* key, const float* value, float direction) {
  for (Index r = 0; r < shape_.rows; ++r) {
    const Index at = slot(r, position);
    accumulate(keys_.row(at), key, direction, shape_.d);
    accumulate(values_.row(at), value, direction * sign(r, position), shape_.dv);
    counts_[at] += direction > 0.0F ? 1U : ~0U;
  }
}

void CountSketch::fill(std::span<const Index> positions, MatrixView k, MatrixView v) {
  std::vector<Index> slots(shape_.rows * static_cast<Index>(positions.size()));
  std::vector<float> signs(slots.size());
  auto at = slots.begin();
  auto s = signs.begin();
  for (Index r = 0; r < shape_.rows; ++r) {
    for (const Index i : positions) {
      *s++ = sign(r, i);
      ++counts_[*at++ = slot(r, i)];
    }
  }
  const std::vector<float> ones(slots.size(), 1.0F);
  const Index step = channels_at_once(shape_.cells);
  const Index key_parts = (k.cols + step - 1) / step;
  const Index parts = key_parts + (v.cols + step - 1) / step;
  std::atomic<std::int64_t> overflows = 0;
  ScratchPool<FillScratch> scratch;
  share_work(parts, [&](Index part) {
    auto mine = scratch.take();
    overflows +=
        part < key_parts
            ? fill_channels(positions, slots, ones, k, keys_, part * step, *mine)
            : fill_channels(positions, slots, signs, v, values_, (part - key_parts) * step, *mine);
    scratch.give(std::move(mine));
  });
  overflows_ += overflows;
}

// Tokens hit cells at random, so only as many channels are summed at a time as keep a row's cells
// in the second-level cache. The tokens' channels are copied side by side, as every row reads them.
std::int64_t CountSketch::fill_channels(std::span<const Index> positions,
                                        std::span<const Index> slots,
                                        std::span<const float> factors, MatrixView from, Matrix& to,
                                        Index begin, FillScratch& scratch) const {
  const auto edge = static_cast<double>(largest_);
  constexpr std::size_t kAhead = 32;  // tokens; hardware does not prefetch strides of a whole row
  const Index width = std::min(channels_at_once(shape_.cells), from.cols - begin);
  auto& [slice, sums] = scratch;
  slice.resize(positions.size() * static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < positions.size(); ++i) {
    __builtin_prefetch(from.row(positions[std::min(i + kAhead, positions.size() - 1)]) + begin);
    std::copy_n(from.row(positions[i]) + begin, width, slice.data() + i * width);
  }
  std::int64_t overflows = 0;
  for (Index r = 0; r < shape_.rows; ++r) {
    const Index first = r * shape_.cells;
    const auto skipped = static_cast<std::size_t>(r) * positions.size();
    sums.assign(shape_.cells * width, 0.0);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      double* sum = sums.data() + (slots[skipped + i] - first) * width;
      const float* x = slice.data() + i * width;
      const auto factor = static_cast<double>(factors[skipped + i]);
#pragma omp simd
      for (Index t = 0; t < width; ++t) {
        sum[t] += factor * static_cast<double>(x[t]);
      }
    }
    for (Index c = 0; c < shape_.cells; ++c) {
      const double* sum = sums.data() + c * width;
      std::int64_t beyond = 0;
#pragma omp simd reduction(+ : beyond)
      for (Index t = 0; t < width; ++t) {
        beyond += std::fabs(sum[t]) > edge ? 1 : 0;
      }
      overflows += beyond;
      store_sums(shape_.dtype, sum, to.row(first + c) + begin, width);  // cells are 0 before
    }
  }
  return overflows;
}

void CountSketch::estimate(const Matrix& cells, Index position, bool with_sign, float* out) const {
  const SketchCells sketch{hashes_.data(), cells.data(), counts_.data(),  shape_.rows, shape_.cells,
                           cells.cols(),   shape_.dtype, shape_.estimate, with_sign};
  sketch.estimate(position, 0, cells.cols(), out);
}

void CountSketch::key(Index position, float* out) const {
  estimate(keys_, position, /*with_sign=*/false, out);
}

void CountSketch::value(Index position, float* out) const {
  estimate(values_, position, /*with_sign=*/true, out);
}

double sketch_variance_bound(Index held, Index total_cells, double sigma2) {
  return total_cells > 0 ? std::numbers::pi * static_cast<double>(held) /
                               static_cast<double>(total_cells) * sigma2
                         : 0.0;
}

}  // namespace kvbench
