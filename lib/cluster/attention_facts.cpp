#include "cluster/attention_facts.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "attention/query_block.hpp"

namespace kvbench {
namespace {

constexpr Index kBlock = 16;  // queries that a thread handles at a time

// The fewest entries of p that sum to `mass`: bisection by selection, O(n) on average.
Index fewest_with(std::vector<double>& p, double mass) {
  auto first = p.begin();
  auto last = p.end();
  while (last - first > 1) {
    const auto half = first + (last - first) / 2;
    std::nth_element(first, half, last, std::greater<>());
    const double larger = std::accumulate(first, half, 0.0);
    if (larger >= mass) {
      last = half;
    } else {
      mass -= larger;
      first = half;
    }
  }
  return last - p.begin();
}

double sum_of(const std::vector<double>& p, Range tokens) {
  return tokens.end <= tokens.begin
             ? 0.0
             : std::accumulate(p.begin() + tokens.begin, p.begin() + tokens.end, 0.0);
}

AttentionFacts facts_of(std::vector<double>& p) {
  AttentionFacts out;
  for (const double x : p) {
    out.entropy -= x > 0.0 ? x * std::log(x) : 0.0;
  }
  const auto n = static_cast<Index>(p.size());
  const Index first = std::min(kFirstTokens, n);
  out.first_mass = sum_of(p, {0, first});
  out.near_mass = sum_of(p, {std::max(first, n - kNearTokens), n});
  out.heavy_tokens =
      static_cast<double>(fewest_with(p, kHeavyMass * std::accumulate(p.begin(), p.end(), 0.0)));
  return out;
}

}  // namespace

AttentionFacts attention_facts(const KvHead& head, Index g, int threads) {
  const Index m = std::min(kFactQueries, head.nq());
  std::vector<AttentionFacts> of_query(m);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (Index r0 = 0; r0 < m; r0 += kBlock) {
    std::vector<Index> positions(std::min(kBlock, m - r0));
    std::iota(positions.begin(), positions.end(), head.n() - m + r0);
    QueryBlock<double> block;
    block.attend(head, g, positions, nullptr);
    for (Index r = 0; r < std::ssize(positions); ++r) {
      const Range seen = head.visible(positions[r]);
      std::vector<double> p(seen.end, 0.0);
      for (Index i = seen.begin; i < seen.end; ++i) {
        p[i] = block.weight(i, r) / block.total(r);
      }
      of_query[r0 + r] = facts_of(p);
    }
  }
  AttentionFacts out;
  for (const AttentionFacts& facts : of_query) {
    out.entropy += facts.entropy / static_cast<double>(m);
    out.heavy_tokens += facts.heavy_tokens / static_cast<double>(m);
    out.first_mass += facts.first_mass / static_cast<double>(m);
    out.near_mass += facts.near_mass / static_cast<double>(m);
  }
  return out;
}

Index attention_facts_bytes(Index n) {
  return query_block_bytes(sizeof(double), kBlock, n) + 8 * n;
}

}  // namespace kvbench
