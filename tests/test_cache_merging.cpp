// cam against its reference, what it keeps of sums, budgets and odd inputs.
#include "algorithms/methods.hpp"
#include "merge_checks.hpp"

namespace kvbench::test_cache_merging {
namespace {

TEST(Cam, EqualsTheReference) {
  const Range scoring = {70, 100};
  const RngStream stream = Rng(1, {"p", 0, 0}, "cam").stream("merge");
  std::vector<double> draw(110);
  stream.uniforms(0, draw);
  for (const auto& tokens : {positions(10, 90), gappy(10, 90)}) {
    const JobOf job("cam", make_head(merging_shape(110), 6), tokens, scoring);
    const auto m = static_cast<Index>(tokens.size());
    const reference::Vec scores = accumulated(job, scoring);
    for (const Index count : {Index{0}, Index{1}, Index{2}, Index{13}, m - 1, m}) {
      for (const Index merge : {1, 3, 32}) {
        for (const char* ratio : {"0.5", "1"}) {
          const Compressed c = job.run({}, {{"tokens", std::to_string(count)},
                                            {"prefill", "once"},
                                            {"merge", std::to_string(merge)},
                                            {"heavy_ratio", ratio}});
          const Index heavy = std::string(ratio) == "1" ? count : count / 2;
          const std::vector<Index> kept = reference::heavy_and_recent(tokens, scores, count, heavy);
          expect_merged(c, reference::cam(job.head(), tokens, scores, kept, merge, draw));
          ASSERT_EQ(c.aux_bytes, 0);
        }
      }
    }
  }
}

// Where every draw succeeds, the sum of all values is kept.
TEST(Cam, KeepsTheSumOfValuesWhenAllMerge) {
  KvHead head = make_head(merging_shape(40), 7);
  std::fill_n(head.k.data(), 40 * 8, 0.0F);  // one query, equal scores: probability 1
  const JobOf job("cam", head, positions(2, 38), {39, 40});
  const Compressed c = job.run({}, {{"tokens", "8"}, {"heavy_ratio", "0"}, {"prefill", "once"}});
  ASSERT_EQ(c.made.k.rows(), 8);
  for (Index t = 0; t < 5; ++t) {
    double all = 0.0;
    double left = 0.0;
    for (const Index i : job.tokens()) {
      all += static_cast<double>(head.v.row(i)[t]);
    }
    for (Index r = 0; r < 8; ++r) {
      left += static_cast<double>(c.made.v.row(r)[t]);
    }
    EXPECT_NEAR(left, all, 1e-5);
  }
}

}  // namespace
}  // namespace kvbench::test_cache_merging
