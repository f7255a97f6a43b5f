// The count sketch of KVReviver: `rows` x `cells` sums of keys and values. A token is added to one
// cell per row and estimated by the median over the rows.
// [1] Yuan et al., "KVReviver: Reversible KV Cache Compression with Sketch-Based Token
//     Reconstruction", Algorithms 1 and 2.
// Row r is hashed by words 4r .. 4r+3 of the stream (streams/sketch.hpp). Cells have the trace's
// element type, rounded after every addition (once in a bulk fill) and clamped to the largest
// finite element (counted).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/rng.hpp"
#include "core/types.hpp"
#include "streams/sketch.hpp"

namespace kvbench {

struct SketchShape {
  Index rows = 3;
  Index cells = 0;  ///< per row; 0: no sketch
  Index d = 0;
  Index dv = 0;
  DType dtype = DType::float32;
  CellEstimate estimate = CellEstimate::sum;

  /// Keys and values of all cells.
  Index payload_bytes() const { return rows * cells * (d + dv) * bytes_per_element(dtype); }
  /// Hash words (32 bytes per row), and a 32-bit count per cell if estimates use it.
  Index aux_bytes() const {
    return cells > 0 ? 32 * rows + (estimate == CellEstimate::mean ? 4 * rows * cells : 0) : 0;
  }
};

class CountSketch {
 public:
  /// All cells zero. 1 <= rows <= kMaxSketchRows; cells >= 0. Reads words 0 .. 4 rows - 1.
  CountSketch(const SketchShape& shape, const RngStream& words);

  /// 0 <= position < 2^32.
  Index cell(Index row, Index position) const {
    return sketch_cell(hashes_[row], position, shape_.cells);
  }
  float sign(Index row, Index position) const { return sketch_sign(hashes_[row], position); }

  /// Adds or subtracts a token in every row: its key without sign, its value with sign. key [d],
  /// value [dv]. Requires cells > 0.
  void add(Index position, const float* key, const float* value) {
    change(position, key, value, 1.0F);
  }
  void subtract(Index position, const float* key, const float* value) {
    change(position, key, value, -1.0F);
  }

  /// Bulk insertion into an empty sketch: rows `positions`, ascending, of k [., d] and v [., dv].
  /// float64 sums, each element rounded once. Requires cells > 0. Idle threads help.
  void fill(std::span<const Index> positions, MatrixView k, MatrixView v);

  /// Element-wise median over the rows; for an even number, the rounded mean of the two middle
  /// ones. For `mean`, `position` must be in the sketch.
  void key(Index position, float* out) const;
  void value(Index position, float* out) const;

  /// Elements clamped since construction.
  std::int64_t overflows() const { return overflows_; }
  const SketchShape& shape() const { return shape_; }
  /// [rows * cells, .]; row r of the sketch is rows [r * cells, (r + 1) * cells).
  const Matrix& keys() const { return keys_; }
  const Matrix& values() const { return values_; }
  /// [rows * cells]: tokens per cell.
  std::span<const std::uint32_t> counts() const { return counts_; }
  std::span<const SketchHash> hashes() const { return hashes_; }

 private:
  struct FillScratch {
    AlignedVector<float> slice;  // [tokens, channels]
    AlignedVector<double> sums;  // [cells, channels]
  };

  Index slot(Index row, Index position) const { return row * shape_.cells + cell(row, position); }
  void change(Index position, const float* key, const float* value, float direction);
  void accumulate(float* cell, const float* x, float factor, Index count);
  std::int64_t fill_channels(std::span<const Index> positions, std::span<const Index> slots,
                             std::span<const float> factors, MatrixView from, Matrix& to,
                             Index begin, FillScratch& scratch) const;
  void estimate(const Matrix& cells, Index position, bool with_sign, float* out) const;

  SketchShape shape_;
  std::vector<SketchHash> hashes_;
  Matrix keys_;    // [rows * cells, d]
  Matrix values_;  // [rows * cells, dv]
  std::vector<std::uint32_t> counts_;
  float largest_;
  std::int64_t overflows_ = 0;
};

/// Bound of [1] on the variance of a reconstructed element: pi held / total_cells * sigma2 for
/// `held` tokens of element variance `sigma2`, exceeded with probability below exp(-held /
/// total_cells). Derived for three rows and independent normal elements of mean 0.
double sketch_variance_bound(Index held, Index total_cells, double sigma2);

}  // namespace kvbench
