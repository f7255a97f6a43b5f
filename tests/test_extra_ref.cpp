// Methods that score with a set of extra queries (ref=NAME) against references.
#include "selection_checks.hpp"

namespace kvbench::test_extra_ref {
namespace {

// Sums of some 100 softmax weights in float64 and in long double.
constexpr long double kTolerance = 1e-11L;

// A segment may have read less than the other.
std::vector<ExtraSet> sets_for(const KvHead& head, unsigned seed) {
  return {make_extra("q", head, {{50, 80, {}}, {17, 64, {}}}, seed + 40),
          make_extra("other", head, {{3, 80, {}}}, seed + 90)};
}

TEST(ExtraRef, SnapKvEqualsReference) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    const std::vector<Index> tokens = positions(5, 75);
    KvHead head = make_head({.n = 90, .nq = 30, .d = 10, .group = 3}, seed);
    JobOf job("snapkv", head, tokens, {60, 80});
    job.extra = sets_for(head, seed);
    for (const Index window : {1, 17, 32, 67, 1000}) {
      const reference::Rows sums =
          reference::extra_sums(head, reference_rows(job.extra[0]), window);
      reference::Rows means;
      for (const reference::Vec& of_head : sums) {
        reference::Vec mean;
        for (const Index i : tokens) {  // pooled over 3 tokens of the middle
          reference::Real sum = 0;
          reference::Real count = 0;
          for (Index j = std::max<Index>(5, i - 1); j <= std::min<Index>(74, i + 1); ++j) {
            sum += of_head[static_cast<std::size_t>(j)];
            count += 1;
          }
          mean.push_back(sum / count);
        }
        means.push_back(mean);
      }
      expect_best_kept(job, reference::reduced(means, reference::ReferenceReduce::mean), kTolerance,
                       {{"ref", "q"}, {"kernel", "3"}, {"window", std::to_string(window)}});
    }
  }
}

TEST(ExtraRef, H2oEqualsReference) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    const std::vector<Index> tokens = gappy(5, 75);
    const KvHead head = make_head({.n = 90, .nq = 30, .d = 10, .group = 3}, seed);
    JobOf job("h2o", head, tokens, {60, 80});
    job.extra = sets_for(head, seed);
    const reference::Vec all =
        reference::reduced(reference::extra_sums(head, reference_rows(job.extra[0]), 1000),
                           reference::ReferenceReduce::mean);
    const reference::Vec scores = reference::taken(all, tokens);
    expect_best_kept(job, scores, kTolerance, {{"ref", "q"}, {"heavy_ratio", "1"}});
  }
}

// With the prompt's own last queries as the set, attention-matching is what it is without one: its
// reference queries attend to the middle alone.
TEST(ExtraRef, AttentionMatchingWithTheSameQueriesIsTheSame) {
  const KvHead head = make_head({.n = 90, .nq = 30, .d = 10, .group = 3}, 6);
  JobOf job("attention-matching", head, positions(5, 55), {60, 80});
  ExtraSet set{"own", {}};
  for (const Range part : {Range{60, 67}, Range{67, 80}}) {
    ExtraSegment& s = set.segments.emplace_back();
    s.info = {part.size(), 80, {}, false};
    for (const Matrix& q : head.q) {
      Matrix& rows = s.q.emplace_back(part.size(), head.d());
      std::copy_n(q.row(part.begin - head.q_start()), part.size() * head.d(), rows.data());
    }
    s.k = Matrix(part.size(), head.d());
  }
  job.extra = {set};
  for (const Given& given : settings("ref_queries=5,16,256;keys=rms,omp")) {
    const Compressed a = job.run(15 * head.pair_bytes(), given);
    const Compressed b = job.run(15 * head.pair_bytes(), with(given, {{"ref", "own"}}));
    EXPECT_EQ(a.made.weights, b.made.weights);
    EXPECT_TRUE(same_bits(a.made.k, b.made.k) && same_bits(a.made.v, b.made.v));
  }
}

}  // namespace
}  // namespace kvbench::test_extra_ref
