// The count sketch of KVReviver: `rows` x `cells` sums of keys and values in which every token is
// added to one cell per row, and from which it is estimated by the median over the rows.
// [1] Yuan et al., "KVReviver: Reversible KV Cache Compression with Sketch-Based Token
//     Reconstruction", Algorithms 1 and 2.
// Hashes: streams/sketch.hpp; the words of row r are 4r .. 4r+3 of the stream that it is given.
// Cells hold elements of the trace's type: each is rounded to it after every addition and
// subtraction, or once where all tokens come at once, and a sum beyond the largest finite element
// stays at that element (counted).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/rng.hpp"
#include "core/types.hpp"
#include "streams/sketch.hpp"

namespace kvbench {

/// The size of a sketch; what it is priced by.
struct SketchShape {
  Index rows = 3;
  Index cells = 0;  ///< per row; 0: no sketch at all
  Index d = 0;
  Index dv = 0;
  DType dtype = DType::float32;
  CellEstimate estimate = CellEstimate::sum;

  /// Keys and values of all cells.
  Index payload_bytes() const { return rows * cells * (d + dv) * bytes_per_element(dtype); }
  /// Hash words (32 bytes a row), and one 32-bit count per cell where estimates need it.
  Index aux_bytes() const {
    return cells > 0 ? 32 * rows + (estimate == CellEstimate::mean ? 4 * rows * cells : 0) : 0;
  }
};

/// Bytes that a sketch holds, and beside it `fill` for `tokens` tokens.
Index sketch_bytes(const SketchShape& shape);
Index sketch_fill_bytes(const SketchShape& shape, Index tokens);

class CountSketch {
 public:
  /// All cells zero. 1 <= rows <= kMaxSketchRows; cells >= 0. Reads words 0 .. 4 rows - 1 of
  /// `words`.
  CountSketch(const SketchShape& shape, const RngStream& words);

  /// Cell of `position` in `row`; 0 <= position < 2^32.
  Index cell(Index row, Index position) const {
    return sketch_cell(hashes_[row], position, shape_.cells);
  }
  /// +1 or -1.
  float sign(Index row, Index position) const { return sketch_sign(hashes_[row], position); }

  /// Adds (or takes away) one token: its key without sign, its value with sign, in every row.
  /// key [d], value [dv]. Needs cells > 0.
  void add(Index position, const float* key, const float* value) {
    change(position, key, value, 1.0F);
  }
  void subtract(Index position, const float* key, const float* value) {
    change(position, key, value, -1.0F);
  }

  /// Into an empty sketch, the tokens of `positions`, ascending, with their rows of k [., d] and
  /// v [., dv]: sums in float64, each element rounded once. Needs cells > 0.
  void fill(std::span<const Index> positions, MatrixView k, MatrixView v);

  /// The element-wise median over the rows (of an even number of rows: the mean of the two middle
  /// ones, rounded to the element type). For `mean`, `position` must be in the sketch.
  void key(Index position, float* out) const;
  void value(Index position, float* out) const;

  /// Elements that a sum beyond the largest finite one was cut to, since construction.
  std::int64_t overflows() const { return overflows_; }
  const SketchShape& shape() const { return shape_; }
  /// Row r of the sketch is rows [r * cells, (r + 1) * cells).
  const Matrix& keys() const { return keys_; }
  const Matrix& values() const { return values_; }
  /// Tokens in a cell, [rows * cells].
  std::span<const std::uint32_t> counts() const { return counts_; }
  std::span<const SketchHash> hashes() const { return hashes_; }

 private:
  Index place(Index row, Index position) const { return row * shape_.cells + cell(row, position); }
  void change(Index position, const float* key, const float* value, float direction);
  void accumulate(float* cell, const float* x, float factor, Index count);
  void fill_cells(std::span<const Index> positions, std::span<const Index> places,
                  std::span<const float> factors, MatrixView from, Matrix& to);
  void estimate(const Matrix& cells, Index position, bool with_sign, float* out) const;

  SketchShape shape_;
  std::vector<SketchHash> hashes_;
  Matrix keys_;    // [rows * cells, d]
  Matrix values_;  // [rows * cells, dv]
  std::vector<std::uint32_t> counts_;
  float largest_;
  std::int64_t overflows_ = 0;
};

/// Variance of an element of a reconstructed key or value as [1]'s analysis bounds it: with `held`
/// tokens of element variance `sigma2` in a sketch of `total_cells` = rows * cells,
/// pi held / total_cells * sigma2, exceeded with probability below exp(-held / total_cells).
/// Derived for three rows and elements that are independent normal of mean 0.
double sketch_variance_bound(Index held, Index total_cells, double sigma2);

}  // namespace kvbench
