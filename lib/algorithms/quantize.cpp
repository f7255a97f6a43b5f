#include "algorithms/quantize.hpp"

#include <algorithm>
#include <cmath>

#include "core/float16.hpp"

namespace kvbench {
namespace {

constexpr float kLargestHalf = 65504.0F;

std::uint16_t to_half(double x) {
  return float_to_half(std::clamp(static_cast<float>(x), -kLargestHalf, kLargestHalf));
}

Index groups_of(Index length, Index group) {
  return (length + group - 1) / group;
}

Index packed(int bits, Index count) {
  return (count * bits + 7) / 8;
}

}  // namespace

QuantizedRows::QuantizedRows(int bits, Index length, Index group)
    : bits_(bits), length_(length), group_(std::min(group, length)) {}

Index QuantizedRows::code_bytes(int bits, Index rows, Index length, Index group) {
  const Index whole = length / group;
  return rows * (whole * packed(bits, group) + packed(bits, length - whole * group));
}

Index QuantizedRows::scale_bytes(Index rows, Index length, Index group) {
  return 4 * rows * groups_of(length, group);
}

void QuantizedRows::append(std::span<const float> row) {
  const double top = std::exp2(bits_) - 1.0;
  for (Index b = 0; b < length_; b += group_) {
    const auto part = row.subspan(static_cast<std::size_t>(b),
                                  static_cast<std::size_t>(std::min(group_, length_ - b)));
    const auto [low, high] = std::minmax_element(part.begin(), part.end());
    zeros_.push_back(to_half(static_cast<double>(*low)));
    scales_.push_back(to_half((static_cast<double>(*high) - static_cast<double>(*low)) / top));
    const auto zero = static_cast<double>(half_to_float(zeros_.back()));
    const auto scale = static_cast<double>(half_to_float(scales_.back()));
    const std::size_t start = codes_.size();
    codes_.resize(start + static_cast<std::size_t>(packed(bits_, static_cast<Index>(part.size()))));
    for (std::size_t i = 0; i < part.size(); ++i) {
      const double steps =
          scale > 0.0 ? std::nearbyint((static_cast<double>(part[i]) - zero) / scale) : 0.0;
      const auto code = static_cast<unsigned>(std::clamp(steps, 0.0, top));
      const std::size_t bit = i * static_cast<std::size_t>(bits_);
      codes_[start + bit / 8] =
          static_cast<std::uint8_t>(codes_[start + bit / 8] | (code << (bit % 8)));
    }
  }
  ++rows_;
}

void QuantizedRows::read(Index i, std::span<float> out) const {
  const unsigned mask = (1U << bits_) - 1U;
  auto group = static_cast<std::size_t>(i * groups_of(length_, group_));
  auto start = static_cast<std::size_t>(code_bytes(bits_, i, length_, group_));
  for (Index b = 0; b < length_; b += group_, ++group) {
    const Index count = std::min(group_, length_ - b);
    const float zero = half_to_float(zeros_[group]);
    const float scale = half_to_float(scales_[group]);
    for (Index x = 0; x < count; ++x) {
      const auto bit = static_cast<std::size_t>(x * bits_);
      const unsigned code = (static_cast<unsigned>(codes_[start + bit / 8]) >> (bit % 8)) & mask;
      out[static_cast<std::size_t>(b + x)] = std::fma(static_cast<float>(code), scale, zero);
    }
    start += static_cast<std::size_t>(packed(bits_, count));
  }
}

}  // namespace kvbench
