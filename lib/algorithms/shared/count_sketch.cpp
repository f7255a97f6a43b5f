#include "algorithms/shared/count_sketch.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/float16.hpp"

namespace kvbench {
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
    const Index at = place(r, position);
    accumulate(keys_.row(at), key, direction, shape_.d);
    accumulate(values_.row(at), value, direction * sign(r, position), shape_.dv);
    counts_[at] += direction > 0.0F ? 1U : ~0U;
  }
}

void CountSketch::fill(std::span<const Index> positions, MatrixView k, MatrixView v) {
  std::vector<double> key_sums(counts_.size() * static_cast<std::size_t>(shape_.d), 0.0);
  std::vector<double> value_sums(counts_.size() * static_cast<std::size_t>(shape_.dv), 0.0);
  const auto add_row = [](std::vector<double>& sums, Index at, double factor,
                          std::span<const float> row) {
    double* sum = sums.data() + at * static_cast<Index>(row.size());
    for (std::size_t t = 0; t < row.size(); ++t) {
      sum[t] += factor * static_cast<double>(row[t]);
    }
  };
  for (const Index i : positions) {
    for (Index r = 0; r < shape_.rows; ++r) {
      const Index at = place(r, i);
      add_row(key_sums, at, 1.0, k.row_span(i));
      add_row(value_sums, at, static_cast<double>(sign(r, i)), v.row_span(i));
      ++counts_[at];
    }
  }
  store(key_sums, keys_);
  store(value_sums, values_);
}

void CountSketch::store(std::span<const double> sums, Matrix& cells) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    overflows_ += std::fabs(sums[i]) > static_cast<double>(largest_) ? 1 : 0;
    cells.data()[i] = stored(shape_.dtype, sums[i]);
  }
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
