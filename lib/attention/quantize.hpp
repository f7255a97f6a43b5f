// Asymmetric round-to-nearest quantization of short groups of numbers to 2, 3, 4 or 8 bits, packed.
// [1] Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", ICML 2024,
//     arXiv:2402.02750, section 3.
// [2] Hooper et al., "KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache
//     Quantization", NeurIPS 2024, arXiv:2401.18079, section 3.4: outliers of a group apart.
//
// A group of numbers x has zero point = min x and scale = (max x - min x) / (2^bits - 1), both
// float32 rounded to float16. Codes are nearest to x under the rounded pair. A code is read back as
// zero point + code * scale.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "core/float16.hpp"
#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Zero point and scale of a group, float16.
struct GroupScale {
  std::uint16_t zero_point;
  std::uint16_t scale;
};

/// Largest code of `bits` bits.
KVB_HD inline double largest_code(int bits) {
  return static_cast<double>((1 << bits) - 1);
}

/// The pair of a group in [low, high]. Numbers beyond float16's range are clamped to it.
KVB_HD inline GroupScale group_scale(float low, float high, double top) {
  const auto range = static_cast<double>(high) - static_cast<double>(low);
  const auto half = [](float x) { return float_to_half(std::clamp(x, -65504.0F, 65504.0F)); };
  return {half(low), half(static_cast<float>(range / top))};
}

KVB_HD inline unsigned nearest_code(float x, float zero_point, float scale, double top) {
  if (!(scale > 0.0F)) {
    return 0;
  }
  const double steps = std::nearbyint((static_cast<double>(x) - static_cast<double>(zero_point)) /
                                      static_cast<double>(scale));
  return static_cast<unsigned>(std::clamp(steps, 0.0, top));
}

KVB_HD inline float read_code(unsigned code, float zero_point, float scale) {
  return std::fma(static_cast<float>(code), scale, zero_point);
}

/// Rows of equal length, quantized in groups and packed as a cache would store them.
class QuantizedRows {
 public:
  /// `bits` 2, 3, 4 or 8; `length` numbers per row in groups of `group` (the last may be shorter).
  QuantizedRows(int bits, Index length, Index group);

  /// `row` [length], finite. Numbers beyond float16's range are clamped to it.
  void append(std::span<const float> row);
  /// Reads row `i` back into `out` [length].
  void read(Index i, std::span<float> out) const;

  /// Removes all rows, and keeps their memory.
  void clear();

  Index rows() const { return rows_; }
  /// Bytes of the codes. Every group starts at a byte.
  Index code_bytes() const { return static_cast<Index>(codes_.size()); }
  /// Bytes of scales and zero points.
  Index scale_bytes() const { return 2 * static_cast<Index>(scales_.size() + zero_points_.size()); }

  /// The same for `rows` rows.
  static Index code_bytes(int bits, Index rows, Index length, Index group);
  static Index scale_bytes(Index rows, Index length, Index group);

 private:
  int bits_;
  Index length_;
  Index group_;
  Index rows_ = 0;
  std::vector<std::uint8_t> codes_;    // low bits first
  std::vector<std::uint16_t> scales_;  // float16, one per group
  std::vector<std::uint16_t> zero_points_;
};

/// A group is `group` neighbouring tokens of one channel or channels of one token. The last group
/// may be shorter.
enum class GroupAlong { tokens, channels };

/// The quantization of a matrix.
struct CodeFormat {
  int bits = 8;  ///< 2, 3, 4 or 8
  Index group = 32;
  GroupAlong along = GroupAlong::channels;
  /// Share of each group's entries, in [0, 1], rounded up, that lie farthest from its median. They
  /// are stored as `outlier_type` and do not count for the group's range.
  double outliers = 0.0;
  DType outlier_type = DType::float16;  ///< 16 bits
};

/// Outliers in a group of `count`: share * count, rounded up, up to the product's rounding.
Index outlier_count(double share, Index count);

/// Bytes of the outliers of `length` numbers in groups of `group`: of each its value (2) and its
/// index in the group (2, in groups of more than 65,536 4).
Index outlier_bytes(double share, Index length, Index group);

/// Quantizes `rows` [c, cols] and reads them back in place; without outliers as QuantizedRows. Time
/// O(c cols), with outliers O(c cols log group).
void read_back(Matrix& rows, const CodeFormat& format);

}  // namespace kvbench
