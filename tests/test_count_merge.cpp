// count-merge against its reference, what it keeps of sums, ties, budgets and odd inputs; the name
// that it had.
#include "algorithms/methods.hpp"
#include "algorithms/registry.hpp"
#include "merge_checks.hpp"
#include "refusal.hpp"

namespace kvbench::test_count_merge {
namespace {

TEST(CountMerge, EqualsTheReference) {
  const Method method = method_count_merge();
  const Range scoring = {70, 100};
  for (const auto& tokens : {positions(10, 90), gappy(10, 90)}) {
    const JobOf job(method, make_head(merging_shape(110), 3), tokens, scoring);
    const auto m = static_cast<Index>(tokens.size());
    for (const Index count : {Index{1}, Index{2}, Index{13}, m - 1, m}) {
      const Compressed c = job.run({}, {{"tokens", std::to_string(count)}});
      const std::vector<Index> kept =
          reference::heavy_and_recent(tokens, accumulated(job, scoring), count, count / 2);
      expect_merged(c, reference::count_merge(job.head(), tokens, kept));
      double weights = static_cast<double>(c.held.tokens.size());
      for (const float w : c.made.weights) {
        weights += static_cast<double>(w);
      }
      ASSERT_EQ(weights, static_cast<double>(m));  // every token is stood for once
      ASSERT_EQ(c.aux_bytes, count < m ? 4 * count : 0);
    }
  }
}

// The weighted sums of keys and values are those of all tokens.
TEST(CountMerge, KeepsTheSumsOfKeysAndValues) {
  const Method method = method_count_merge();
  const JobOf job(method, make_head(merging_shape(80), 4), positions(5, 75), {60, 80});
  const Compressed c = job.run({}, {{"tokens", "9"}});
  check_sums_kept(job, c);
}

TEST(CountMerge, TiesAndZeroKeysGoToTheLowestPosition) {
  const Method method = method_count_merge();
  KvHead head = make_head(merging_shape(20), 5);
  for (Index i = 0; i < 20; ++i) {  // the same direction, powers of two apart: cosine 1 exactly
    for (Index c = 0; c < 8; ++c) {
      head.k.row(i)[c] = std::ldexp(head.k.row(0)[c], static_cast<int>(i % 3));
    }
  }
  std::fill_n(head.k.row(1), 8, 0.0F);
  const JobOf job(method, head, positions(0, 20), {20, 20});
  const Compressed c = job.run({}, {{"tokens", "4"}, {"heavy_ratio", "0"}});
  EXPECT_EQ(c.held.tokens, (std::vector<Index>{17, 18, 19}));
  EXPECT_EQ(c.made.weights, (std::vector<float>{17.0F}));
}

TEST(CountMerge, TheNameThatItHadIsRefusedWithBothNames) {
  EXPECT_EQ(
      testing_replay::refusal([] { find_method("d2o-merge"); }),
      "no algorithm 'd2o-merge': what it computed is now count-merge; the paper's D2O is d2o");
}

}  // namespace
}  // namespace kvbench::test_count_merge
