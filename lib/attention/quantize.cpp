#include "attention/quantize.hpp"

#include <functional>
#include <limits>
#include <numeric>

namespace kvbench {
namespace {

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
  const double top = largest_code(bits_);
  for (Index b = 0; b < length_; b += group_) {
    const auto part = row.subspan(b, static_cast<std::size_t>(std::min(group_, length_ - b)));
    const auto [low, high] = std::minmax_element(part.begin(), part.end());
    const GroupScale halves = group_scale(*low, *high, top);
    zero_points_.push_back(halves.zero_point);
    scales_.push_back(halves.scale);
    const float zero_point = half_to_float(halves.zero_point);
    const float scale = half_to_float(halves.scale);
    const std::size_t start = codes_.size();
    codes_.resize(start + static_cast<std::size_t>(packed(bits_, static_cast<Index>(part.size()))));
    for (std::size_t i = 0; i < part.size(); ++i) {
      const unsigned code = nearest_code(part[i], zero_point, scale, top);
      const std::size_t bit = i * static_cast<std::size_t>(bits_);
      const unsigned shifted = code << (bit % 8);
      codes_[start + bit / 8] = static_cast<std::uint8_t>(codes_[start + bit / 8] | shifted);
      if (shifted > 0xffU) {  // 3-bit codes may cross a byte
        codes_[start + bit / 8 + 1] = static_cast<std::uint8_t>(shifted >> 8U);
      }
    }
  }
  ++rows_;
}

void QuantizedRows::clear() {
  rows_ = 0;
  codes_.clear();
  scales_.clear();
  zero_points_.clear();
}

void QuantizedRows::read(Index i, std::span<float> out) const {
  const unsigned mask = (1U << bits_) - 1U;
  auto group = static_cast<std::size_t>(i * groups_of(length_, group_));
  auto start = static_cast<std::size_t>(code_bytes(bits_, i, length_, group_));
  for (Index b = 0; b < length_; b += group_, ++group) {
    const Index count = std::min(group_, length_ - b);
    const float zero_point = half_to_float(zero_points_[group]);
    const float scale = half_to_float(scales_[group]);
    for (Index x = 0; x < count; ++x) {
      const auto bit = static_cast<std::size_t>(x * bits_);
      unsigned both = codes_[start + bit / 8];
      if (bit % 8 + static_cast<std::size_t>(bits_) > 8) {
        both |= static_cast<unsigned>(codes_[start + bit / 8 + 1]) << 8U;
      }
      const unsigned code = (both >> (bit % 8)) & mask;
      out[b + x] = read_code(code, zero_point, scale);
    }
    start += static_cast<std::size_t>(packed(bits_, count));
  }
}

namespace {

// The mean of the middle two, or the middle one.
double median_of(std::vector<float> x) {
  const std::size_t half = x.size() / 2;
  std::ranges::nth_element(x, x.begin() + static_cast<std::ptrdiff_t>(half));
  const auto above = static_cast<double>(x[half]);
  if (x.size() % 2 == 1) {
    return above;
  }
  const float below = *std::max_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(half));
  return 0.5 * (static_cast<double>(below) + above);
}

// Marks the `count` entries farthest from the group's median, ties to the lowest index.
std::vector<std::uint8_t> outliers_of(std::span<const float> group, Index count) {
  std::vector<std::uint8_t> out(group.size(), 0);
  if (count == 0) {
    return out;
  }
  const double median = median_of({group.begin(), group.end()});
  std::vector<std::size_t> order(group.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) {
    return std::abs(static_cast<double>(group[i]) - median);
  });
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    out[order[i]] = 1;
  }
  return out;
}

// Quantises the group and reads it back in place.
void code_group(std::span<float> group, const CodeFormat& format) {
  const Index kept = outlier_count(format.outliers, static_cast<Index>(group.size()));
  const std::vector<std::uint8_t> is_outlier = outliers_of(group, kept);
  float low = std::numeric_limits<float>::infinity();
  float high = -low;
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (is_outlier[i] == 0) {
      low = std::min(low, group[i]);
      high = std::max(high, group[i]);
    }
  }
  const double top = largest_code(format.bits);
  const GroupScale halves = low <= high ? group_scale(low, high, top) : GroupScale{0, 0};
  const float zero_point = half_to_float(halves.zero_point);
  const float scale = half_to_float(halves.scale);
  for (std::size_t i = 0; i < group.size(); ++i) {
    group[i] = is_outlier[i] != 0
                   ? stored(format.outlier_type, static_cast<double>(group[i]))
                   : read_code(nearest_code(group[i], zero_point, scale, top), zero_point, scale);
  }
}

}  // namespace

Index outlier_count(double share, Index count) {
  return std::min(count, static_cast<Index>(std::ceil(share * static_cast<double>(count) - 1e-9)));
}

Index outlier_bytes(double share, Index length, Index group) {
  const auto of_group = [&](Index count) {
    return outlier_count(share, count) * (count > 65536 ? 6 : 4);  // its value and its index
  };
  const Index rest = length % group;
  return length / group * of_group(group) + (rest > 0 ? of_group(rest) : 0);
}

void read_back(Matrix& out, const CodeFormat& format) {
  if (format.along == GroupAlong::channels) {
    for (Index i = 0; i < out.rows(); ++i) {
      for (Index b = 0; b < out.cols(); b += format.group) {
        code_group(
            {out.row(i) + b, static_cast<std::size_t>(std::min(format.group, out.cols() - b))},
            format);
      }
    }
    return;
  }
  for (Index first = 0; first < out.rows(); first += format.group) {
    const Index length = std::min(format.group, out.rows() - first);
    std::vector<float> channel(length);
    for (Index c = 0; c < out.cols(); ++c) {
      for (Index i = 0; i < length; ++i) {
        channel[i] = out.row(first + i)[c];
      }
      code_group(channel, format);
      for (Index i = 0; i < length; ++i) {
        out.row(first + i)[c] = channel[i];
      }
    }
  }
}

}  // namespace kvbench
