#include "attention/quantize.hpp"

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
    zeros_.push_back(halves.zero);
    scales_.push_back(halves.scale);
    const float zero = half_to_float(halves.zero);
    const float scale = half_to_float(halves.scale);
    const std::size_t start = codes_.size();
    codes_.resize(start + static_cast<std::size_t>(packed(bits_, static_cast<Index>(part.size()))));
    for (std::size_t i = 0; i < part.size(); ++i) {
      const unsigned code = nearest_code(part[i], zero, scale, top);
      const std::size_t bit = i * static_cast<std::size_t>(bits_);
      codes_[start + bit / 8] =
          static_cast<std::uint8_t>(codes_[start + bit / 8] | (code << (bit % 8)));
    }
  }
  ++rows_;
}

void QuantizedRows::clear() {
  rows_ = 0;
  codes_.clear();
  scales_.clear();
  zeros_.clear();
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
      out[b + x] = read_code(code, zero, scale);
    }
    start += static_cast<std::size_t>(packed(bits_, count));
  }
}

Matrix read_back(MatrixView from, std::span<const Index> tokens, const CodeFormat& format) {
  const auto count = static_cast<Index>(tokens.size());
  Matrix out(count, from.cols);
  if (format.along == GroupAlong::channels) {
    QuantizedRows row(format.bits, from.cols, format.group);
    for (Index i = 0; i < count; ++i) {
      row.clear();  // the codes of all tokens would take as much as the budget
      row.append(from.row_span(tokens[i]));
      row.read(0, {out.row(i), static_cast<std::size_t>(from.cols)});
    }
    return out;
  }
  for (Index first = 0; first < count; first += format.group) {
    const Index length = std::min(format.group, count - first);
    QuantizedRows channels(format.bits, length, format.group);
    std::vector<float> channel(length);
    for (Index c = 0; c < from.cols; ++c) {
      for (Index i = 0; i < length; ++i) {
        channel[i] = from.row(tokens[first + i])[c];
      }
      channels.clear();
      channels.append(channel);
      channels.read(0, channel);
      for (Index i = 0; i < length; ++i) {
        out.row(first + i)[c] = channel[i];
      }
    }
  }
  return out;
}

}  // namespace kvbench
