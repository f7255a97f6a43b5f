// Runs retrieval methods on a head, with the contract checked.
#pragma once

#include <numeric>
#include <set>

#include "method_checks.hpp"
#include "replay/retrieval_job.hpp"

namespace kvbench {

using Logits = std::vector<double>;
using Tokens = std::vector<std::uint32_t>;

/// A job whose last `queries` queries are evaluated.
class ReadsOf {
 public:
  ReadsOf(const Method& method, KvHead head, std::vector<Index> tokens, Index queries)
      : method_(method),
        queries_(queries),
        job_(method, std::move(head), std::move(tokens), Range{0, 0}) {
    EXPECT_GT(job_.head().n(), queries);
  }

  ReadsOf(const std::string& method, KvHead head, std::vector<Index> tokens, Index queries)
      : ReadsOf(find_method(method), std::move(head), std::move(tokens), queries) {}

  const KvHead& head() const { return job_.head(); }
  const std::vector<Index>& tokens() const { return job_.tokens(); }
  Index queries() const { return queries_; }
  Index full_bytes() const { return static_cast<Index>(tokens().size()) * head().pair_bytes(); }
  Index bytes_of(double share) const {
    return static_cast<Index>(share * static_cast<double>(full_bytes()));
  }
  /// Query heads and numbers of queries.
  std::vector<std::pair<Index, Index>> each_query() const {
    std::vector<std::pair<Index, Index>> out;
    for (Index i = 0; i < head().group() * queries_; ++i) {
      out.emplace_back(i / queries_, i % queries_);
    }
    return out;
  }
  Params params(const Given& given = {}) const { return job_.params(given); }

  Task task(std::optional<Index> budget) const {
    Task t = job_.task(budget);
    t.scoring = {0, head().n() - queries_};
    t.evaluated = {head().n() - queries_, head().n()};
    return t;
  }

  Reads run(std::optional<Index> budget, const Given& given = {}, std::uint64_t seed = 1) const {
    Task t = task(budget);
    t.rng = Rng(seed, {"p", 0, 0}, method_.info.name);
    Reads out = method_.open_reads(t, params(given))->search();
    check_reads(out, t);
    return out;
  }

  const float* query(Index g, Index j) const { return head().q[g].row(head().nq() - queries_ + j); }

  /// s <k, q> of each token, term by term.
  Logits logits(Index g, Index j) const {
    Logits out;
    for (const Index i : tokens()) {
      out.push_back(slow_logit(head(), head().k.row(i), query(g, j)));
    }
    return out;
  }

  /// Bytes that the queries of head g read, those beside their tokens included: of each, and their
  /// mean.
  std::vector<Index> bytes(const Reads& reads, Index g) const {
    std::vector<Index> out;
    for (Index j = 0; j < queries_; ++j) {
      out.push_back(reads.index_bytes_read() +
                    static_cast<Index>(reads.lists.at(g, j).size()) * head().pair_bytes());
    }
    return out;
  }
  double mean_bytes(const Reads& reads, Index g) const {
    const std::vector<Index> all = bytes(reads, g);
    return static_cast<double>(std::accumulate(all.begin(), all.end(), Index{0})) /
           static_cast<double>(queries_);
  }

 private:
  const Method& method_;
  Index queries_;
  JobOf job_;
};

/// Mean weight of a token over seeds, and its standard error.
struct MeanWeight {
  double mean;
  double error;
};

/// Of each token that the job's only query read with some seed, over `seeds` seeds.
inline std::map<Index, MeanWeight> mean_weights(const ReadsOf& job, const Given& given, int seeds) {
  std::map<Index, std::pair<double, double>> sums;  // of weights and of their squares
  for (int seed = 0; seed < seeds; ++seed) {
    const Reads reads = job.run({}, given, static_cast<std::uint64_t>(seed));
    for (std::size_t i = 0; i < reads.lists.tokens[0].size(); ++i) {
      const auto w = static_cast<double>(reads.lists.weights[0][i]);
      auto& [sum, square] = sums[static_cast<Index>(reads.lists.tokens[0][i])];
      sum += w;
      square += w * w;
    }
  }
  std::map<Index, MeanWeight> out;
  for (const auto& [token, sum] : sums) {
    const double mean = sum.first / seeds;
    out[token] = {mean, std::sqrt(std::max(0.0, sum.second / seeds - mean * mean) / seeds)};
  }
  return out;
}

/// Places of `scores`, the largest first, ties to the first.
inline std::vector<std::size_t> by_rank(const Logits& scores) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  return order;
}

/// The tokens at the first `count` places, ascending.
inline Tokens best_tokens(const Logits& scores, Index count, const std::vector<Index>& tokens) {
  Tokens out;
  const std::vector<std::size_t> order = by_rank(scores);
  for (Index i = 0; i < count; ++i) {
    out.push_back(static_cast<std::uint32_t>(tokens[order[i]]));
  }
  std::sort(out.begin(), out.end());
  return out;
}

inline Tokens list_of(const Reads& reads, Index g, Index j) {
  const std::span<const std::uint32_t> list = reads.lists.at(g, j);
  return {list.begin(), list.end()};
}

/// Every query reads the `count` tokens with the largest scores(g, j).
template <class Scores>
void expect_best_read(const ReadsOf& job, const Reads& reads, Index count, const Scores& scores) {
  for (const auto& [g, j] : job.each_query()) {
    ASSERT_EQ(list_of(reads, g, j), best_tokens(scores(g, j), count, job.tokens()));
    ASSERT_EQ(reads.asked[g * job.queries() + j], count);
  }
}

inline HeadShape retrieval_shape() {
  const HeadShape shape{.n = 150, .nq = 60, .d = 16, .dv = 8, .group = 3, .dtype = DType::float16};
  return shape;
}

}  // namespace kvbench
