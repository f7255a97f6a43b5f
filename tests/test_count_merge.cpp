// count-merge against its reference, ties, and the name that it had.
#include "merge_checks.hpp"
#include "refusal.hpp"

namespace kvbench::test_count_merge {
namespace {

TEST(CountMerge, EqualsTheReference) {
  expect_reference("count-merge", reference::count_merge,
                   [](const Compressed& c, Index m, Index count) {
                     double weights = static_cast<double>(c.held.tokens.size());
                     for (const float w : c.made.weights) {
                       weights += static_cast<double>(w);
                     }
                     ASSERT_EQ(weights, static_cast<double>(m));  // every token is stood for once
                     ASSERT_EQ(c.aux_bytes, count < m ? 4 * count : 0);
                   });
}

TEST(CountMerge, TiesAndZeroKeysGoToTheLowestPosition) {
  KvHead head = parallel_keys(20, 5);
  std::fill_n(head.k.row(1), 8, 0.0F);
  const JobOf job("count-merge", head, positions(0, 20), {20, 20});
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
