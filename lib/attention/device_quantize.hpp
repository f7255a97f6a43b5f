// read_back on a machine: the launches around quantize_kernels.hpp. Codes do not leave the
// registers; what comes back are the rows.
#pragma once

#include <algorithm>
#include <span>

#include "attention/quantize.hpp"
#include "attention/quantize_kernels.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// Rows are read back and downloaded some at a time.
template <class M>
class DeviceReadBack {
 public:
  DeviceReadBack(M& machine, const float* from, Index cols, std::span<const Index> tokens,
                 const CodeFormat& format)
      : machine_(machine),
        from_(from),
        cols_(cols),
        tokens_(machine, tokens),
        format_(format),
        top_(largest_code(format.bits)),
        out_(tokens_.size(), cols),
        at_once_(fitting(sizeof(float))),
        rows_(machine, at_once_ * cols) {}

  Matrix along_channels() {
    for (Index first = 0; first < out_.rows(); first += at_once_) {
      const Index count = std::min(at_once_, out_.rows() - first);
      launch(ReadAlongChannels{from_, tokens_.data() + first, count, cols_,
                               std::min(format_.group, cols_), top_, rows_.data()});
      download(first, count);
    }
    return std::move(out_);
  }

  // Scales are made for as many whole groups as fit, one at least.
  Matrix along_tokens() {
    const Index n = out_.rows();
    const Index group = std::min(format_.group, n);
    const Index pieces = TokenGroups{from_, tokens_.data(), n, cols_, group}.pieces_of_group();
    const Index groups =
        std::clamp<Index>(fitting(sizeof(ReadScale)) / pieces, 1, (n + group - 1) / group);
    const Array<float, M> low(machine_, groups * pieces * cols_);
    const Array<float, M> high(machine_, groups * pieces * cols_);
    const Array<ReadScale, M> scales(machine_, groups * cols_);
    for (Index begin = 0; begin < n; begin += groups * group) {
      const Index count = std::min(groups * group, n - begin);
      const TokenGroups part{from_, tokens_.data() + begin, count, cols_, group};
      launch(TokenExtremes{part, low.data(), high.data()});
      launch(TokenScales{part, low.data(), high.data(), top_, scales.data()});
      for (Index first = 0; first < count; first += at_once_) {
        const Index rows = std::min(at_once_, count - first);
        launch(ReadAlongTokens{part, scales.data(), top_, first, rows, rows_.data()});
        download(begin + first, rows);
      }
    }
    return std::move(out_);
  }

 private:
  // Rows of which an array of scratch holds cols_ things of `size` bytes each.
  Index fitting(std::size_t size) const {
    const auto room = static_cast<Index>(machine_.scratch_bytes() / size);
    return std::clamp<Index>(room / cols_, 1, std::max<Index>(tokens_.size(), 1));
  }

  template <class Kernel>
  void launch(const Kernel& kernel) {
    machine_.launch(kernel, kernel.blocks());
  }

  void download(Index first, Index count) {
    rows_.get({out_.row(first), static_cast<std::size_t>(count * cols_)});
  }

  M& machine_;
  const float* from_;
  Index cols_;
  Array<Index, M> tokens_;
  CodeFormat format_;
  double top_;
  Matrix out_;
  Index at_once_;
  Array<float, M> rows_;
};

/// read_back on a machine, equal to the CPU's to the bit. `from` [., cols] lies in the machine's
/// memory. Memory beside it: the list, and four arrays of scratch; none exceeds scratch_bytes,
/// unless a row, or a 64th of a group of tokens, does.
template <class M>
Matrix read_back_on(M& machine, const float* from, Index cols, std::span<const Index> tokens,
                    const CodeFormat& format) {
  if (tokens.empty()) {
    return Matrix(0, cols);
  }
  DeviceReadBack<M> work(machine, from, cols, tokens, format);
  return format.along == GroupAlong::channels ? work.along_channels() : work.along_tokens();
}

}  // namespace kvbench
