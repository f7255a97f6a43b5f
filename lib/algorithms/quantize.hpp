// Asymmetric round-to-nearest quantisation of short groups of numbers to 2, 4 or 8 bits, packed.
// [1] Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", ICML 2024,
//     arXiv:2402.02750, section 3.
//
// A group of numbers x has zero = min x and scale = (max x - min x) / (2^bits - 1), both float32
// rounded to float16; codes are those nearest to x under the rounded pair, so that what is read
// back is the best that this pair can say. Reading back: zero + code * scale.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Rows of equal length, each cut into groups; what a cache would really allocate for them.
class QuantizedRows {
 public:
  /// `bits` 2, 4 or 8; `length` numbers per row in groups of `group` (the last may be shorter).
  QuantizedRows(int bits, Index length, Index group);

  /// `row` [length], finite. Numbers beyond float16's range are read back at its edge.
  void append(std::span<const float> row);
  /// Row `i` read back into `out` [length].
  void read(Index i, std::span<float> out) const;

  Index rows() const { return rows_; }
  /// Bytes of the codes: every group starts at a byte.
  Index code_bytes() const { return static_cast<Index>(codes_.size()); }
  /// Bytes of scales and zeros.
  Index scale_bytes() const { return 2 * static_cast<Index>(scales_.size() + zeros_.size()); }

  /// The same for `rows` rows, ahead of making them.
  static Index code_bytes(int bits, Index rows, Index length, Index group);
  static Index scale_bytes(Index rows, Index length, Index group);

 private:
  int bits_;
  Index length_;
  Index group_;
  Index rows_ = 0;
  std::vector<std::uint8_t> codes_;    // low bits first
  std::vector<std::uint16_t> scales_;  // float16, one per group
  std::vector<std::uint16_t> zeros_;
};

}  // namespace kvbench
