#include "cluster/key_facts.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kvbench {
namespace {

struct ChannelSums {
  explicit ChannelSums(Index d) : sum(d, 0.0), square(d, 0.0) {}

  void add(std::span<const double> row) {
    double norm = 0.0;
    for (std::size_t c = 0; c < row.size(); ++c) {
      sum[c] += row[c];
      square[c] += row[c] * row[c];
      norm += row[c] * row[c];
    }
    largest = std::max(largest, norm);
    ++rows;
  }

  double mean_share() const {
    double of_mean = 0.0;
    double of_rows = 0.0;
    for (std::size_t c = 0; c < sum.size(); ++c) {
      of_mean += sum[c] * sum[c] / rows;
      of_rows += square[c];
    }
    return of_rows > 0.0 ? of_mean / of_rows : 0.0;
  }

  Index outliers() const {
    std::vector<double> sorted = square;
    const auto half = sorted.begin() + std::ssize(sorted) / 2;
    std::ranges::nth_element(sorted, half);
    const double bound = kOutlierFactor * kOutlierFactor * *half;
    return std::ranges::count_if(square, [&](double x) { return x > bound; });
  }

  std::vector<double> sum;
  std::vector<double> square;
  double largest = 0.0;  // squared norm
  double rows = 0.0;
};

}  // namespace

KeyFacts key_facts(MatrixView keys, const RopeTables* rope, double largest_query, double scale) {
  ChannelSums post(keys.cols);
  ChannelSums pre(keys.cols);
  const bool unrotates = rope != nullptr && rope->positions() >= keys.rows;
  std::vector<double> row(keys.cols);
  for (Index i = 0; i < keys.rows; ++i) {
    std::copy_n(keys.row(i), keys.cols, row.begin());
    post.add(row);
    if (unrotates) {
      unrotate(*rope, i, keys.row_span(i), row);
      pre.add(row);
    }
  }
  KeyFacts out;
  out.rho = scale * largest_query * std::sqrt(post.largest);
  out.mean_share = post.mean_share();
  out.mean_share_pre = unrotates ? pre.mean_share() : std::numeric_limits<double>::quiet_NaN();
  out.outlier_channels = post.outliers();
  return out;
}

}  // namespace kvbench
