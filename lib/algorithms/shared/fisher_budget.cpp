#include "algorithms/shared/fisher_budget.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvbench {
namespace {

// Real shares of `total` for the layers `open`; equal if all values are 0.
std::vector<double> proportions(std::span<const double> fisher,
                                const std::vector<std::size_t>& open, Index total) {
  double largest = 0.0;
  for (const std::size_t l : open) {
    largest = std::max(largest, fisher[l]);
  }
  std::vector<double> out;
  for (const std::size_t l : open) {  // divided first, so that huge values do not overflow
    out.push_back(largest > 0.0 ? fisher[l] / largest : 1.0);
  }
  const double sum = std::accumulate(out.begin(), out.end(), 0.0);
  for (double& x : out) {
    x = static_cast<double>(total) * (x / sum);
  }
  return out;
}

}  // namespace

std::vector<Index> fisher_split(std::span<const double> fisher, std::span<const Index> caps,
                                Index total) {
  std::vector<Index> out(caps.size(), 0);
  Index left = std::min(total, std::accumulate(caps.begin(), caps.end(), Index{0}));
  std::vector<std::size_t> open(caps.size());
  std::iota(open.begin(), open.end(), std::size_t{0});
  while (left > 0) {
    const std::vector<double> share = proportions(fisher, open, left);
    std::vector<std::size_t> rest;
    Index filled = 0;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (share[i] >= static_cast<double>(caps[open[i]])) {
        out[open[i]] = caps[open[i]];
        filled += caps[open[i]];
      } else {
        rest.push_back(open[i]);
      }
    }
    if (rest.size() < open.size()) {
      left -= filled;
      open = std::move(rest);
      continue;
    }
    Index assigned = 0;
    for (std::size_t i = 0; i < open.size(); ++i) {
      out[open[i]] = std::min(static_cast<Index>(share[i]), left - assigned);
      assigned += out[open[i]];
    }
    std::vector<std::size_t> order(open.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return share[a] - std::floor(share[a]) > share[b] - std::floor(share[b]);
    });
    for (std::size_t i = 0; assigned < left; i = (i + 1) % order.size()) {
      const std::size_t l = open[order[i]];
      const Index free = out[l] < caps[l] ? 1 : 0;
      out[l] += free;
      assigned += free;
    }
    left = 0;
  }
  return out;
}

}  // namespace kvbench
