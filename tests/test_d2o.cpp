// d2o against its reference, by hand, what its threshold drops, ties, budgets and odd inputs.
#include "merge_checks.hpp"

namespace kvbench::test_d2o {
namespace {

Index merged_of(const Compressed& c) {
  EXPECT_EQ(c.diag.size(), 1U);
  EXPECT_EQ(c.diag[0].first, "merged");
  return std::stoll(c.diag[0].second);
}

TEST(D2o, EqualsTheReference) {
  bool dropped_some = false;
  bool merged_more_into_one = false;
  for (const unsigned seed : {3U, 4U}) {
    for (const char* ema : {"0", "0.3", "0.7", "1"}) {
      const auto merge = [&](const KvHead& head, const auto& tokens, const auto& kept) {
        return reference::d2o(head, tokens, kept, std::stold(ema));
      };
      const auto check = [&](const Compressed& c, Index m, Index count) {
        ASSERT_TRUE(c.made.weights.empty());
        ASSERT_EQ(c.aux_bytes, 0);
        ASSERT_EQ(static_cast<Index>(c.held.tokens.size()) + c.made.k.rows(), count);
        const Index merged = merged_of(c);
        ASSERT_TRUE(count == m ? merged == 0 : merged >= 1);  // the first is always merged
        ASSERT_LE(merged, m - count);
        dropped_some = dropped_some || merged < m - count;
        merged_more_into_one = merged_more_into_one || merged > c.made.k.rows();
      };
      expect_reference("d2o", merge, check, {{"ema", ema}}, seed);
    }
  }
  EXPECT_TRUE(dropped_some);
  EXPECT_TRUE(merged_more_into_one);
}

// Parallel keys have u = 1 but for rounding: none lies below the threshold, whatever their lengths.
TEST(D2o, ParallelKeysAreAllMergedIntoTheLowest) {
  for (unsigned seed = 1; seed <= 5; ++seed) {
    KvHead head = make_head(merging_shape(60), seed);
    for (Index i = 0; i < 60; ++i) {
      for (Index t = 0; t < 8; ++t) {
        head.k.row(i)[t] = head.k.row(0)[t] * static_cast<float>(1 + i % 7);
      }
    }
    for (const char* ema : {"0", "0.7", "1"}) {
      const JobOf job("d2o", head, positions(0, 60), {60, 60});
      const Compressed c = job.run({}, {{"tokens", "4"}, {"heavy_ratio", "0"}, {"ema", ema}});
      EXPECT_EQ(merged_of(c), 56);
    }
  }
}

// A zero key has cosine 0 to everything: dropped once the threshold is above, merged before.
TEST(D2o, ZeroKeys) {
  KvHead head = make_head(merging_shape(10), 2);
  repeat_first_row(head.k);
  for (const bool first : {true, false}) {
    KvHead one = head;
    std::fill_n(one.k.row(first ? 0 : 3), 8, 0.0F);
    const JobOf job("d2o", one, positions(0, 10), {10, 10});
    const Compressed c = job.run({}, {{"tokens", "3"}, {"heavy_ratio", "0"}});
    EXPECT_EQ(merged_of(c), first ? 7 : 6);
    EXPECT_EQ(c.held.tokens, (std::vector<Index>{8, 9}));
  }
}

}  // namespace
}  // namespace kvbench::test_d2o
