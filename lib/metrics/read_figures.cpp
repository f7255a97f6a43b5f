#include "metrics/read_figures.hpp"

#include <algorithm>

#include "attention/scores.hpp"
#include "core/math.hpp"

namespace kvbench {

ReadFigures read_figures(const KvHead& head, Index g, const ExactAttention& truth,
                         std::span<const Index> middle, std::span<const Index> fixed,
                         const ReadLists& lists, std::span<const Index> asked) {
  const Index m = truth.output.rows();
  ReadFigures out;
  double kept = 0.0;
  double recall = 0.0;
  std::vector<double> lost(middle.size(), 0.0);
  std::vector<std::uint8_t> noticed(middle.size(), 0);
  std::vector<std::uint8_t> read(middle.size(), 0);
  const auto mark = [&](const auto& tokens) {
    auto at = middle.begin();
    for (const auto token : tokens) {
      at = std::lower_bound(at, middle.end(), static_cast<Index>(token));
      read[at - middle.begin()] = 1;
    }
  };
  visit_products(scaled_queries(head, g, m), head.k, middle, head.precision,
                 [&](Index j, std::span<const double> logits) {
                   std::ranges::fill(read, std::uint8_t{0});
                   mark(fixed);
                   if (!lists.empty()) {
                     mark(lists.at(g, j));
                   }
                   double missed = 0.0;
                   for (std::size_t i = 0; i < middle.size(); ++i) {
                     if (read[i] == 0) {
                       const double p = exp_shared(logits[i] - truth.log_z[j]);
                       missed += p;
                       lost[i] += p;
                       noticed[i] |= p > kAmnesiaThreshold ? 1 : 0;
                     }
                   }
                   kept += 1.0 - missed;
                   const Index wanted = asked.empty() ? static_cast<Index>(fixed.size())
                                                      : asked[static_cast<std::size_t>(g * m + j)];
                   if (wanted > 0) {
                     Index found = 0;
                     for (const Index i : top_indices(logits, wanted)) {
                       found += read[i];
                     }
                     recall += static_cast<double>(found) / static_cast<double>(wanted);
                   }
                 });
  const auto queries = static_cast<double>(m);
  out.held.mass_kept = share_of_mass(kept / queries);
  for (std::size_t i = 0; i < middle.size(); ++i) {
    if (noticed[i] != 0) {
      ++out.held.amnesia_count;
      out.held.amnesia_mass += lost[i] / queries;
    }
  }
  out.held.amnesia_mass = share_of_mass(out.held.amnesia_mass);
  out.recall = recall / queries;
  return out;
}

}  // namespace kvbench
