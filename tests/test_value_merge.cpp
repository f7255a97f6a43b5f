// value-merge against its reference, what stays untouched, ties, budgets and odd inputs.
#include "merge_checks.hpp"

namespace kvbench::test_value_merge {
namespace {

TEST(ValueMerge, EqualsTheReference) {
  expect_reference("value-merge", reference::value_merge, [](const Compressed& c, Index, Index) {
    ASSERT_EQ(c.aux_bytes, 0);
    ASSERT_TRUE(c.made.weights.empty());
  });
}

TEST(ValueMerge, OppositeKeysAndZeroValuesAddNothing) {
  KvHead head = make_head(merging_shape(20), 5);
  for (Index i = 0; i < 20; ++i) {
    for (Index t = 0; t < 8; ++t) {
      head.k.row(i)[t] = i < 17 ? -1.0F : 1.0F;
    }
  }
  const JobOf opposite("value-merge", head, positions(0, 20), {20, 20});
  const Given last = {{"tokens", "3"}, {"heavy_ratio", "0"}};
  EXPECT_EQ(opposite.run({}, last).held.tokens, (std::vector<Index>{17, 18, 19}));
  for (Index i = 0; i < 20; ++i) {
    std::fill_n(head.k.row(i), 8, 1.0F);
    if (i < 17) {
      std::fill_n(head.v.row(i), 5, 0.0F);
    }
  }
  const JobOf zero("value-merge", head, positions(0, 20), {20, 20});
  EXPECT_EQ(zero.run({}, last).held.tokens, (std::vector<Index>{17, 18, 19}));
}

TEST(ValueMerge, TiesGoToTheLowestPosition) {
  const KvHead head = parallel_keys(20, 5);
  const JobOf job("value-merge", head, positions(0, 20), {20, 20});
  const Compressed c = job.run({}, {{"tokens", "4"}, {"heavy_ratio", "0"}});
  EXPECT_EQ(c.held.tokens, (std::vector<Index>{17, 18, 19}));
  ASSERT_EQ(c.made.k.rows(), 1);
  EXPECT_TRUE(std::equal(c.made.k.row(0), c.made.k.row(0) + 8, head.k.row(16)));
  EXPECT_EQ(c.diag.front(), (std::pair<std::string, std::string>{"merged", "16"}));
}

TEST(ValueMerge, ValuesStayWithinThoseThatWereBlended) {
  HeadShape shape = merging_shape(60);
  shape.value_norm = 1e38;
  const JobOf job("value-merge", make_head(shape, 6), positions(5, 55), {40, 60});
  const Compressed c = job.run({}, {{"tokens", "7"}});
  for (Index t = 0; t < 5; ++t) {
    float low = job.head().v.row(5)[t];
    float high = low;
    for (Index i = 5; i < 55; ++i) {
      low = std::min(low, job.head().v.row(i)[t]);
      high = std::max(high, job.head().v.row(i)[t]);
    }
    for (Index r = 0; r < c.made.v.rows(); ++r) {
      ASSERT_TRUE(c.made.v.row(r)[t] >= low && c.made.v.row(r)[t] <= high);
    }
  }
}

}  // namespace
}  // namespace kvbench::test_value_merge
