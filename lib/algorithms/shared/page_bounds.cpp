#include "algorithms/shared/page_bounds.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "algorithms/shared/scoring.hpp"
#include "attention/read_lists.hpp"
#include "core/math.hpp"

namespace kvbench {
namespace {

// Queries of a group, times the maxima and minima that count for them.
struct PickedQueries {
  MatrixD rows;                           // [queries * group, 2 d], by query, then head
  std::vector<double> temperatures = {};  // of rows
};

void pick(const std::vector<MatrixD>& heads, Index j, Index channels, PickedQueries& out) {
  const Index d = heads.front().cols();
  std::vector<double> size(d, 0.0);
  std::vector<double> sum(d, 0.0);
  for (const MatrixD& q : heads) {
    for (Index c = 0; c < d; ++c) {
      size[c] += std::abs(q.row(j)[c]);
      sum[c] += q.row(j)[c];
    }
  }
  const std::vector<Index> top = top_indices(size, channels);
  for (const MatrixD& q : heads) {
    double* row = out.rows.row(static_cast<Index>(out.temperatures.size()));
    const auto add_size = [&](double total, Index c) { return total + std::abs(q.row(j)[c]); };
    for (const Index c : top) {
      row[sum[c] > 0.0 ? c : d + c] = q.row(j)[c];
    }
    std::vector<Index> all(d);
    std::iota(all.begin(), all.end(), Index{0});
    const double part = std::accumulate(top.begin(), top.end(), 0.0, add_size);
    const double whole = std::accumulate(all.begin(), all.end(), 0.0, add_size);
    out.temperatures.push_back(part > 0.0 ? std::sqrt(part / whole) : 1.0);
  }
}

std::vector<double> log_softmax(std::span<const double> row, double temperature,
                                const GroupPages& pages) {
  std::vector<double> out(row.begin(), row.end());
  const double shift = *std::ranges::max_element(row) / temperature;
  double z = 0.0;
  for (Index p = 0; p < pages.pages(); ++p) {
    out[p] /= temperature;
    const Index size = std::min(pages.page, pages.tokens - p * pages.page);
    z += static_cast<double>(size) * exp_shared(out[p] - shift);
  }
  const double log_z = shift + std::log(z);
  for (double& x : out) {
    x -= log_z;
  }
  return out;
}

}  // namespace

Matrix page_extremes(MatrixView keys, std::span<const Index> tokens, Index page) {
  const Index d = keys.cols;
  Matrix out((static_cast<Index>(tokens.size()) + page - 1) / page, 2 * d);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const float* key = keys.row(tokens[i]);
    float* row = out.row(static_cast<Index>(i) / page);
    const bool first = static_cast<Index>(i) % page == 0;
    for (Index c = 0; c < d; ++c) {
      row[c] = first ? key[c] : std::max(row[c], key[c]);
      row[d + c] = first ? key[c] : std::min(row[d + c], key[c]);
    }
  }
  return out;
}

void visit_group_scores(const KvHead& head, Index queries, const Matrix& extremes,
                        const GroupPages& pages,
                        const std::function<void(const std::vector<double>& scores)>& use) {
  std::vector<MatrixD> heads;
  for (Index g = 0; g < head.group(); ++g) {
    heads.push_back(scaled_queries(head, g, queries));
  }
  PickedQueries picked{MatrixD(queries * head.group(), 2 * head.d())};
  for (Index j = 0; j < queries; ++j) {
    pick(heads, j, pages.channels, picked);
  }
  std::vector<Index> all(pages.pages());
  std::iota(all.begin(), all.end(), Index{0});
  std::vector<std::vector<double>> logs;  // of a query's heads
  visit_products(picked.rows, extremes, all, head.precision,
                 [&](Index r, std::span<const double> row) {
                   logs.push_back(log_softmax(row, picked.temperatures[r], pages));
                   if (static_cast<Index>(logs.size()) == head.group()) {
                     std::vector<double> scores;
                     for (std::size_t p = 0; p < row.size(); ++p) {
                       scores.push_back(log_reduced(logs, p, Reduce::mean));
                     }
                     use(scores);
                     logs.clear();
                   }
                 });
}

}  // namespace kvbench
