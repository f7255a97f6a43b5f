// value-merge against its reference, what stays untouched, ties, budgets and odd inputs.
#include "algorithms/methods.hpp"
#include "merge_checks.hpp"

namespace kvbench::test_value_merge {
namespace {

TEST(ValueMerge, EqualsTheReference) {
  const Method method = method_value_merge();
  const Range scoring = {70, 100};
  for (const auto& tokens : {positions(10, 90), gappy(10, 90)}) {
    const JobOf job(method, make_head(merging_shape(110), 3), tokens, scoring);
    const auto m = static_cast<Index>(tokens.size());
    for (const Index count : {Index{1}, Index{2}, Index{13}, m - 1, m}) {
      const Compressed c = job.run({}, {{"tokens", std::to_string(count)}});
      const std::vector<Index> kept =
          reference::heavy_and_recent(tokens, accumulated(job, scoring), count, count / 2);
      expect_merged(c, reference::value_merge(job.head(), tokens, kept));
      ASSERT_EQ(c.aux_bytes, 0);
      ASSERT_TRUE(c.made.weights.empty());
    }
  }
}

// Keys are those of the trace, of the changed tokens too.
TEST(ValueMerge, KeysStay) {
  const Method method = method_value_merge();
  const JobOf job(method, make_head(merging_shape(80), 4), positions(5, 75), {60, 80});
  const Compressed c = job.run({}, {{"tokens", "9"}});
  ASSERT_GT(c.made.k.rows(), 2);
  std::vector<Index> changed;
  for (Index i = 5; i < 75; ++i) {
    for (Index r = 0; r < c.made.k.rows(); ++r) {
      if (std::equal(c.made.k.row(r), c.made.k.row(r) + 8, job.head().k.row(i))) {
        changed.push_back(i);
        EXPECT_FALSE(std::equal(c.made.v.row(r), c.made.v.row(r) + 5, job.head().v.row(i)));
      }
    }
  }
  EXPECT_EQ(static_cast<Index>(changed.size()), c.made.k.rows());
  EXPECT_EQ(changed.size() + c.held.tokens.size(), 9U);
}

TEST(ValueMerge, OppositeKeysAndZeroValuesAddNothing) {
  const Method method = method_value_merge();
  KvHead head = make_head(merging_shape(20), 5);
  for (Index i = 0; i < 20; ++i) {
    for (Index t = 0; t < 8; ++t) {
      head.k.row(i)[t] = i < 17 ? -1.0F : 1.0F;
    }
  }
  const JobOf opposite(method, head, positions(0, 20), {20, 20});
  const Given last = {{"tokens", "3"}, {"heavy_ratio", "0"}};
  EXPECT_EQ(opposite.run({}, last).held.tokens, (std::vector<Index>{17, 18, 19}));
  for (Index i = 0; i < 20; ++i) {
    std::fill_n(head.k.row(i), 8, 1.0F);
    if (i < 17) {
      std::fill_n(head.v.row(i), 5, 0.0F);
    }
  }
  const JobOf zero(method, head, positions(0, 20), {20, 20});
  EXPECT_EQ(zero.run({}, last).held.tokens, (std::vector<Index>{17, 18, 19}));
}

TEST(ValueMerge, TiesGoToTheLowestPosition) {
  const Method method = method_value_merge();
  KvHead head = make_head(merging_shape(20), 5);
  for (Index i = 0; i < 20; ++i) {  // the same direction, powers of two apart: cosine 1 exactly
    for (Index c = 0; c < 8; ++c) {
      head.k.row(i)[c] = std::ldexp(head.k.row(0)[c], static_cast<int>(i % 3));
    }
  }
  const JobOf job(method, head, positions(0, 20), {20, 20});
  const Compressed c = job.run({}, {{"tokens", "4"}, {"heavy_ratio", "0"}});
  EXPECT_EQ(c.held.tokens, (std::vector<Index>{17, 18, 19}));
  ASSERT_EQ(c.made.k.rows(), 1);
  EXPECT_TRUE(std::equal(c.made.k.row(0), c.made.k.row(0) + 8, head.k.row(16)));
  EXPECT_EQ(c.diag.front(), (std::pair<std::string, std::string>{"merged", "16"}));
}

TEST(ValueMerge, ValuesStayWithinThoseThatWereBlended) {
  const Method method = method_value_merge();
  HeadShape shape = merging_shape(60);
  shape.value_norm = 1e38;
  const JobOf job(method, make_head(shape, 6), positions(5, 55), {40, 60});
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
