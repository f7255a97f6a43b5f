#include "algorithms/count_sketch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "core/float16.hpp"

namespace kvbench {
namespace {

// A row's cell, and what makes an estimate of it: factor * cell / count.
struct Source {
  const float* cell = nullptr;
  float factor = 1.0F;
  float count = 1.0F;
};

template <bool Divide>
void medians_of_three(const Source* s, Index width, float* out) {
  const Source a = s[0], b = s[1], c = s[2];
#pragma omp simd
  for (Index t = 0; t < width; ++t) {
    float x = a.factor * a.cell[t];
    float y = b.factor * b.cell[t];
    float z = c.factor * c.cell[t];
    if constexpr (Divide) {
      x /= a.count;
      y /= b.count;
      z /= c.count;
    }
    out[t] = median_of_three(x, y, z);
  }
}

// Any number of rows: odd-even transposition sort over the rows, kLanes channels side by side.
void median_of(std::span<const Source> sources, Index width, float* out) {
  constexpr Index kLanes = 16;
  std::array<std::array<float, kLanes>, CountSketch::kMaxRows> x{};
  const std::size_t rows = sources.size();
  for (Index t0 = 0; t0 < width; t0 += kLanes) {
    const Index lanes = std::min(kLanes, width - t0);
    for (std::size_t r = 0; r < rows; ++r) {
      const Source& s = sources[r];
      for (Index l = 0; l < lanes; ++l) {
        x[r][static_cast<std::size_t>(l)] = s.factor * s.cell[t0 + l] / s.count;
      }
    }
    for (std::size_t round = 0; round < rows; ++round) {
      for (std::size_t r = round % 2; r + 1 < rows; r += 2) {
        float* low = x[r].data();
        float* high = x[r + 1].data();
#pragma omp simd
        for (Index l = 0; l < kLanes; ++l) {
          const float a = low[l];
          const float b = high[l];
          low[l] = a < b ? a : b;
          high[l] = a < b ? b : a;
        }
      }
    }
    for (Index l = 0; l < lanes; ++l) {
      const auto at = static_cast<std::size_t>(l);
      const float upper = x[rows / 2][at];
      // Halves first: two elements near the largest finite one would add up to infinity.
      out[t0 + l] = rows % 2 == 1 ? upper : 0.5F * x[rows / 2 - 1][at] + 0.5F * upper;
    }
  }
}

}  // namespace

CountSketch::CountSketch(const SketchShape& shape, const RngStream& words)
    : shape_(shape),
      keys_(shape.rows * shape.cells, shape.d),
      values_(shape.rows * shape.cells, shape.dv),
      counts_(static_cast<std::size_t>(shape.rows * shape.cells), 0),
      changed_(counts_.size(), 0),
      largest_(largest_element(shape.dtype)) {
  for (Index r = 0; r < shape.rows; ++r) {
    const auto w = static_cast<std::uint64_t>(4 * r);
    hashes_.push_back({words.word(w), words.word(w + 1), words.word(w + 2), words.word(w + 3)});
  }
}

Index CountSketch::cell(Index row, Index position) const {
  return sketch_cell(hashes_[static_cast<std::size_t>(row)], position, shape_.cells);
}

float CountSketch::sign(Index row, Index position) const {
  return sketch_sign(hashes_[static_cast<std::size_t>(row)], position);
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

void CountSketch::change(Index position, const float* key, const float* value, int direction) {
  const auto factor = static_cast<float>(direction);
  for (Index r = 0; r < shape_.rows; ++r) {
    const Index at = place(r, position);
    accumulate(keys_.row(at), key, factor, shape_.d);
    accumulate(values_.row(at), value, factor * sign(r, position), shape_.dv);
    counts_[static_cast<std::size_t>(at)] += direction > 0 ? 1U : ~0U;
    changed_[static_cast<std::size_t>(at)] = 1;
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
      ++counts_[static_cast<std::size_t>(at)];
      changed_[static_cast<std::size_t>(at)] = 1;
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

void CountSketch::median(const Matrix& cells, Index position, bool with_sign, float* out) const {
  std::array<Source, kMaxRows> from{};
  const bool mean = shape_.estimate == CellEstimate::mean;
  for (Index r = 0; r < shape_.rows; ++r) {
    const Index at = place(r, position);
    from[static_cast<std::size_t>(r)] = {
        cells.row(at), with_sign ? sign(r, position) : 1.0F,
        mean ? static_cast<float>(counts_[static_cast<std::size_t>(at)]) : 1.0F};
  }
  if (shape_.rows != 3) {
    median_of(std::span(from).first(static_cast<std::size_t>(shape_.rows)), cells.cols(), out);
  } else if (mean) {
    medians_of_three<true>(from.data(), cells.cols(), out);
  } else {
    medians_of_three<false>(from.data(), cells.cols(), out);
  }
  round_to(shape_.dtype, out, cells.cols());  // quotients and means of two; others are elements
}

void CountSketch::key(Index position, float* out) const {
  median(keys_, position, /*with_sign=*/false, out);
}

void CountSketch::value(Index position, float* out) const {
  median(values_, position, /*with_sign=*/true, out);
}

bool CountSketch::changed(Index position) const {
  for (Index r = 0; r < shape_.rows; ++r) {
    if (changed_[static_cast<std::size_t>(place(r, position))] != 0) {
      return true;
    }
  }
  return false;
}

void CountSketch::forget_changes() {
  std::fill(changed_.begin(), changed_.end(), std::uint8_t{0});
}

double sketch_variance_bound(Index held, Index total_cells, double sigma2) {
  return total_cells > 0 ? std::numbers::pi * static_cast<double>(held) /
                               static_cast<double>(total_cells) * sigma2
                         : 0.0;
}

}  // namespace kvbench
