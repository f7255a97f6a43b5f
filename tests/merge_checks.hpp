// For tests of methods that merge: held and made tokens against a reference's.
#pragma once

#include "method_checks.hpp"
#include "reference/merging.hpp"
#include "reference/selection.hpp"

namespace kvbench {

/// Float32 storage of a mean or a sum made in float64.
inline constexpr double kStoreTolerance = 1e-6;

/// Which tokens are exact, and the others' keys, values and weights in order of position. `keys`:
/// the tolerance of keys.
inline void expect_merged(const Compressed& c, const std::map<Index, reference::Merged>& expected,
                          double keys = kStoreTolerance) {
  std::vector<Index> exact;
  Index row = 0;
  for (const auto& [token, m] : expected) {
    if (!m.changed) {
      exact.push_back(token);
      continue;
    }
    ASSERT_LT(row, c.made.k.rows());
    const auto near = [&, at = token](const reference::Vec& e, const float* got, double tolerance) {
      for (std::size_t t = 0; t < e.size(); ++t) {
        const auto x = static_cast<double>(e[t]);
        ASSERT_TRUE(std::abs(static_cast<double>(got[t]) - x) <= tolerance * (1 + std::abs(x)))
            << at;
      }
    };
    near(m.k, c.made.k.row(row), keys);
    near(m.v, c.made.v.row(row), kStoreTolerance);
    ASSERT_EQ(c.made.weights.empty() ? 1.0F : c.made.weights[row], static_cast<float>(m.w));
    ++row;
  }
  ASSERT_EQ(row, c.made.k.rows());
  ASSERT_EQ(c.held.tokens, exact);
  ASSERT_TRUE(c.held.weights.empty());
  ASSERT_EQ(c.held.common, 1.0F);
}

/// The reference's accumulated attention of the job's tokens, mean over the group.
inline reference::Vec accumulated(const JobOf& job, Range scoring) {
  return reference::taken(
      reference::reduced(reference::attention_sums(job.head(), scoring.begin, scoring.end),
                         reference::ReferenceReduce::mean),
      job.tokens());
}

inline HeadShape merging_shape(Index n) {
  const HeadShape shape{.n = n, .nq = n, .dv = 5};
  return shape;
}

/// Keys of one direction, powers of two apart: every cosine is exactly 1.
inline KvHead parallel_keys(Index n, unsigned seed) {
  KvHead head = make_head(merging_shape(n), seed);
  for (Index i = 0; i < n; ++i) {
    for (Index t = 0; t < head.d(); ++t) {
      head.k.row(i)[t] = std::ldexp(head.k.row(0)[t], static_cast<int>(i % 3));
    }
  }
  return head;
}

/// What the method makes of the accumulated attention of {70 .. 100}, at many sizes, is what
/// `merged` says of the tokens that h2o keeps.
template <class Merge, class Check>
void expect_reference(const std::string& method, const Merge& merged, const Check& check,
                      const Given& given = {}, unsigned seed = 3) {
  for (const auto& tokens : {positions(10, 90), gappy(10, 90)}) {
    const JobOf job(method, make_head(merging_shape(110), seed), tokens, {70, 100});
    const auto m = static_cast<Index>(tokens.size());
    for (const Index count : {Index{1}, Index{2}, Index{13}, m - 1, m}) {
      const Compressed c = job.run({}, with(given, {{"tokens", std::to_string(count)}}));
      expect_merged(c, merged(job.head(), tokens,
                              reference::heavy_and_recent(tokens, accumulated(job, {70, 100}),
                                                          count, count / 2)));
      check(c, m, count);
    }
  }
}

}  // namespace kvbench
