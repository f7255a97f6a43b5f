// h2o against the definition: heaviest by accumulated attention outside the most recent.
#include "reference/merging.hpp"
#include "selection_checks.hpp"

namespace kvbench::test_h2o {
namespace {

// No two sums of these heads are within rounding of each other.
TEST(H2o, EqualsReference) {
  for (const std::vector<Index>& tokens : token_lists(8, 70)) {
    const JobOf job("h2o", make_head({.n = 90, .nq = 60}, 3), tokens, {35, 75});
    const reference::Rows sums = reference::attention_sums(job.head(), 35, 75);
    for (const auto& [word, reduce] : reference::kReduces) {
      const reference::Vec scores = reference::taken(reference::reduced(sums, reduce), tokens);
      for (const auto& [ratio, tenths] :
           std::map<std::string, Index>{{"0", 0}, {"0.3", 3}, {"0.5", 5}, {"0.7", 7}, {"1", 10}}) {
        for (const Index kept : {0, 1, 2, 7, 10, 40, 41}) {
          const Index heavy = kept * tenths / 10;  // whole numbers: floor without rounding
          ASSERT_EQ(job.kept(kept, {{"heavy_ratio", ratio}, {"reduce", word}}),
                    reference::heavy_and_recent(tokens, scores, kept, heavy));
        }
      }
    }
  }
}

TEST(H2o, WithoutScoringQueriesTheLowestPositionsAreHeavy) {
  const JobOf job("h2o", make_head({}, 1), positions(10, 30), {64, 64});
  EXPECT_EQ(job.kept(6), (std::vector<Index>{10, 11, 12, 27, 28, 29}));
}

}  // namespace
}  // namespace kvbench::test_h2o
