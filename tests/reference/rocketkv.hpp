// Slow reference of RocketKV's second stage, token by token.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

#include "reference/selection.hpp"

namespace reference {

/// [kept]: mean over the group of the softmax over `kept` of each token's page's bound of the logit
/// with the query at `position`: over the `channels` with the largest mean |q|, the channel's
/// largest key element in the page where the group's summed query is positive, the smallest
/// elsewhere; divided by the root of the channels' share of |q|.
inline Vec rocket_scores(const kvbench::KvHead& head, const std::vector<Index>& kept, Index page,
                         Index channels, Index position) {
  const auto d = static_cast<std::size_t>(head.d());
  const Rows keys = rows_of(head.k);
  Rows queries;
  for (const kvbench::Matrix& q : head.q) {
    queries.push_back(rows_of(q)[position - head.q_start()]);
  }
  Vec mean(d, 0);
  Vec sum(d, 0);
  for (const Vec& q : queries) {
    for (std::size_t c = 0; c < d; ++c) {
      mean[c] += std::abs(q[c]) / static_cast<Real>(queries.size());
      sum[c] += q[c];
    }
  }
  std::vector<std::size_t> order(d);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return mean[a] > mean[b]; });
  order.resize(static_cast<std::size_t>(channels));
  Rows per_head;
  for (const Vec& q : queries) {
    Real part = 0;
    Real whole = 0;
    for (std::size_t c = 0; c < d; ++c) {
      whole += std::abs(q[c]);
      part += std::find(order.begin(), order.end(), c) != order.end() ? std::abs(q[c]) : 0;
    }
    Vec logits;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const auto size = static_cast<std::size_t>(page);
      Real bound = 0;
      for (const std::size_t c : order) {
        Vec of_page;
        for (std::size_t j = 0; j < kept.size(); ++j) {
          if (j / size == i / size) {
            of_page.push_back(keys[kept[j]][c]);
          }
        }
        const auto [low, high] = std::minmax_element(of_page.begin(), of_page.end());
        bound += q[c] * (sum[c] > 0 ? *high : *low);
      }
      logits.push_back(head.scale * bound / std::sqrt(part / whole));
    }
    per_head.push_back(softmax(logits));
  }
  return reduced(per_head, ReferenceReduce::mean);
}

}  // namespace reference
