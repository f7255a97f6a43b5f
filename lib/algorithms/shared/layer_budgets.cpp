#include "algorithms/shared/layer_budgets.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "algorithms/shared/pooled_budget.hpp"

namespace kvbench {
namespace {

std::vector<Index> whole_budgets(std::span<const Survey* const> layers,
                                 const std::vector<double>& exact, Index total) {
  const std::size_t count = layers.size();
  // Fractions are compared in steps of 1e-9, so that rounding breaks no tie. A whole number that
  // came out just below itself has the largest fraction and is rounded up first.
  const double step = 1e-9;
  std::vector<Index> out(count);
  std::vector<std::pair<double, std::size_t>> fractions;
  Index left = total;
  for (std::size_t l = 0; l < count; ++l) {
    out[l] = static_cast<Index>(std::floor(exact[l]));
    left -= out[l];
    fractions.emplace_back(-std::round((exact[l] - static_cast<double>(out[l])) / step), l);
  }
  std::sort(fractions.begin(), fractions.end());  // negative: the largest first, then the layer
  for (std::size_t i = 0; left > 0; i = (i + 1) % count, --left) {
    out[fractions[i].second] += 1;
  }
  Index surplus = 0;
  for (std::size_t l = 0; l < count; ++l) {
    surplus += std::max<Index>(0, out[l] - layers[l]->middle);
    out[l] = std::min(out[l], layers[l]->middle);
  }
  for (std::size_t l = 0; l < count && surplus > 0; ++l) {
    const Index more = std::min(surplus, layers[l]->middle - out[l]);
    out[l] += more;
    surplus -= more;
  }
  return out;
}

}  // namespace

std::vector<Share> layer_shares(std::span<const Survey> surveys, const std::string& name,
                                const ExactBudgets& exact) {
  require_one_shape(surveys, name + ": layers share tokens, so they need");
  std::map<Index, std::vector<std::size_t>> by_head;  // surveys come by layer
  for (std::size_t i = 0; i < surveys.size(); ++i) {
    by_head[surveys[i].kv_head].push_back(i);
  }
  std::vector<Share> out(surveys.size());
  for (const auto& [head, members] : by_head) {
    std::vector<const Survey*> layers;
    LayerTotals totals;
    for (const std::size_t i : members) {
      layers.push_back(&surveys[i]);
      totals.tokens += surveys[i].tokens;
      totals.widest = std::max(totals.widest, surveys[i].middle);
    }
    const std::vector<Index> tokens = whole_budgets(layers, exact(layers, totals), totals.tokens);
    for (std::size_t l = 0; l < members.size(); ++l) {
      out[members[l]].tokens = tokens[l];
    }
  }
  return out;
}

std::vector<double> proportional(const std::vector<double>& weights,
                                 const std::vector<double>& limits, double total) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> out;
  for (const double w : weights) {
    out.push_back(sum > 0.0 ? w / sum * total : total / static_cast<double>(weights.size()));
  }
  for (std::size_t round = 0; round < out.size(); ++round) {
    double excess = 0.0;
    double open = 0.0;
    for (std::size_t l = 0; l < out.size(); ++l) {
      excess += std::max(0.0, out[l] - limits[l]);
      out[l] = std::min(out[l], limits[l]);
      open += out[l] < limits[l] ? 1.0 : 0.0;
    }
    for (std::size_t l = 0; l < out.size(); ++l) {
      out[l] += out[l] < limits[l] ? excess / open : 0.0;
    }
  }
  return out;
}

}  // namespace kvbench
