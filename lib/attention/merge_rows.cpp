#include "attention/merge_rows.hpp"

#include <algorithm>

#include "core/float16.hpp"

namespace kvbench {

Matrix merge_rows(MatrixView from, const RowMerge& merge, DType type) {
  Matrix out(static_cast<Index>(merge.lists.size()), from.cols);
  std::vector<double> sum(from.cols);
  for (std::size_t j = 0; j < merge.lists.size(); ++j) {
    const Range list = merge.lists[j];
    std::fill(sum.begin(), sum.end(), 0.0);
    for (Index i = list.begin; i < list.end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const float* row = from.row(merge.members[at]);
      const double share = merge.shares.empty() ? 1.0 : merge.shares[at];
      for (std::size_t c = 0; c < sum.size(); ++c) {
        sum[c] += static_cast<double>(row[c]) / share;
      }
    }
    float* to = out.row(static_cast<Index>(j));
    for (std::size_t c = 0; c < sum.size(); ++c) {
      to[c] = stored(type, merge.shares.empty()
                               ? sum[c] / static_cast<double>(list.size())
                               : static_cast<double>(from.row(merge.onto[j])[c]) + sum[c]);
    }
  }
  return out;
}

}  // namespace kvbench
