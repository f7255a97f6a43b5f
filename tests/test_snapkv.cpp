// snapkv and the scores that pyramidkv and adakv share, against their definition.
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/snapkv_scores.hpp"
#include "read_rows.hpp"
#include "selection_checks.hpp"

namespace kvbench::test_snapkv {
namespace {

// Means of softmax weights, at most some tens of float64 terms; relative to a score.
constexpr double kRounding = 1e-12;

TEST(SnapKv, ScoresAndSelectionEqualReference) {
  // Windows shorter and longer than the scoring range; queries that do not see the last tokens.
  for (const std::vector<Index>& tokens : token_lists(8, 70)) {
    const JobOf job("snapkv", make_head({.n = 90, .nq = 60, .group = 3}, 4), tokens, {35, 60});
    for (const Given& given :
         settings("window=1,7,1000;kernel=1,3,5,1001;pool=avg,max;reduce=mean,max,sum")) {
      const reference::Vec slow =
          reference::snapkv(job.head(), tokens, std::max<Index>(35, 60 - index_in(given, "window")),
                            60, index_in(given, "kernel") / 2, given.at("pool") == "max",
                            reference::kReduces.at(given.at("reduce")));
      const std::vector<double> fast = snapkv_scores(job.task(), job.params(given));
      ASSERT_EQ(fast.size(), slow.size());
      expect_all_near(fast, slow, kRounding);
      ASSERT_TRUE(reference::is_top(tokens, slow, job.kept(20, given), 20, 1e-9L));
    }
  }
}

TEST(SnapKv, EqualScoresStayEqualUnderPooling) {
  for (int round = 0; round < 20; ++round) {
    KvHead head = make_head({.n = 50, .group = 3}, 6);
    head.scale = 0.0;  // every softmax is uniform; 50 + round queries give many different sums
    const JobOf job("snapkv", head, positions(3, 30), {30, 31 + round % 19});
    for (const char* pool : {"avg", "max"}) {
      ASSERT_EQ(job.kept(9, {{"pool", pool}}), positions(3, 12));
    }
  }
}

TEST(SnapKv, SaysHowManyQueriesItsScoresAskFor) {
  for (const char* name : {"snapkv", "pyramidkv", "adakv"}) {
    EXPECT_EQ(facts_of(name).scoring.front().last, 32);
    EXPECT_EQ(facts_of(name, {{"window", "5"}}).scoring.front().last, 5);
  }
  EXPECT_EQ(facts_of("tova").scoring.front().last, 1);
}

TEST(SnapKv, FloorShareIsNotCutByRounding) {
  EXPECT_EQ(floor_share(0.29, 100), 29);
  EXPECT_EQ(floor_share(0.2, 4), 0);
  EXPECT_EQ(floor_share(0.2, 5), 1);
  EXPECT_EQ(floor_share(1.0, 7), 7);
  EXPECT_EQ(floor_share(0.0, 7), 0);
  for (Index count = 0; count < 2000; ++count) {
    for (Index percent = 0; percent <= 100; ++percent) {
      ASSERT_EQ(floor_share(static_cast<double>(percent) / 100.0, count), percent * count / 100);
    }
  }
}

}  // namespace
}  // namespace kvbench::test_snapkv
