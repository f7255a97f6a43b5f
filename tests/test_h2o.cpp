// h2o against the definition: heaviest by accumulated attention outside the most recent.
#include "algorithms/methods.hpp"
#include "method_checks.hpp"
#include "reference/selection.hpp"

namespace kvbench::test_h2o {
namespace {

// Scores are float64 sums of some fifty weights; the reference's are long double.
constexpr long double kRounding = 1e-12L;

TEST(H2o, EqualsReference) {
  const Method method = method_h2o();
  HeadShape shape;
  shape.n = 90;
  shape.nq = 60;
  const std::map<std::string, reference::ReferenceReduce> reduces = {
      {"mean", reference::ReferenceReduce::mean},
      {"max", reference::ReferenceReduce::max},
      {"sum", reference::ReferenceReduce::sum}};
  for (const std::vector<Index>& tokens : {positions(8, 70), gappy(8, 70)}) {
    const JobOf job(method, make_head(shape, 3), tokens, {35, 75});
    const reference::Rows sums = reference::attention_sums(job.head(), 35, 75);
    for (const auto& [word, reduce] : reduces) {
      const reference::Vec all = reference::reduced(sums, reduce);
      for (const auto& [ratio, tenths] :
           std::map<std::string, Index>{{"0", 0}, {"0.3", 3}, {"0.5", 5}, {"0.7", 7}, {"1", 10}}) {
        for (const Index kept : {0, 1, 2, 7, 10, 40, 41}) {
          const Index heavy = kept * tenths / 10;  // whole numbers: floor without rounding
          const auto cut = tokens.end() - (kept - heavy);
          const std::vector<Index> older(tokens.begin(), cut);
          reference::Vec scores;
          for (const Index i : older) {
            scores.push_back(all[i]);
          }
          const std::vector<Index> got = job.kept(kept, {{"heavy_ratio", ratio}, {"reduce", word}});
          ASSERT_EQ(static_cast<Index>(got.size()), kept);
          ASSERT_TRUE(std::equal(got.begin() + heavy, got.end(), cut, tokens.end()));
          ASSERT_TRUE(reference::is_top(older, scores, {got.begin(), got.begin() + heavy}, heavy,
                                        kRounding));
        }
      }
    }
  }
}

TEST(H2o, WithoutScoringQueriesTheLowestPositionsAreHeavy) {
  const Method method = method_h2o();
  const JobOf job(method, make_head({}, 1), positions(10, 30), {64, 64});
  EXPECT_EQ(job.kept(6), (std::vector<Index>{10, 11, 12, 27, 28, 29}));
}

}  // namespace
}  // namespace kvbench::test_h2o
