// d2o-merge and cam against their twins, what they keep of sums, budgets and odd inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/float16.hpp"
#include "method_checks.hpp"
#include "twin/merging.hpp"
#include "twin/selection.hpp"

namespace kvbench {

Method method_d2o_merge();
Method method_cam();

namespace {

// Float32 storage of a mean or a sum made in float64.
constexpr double kStoreTolerance = 1e-6;

// Held and made tokens against the twin's: which are exact, and the others' keys, values, weights
// in order of position.
void expect_equal(const Compressed& c, const std::map<Index, twin::Merged>& expected) {
  std::vector<Index> exact;
  Index row = 0;
  for (const auto& [token, m] : expected) {
    if (!m.changed) {
      exact.push_back(token);
      continue;
    }
    ASSERT_LT(row, c.made.k.rows());
    const auto near = [&](const twin::Vec& e, const float* got) {
      for (std::size_t t = 0; t < e.size(); ++t) {
        const auto x = static_cast<double>(e[t]);
        ASSERT_TRUE(std::abs(static_cast<double>(got[t]) - x) <=
                    kStoreTolerance * (1 + std::abs(x)))
            << token;
      }
    };
    near(m.k, c.made.k.row(row));
    near(m.v, c.made.v.row(row));
    ASSERT_EQ(c.made.weights.empty() ? 1.0F : c.made.weights[static_cast<std::size_t>(row)],
              static_cast<float>(m.w));
    ++row;
  }
  ASSERT_EQ(row, c.made.k.rows());
  ASSERT_EQ(c.held.tokens, exact);
  ASSERT_TRUE(c.held.weights.empty());
  ASSERT_EQ(c.held.common, 1.0F);
}

twin::Vec scores_of(const JobOf& job, Range scoring) {
  const twin::Vec all = twin::reduced(twin::attention_sums(job.head(), scoring.begin, scoring.end),
                                      twin::TwinReduce::mean);
  twin::Vec out;
  for (const Index i : job.tokens()) {
    out.push_back(all[static_cast<std::size_t>(i)]);
  }
  return out;
}

HeadShape shape_of(Index n) {
  HeadShape shape;
  shape.n = shape.nq = n;
  shape.dv = 5;
  return shape;
}

TEST(D2oMerge, EqualsTheTwin) {
  const Method method = method_d2o_merge();
  const Range scoring = {70, 100};
  for (const auto& tokens : {positions(10, 90), gappy(10, 90)}) {
    const JobOf job(method, make_head(shape_of(110), 3), tokens, scoring);
    const auto m = static_cast<Index>(tokens.size());
    for (const Index count : {Index{1}, Index{2}, Index{13}, m - 1, m}) {
      const Compressed c = job.run({}, {{"tokens", std::to_string(count)}});
      const std::vector<Index> kept =
          twin::heavy_and_recent(tokens, scores_of(job, scoring), count, count / 2);
      expect_equal(c, twin::d2o(job.head(), tokens, kept));
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
TEST(D2oMerge, KeepsTheSumsOfKeysAndValues) {
  const Method method = method_d2o_merge();
  const JobOf job(method, make_head(shape_of(80), 4), positions(5, 75), {60, 80});
  const Compressed c = job.run({}, {{"tokens", "9"}});
  for (Index t = 0; t < 5; ++t) {
    double all = 0.0;
    double left = 0.0;
    for (const Index i : job.tokens()) {
      all += static_cast<double>(job.head().v.row(i)[t]);
    }
    for (const Index i : c.held.tokens) {
      left += static_cast<double>(job.head().v.row(i)[t]);
    }
    for (Index r = 0; r < c.made.v.rows(); ++r) {
      left += static_cast<double>(c.made.weights[static_cast<std::size_t>(r)]) *
              static_cast<double>(c.made.v.row(r)[t]);
    }
    EXPECT_NEAR(left, all, 1e-5);  // 70 float32 terms
  }
}

TEST(D2oMerge, TiesAndZeroKeysGoToTheLowestPosition) {
  const Method method = method_d2o_merge();
  KvHead head = make_head(shape_of(20), 5);
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

TEST(Cam, EqualsTheTwin) {
  const Method method = method_cam();
  const Range scoring = {70, 100};
  const RngStream stream = Rng(1, {"p", 0, 0}, "cam").stream("merge");
  std::vector<double> draw(110);
  stream.uniforms(0, draw);
  for (const auto& tokens : {positions(10, 90), gappy(10, 90)}) {
    const JobOf job(method, make_head(shape_of(110), 6), tokens, scoring);
    const auto m = static_cast<Index>(tokens.size());
    const twin::Vec scores = scores_of(job, scoring);
    for (const Index count : {Index{0}, Index{1}, Index{2}, Index{13}, m - 1, m}) {
      for (const Index merge : {1, 3, 32}) {
        for (const char* ratio : {"0.5", "1"}) {
          const Compressed c = job.run({}, {{"tokens", std::to_string(count)},
                                            {"merge", std::to_string(merge)},
                                            {"heavy_ratio", ratio}});
          const Index heavy = std::string(ratio) == "1" ? count : count / 2;
          const std::vector<Index> kept = twin::heavy_and_recent(tokens, scores, count, heavy);
          expect_equal(c, twin::cam(job.head(), tokens, scores, kept, merge, draw));
          ASSERT_EQ(c.aux_bytes, 0);
        }
      }
    }
  }
}

// Where every draw succeeds, the sum of all values is kept.
TEST(Cam, KeepsTheSumOfValuesWhenAllMerge) {
  const Method method = method_cam();
  KvHead head = make_head(shape_of(40), 7);
  std::fill_n(head.k.data(), 40 * 8, 0.0F);  // one query, equal scores: probability 1
  const JobOf job(method, head, positions(2, 38), {39, 40});
  const Compressed c = job.run({}, {{"tokens", "8"}, {"heavy_ratio", "0"}});
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

TEST(CacheMerging, NeverMoreThanTheBudgetAndStoredAtTheElementType) {
  for (const Method& method : {method_d2o_merge(), method_cam()}) {
    const Index extra = method.info.name == "cam" ? 0 : 4;
    for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32}) {
      HeadShape shape = shape_of(150);
      shape.dtype = dtype;
      for (const Index m : {1, 2, 3, 20, 100}) {
        const std::vector<Index> tokens = gappy(10, 10 + m);
        const JobOf job(method, make_head(shape, 21), tokens, {90, 140});
        const auto count = static_cast<Index>(tokens.size());
        const Index each = job.head().pair_bytes() + extra;
        for (Index budget = 0; budget <= (count + 2) * each; budget += 1 + each / 3) {
          const Compressed c = job.run(budget);
          ASSERT_LE(middle_bytes_of(c, job.head(), count), budget);
          ASSERT_EQ(static_cast<Index>(c.held.tokens.size()) + c.made.k.rows(),
                    std::min(count, budget / each));
          for (Index i = 0; i < c.made.v.rows() * 5; ++i) {
            ASSERT_EQ(c.made.v.data()[i], round_to(dtype, c.made.v.data()[i]));
          }
        }
      }
    }
  }
}

TEST(CacheMerging, OddInputsGiveDefinedResults) {
  for (const Method& method : {method_d2o_merge(), method_cam()}) {
    check_odd_inputs(method);
    HeadShape shape = shape_of(30);
    shape.dtype = DType::float16;
    shape.value_norm = 100000.0;  // sums beyond the largest half stay finite
    KvHead head = make_head(shape, 8);
    for (Index i = 0; i < 30 * 5; ++i) {
      head.v.data()[i] = std::clamp(head.v.data()[i], -65504.0F, 65504.0F);
    }
    const JobOf job(method, head, positions(0, 30), {0, 30});
    ASSERT_NO_THROW(job.run({}, {{"tokens", "3"}}));
    EXPECT_EQ(method.info.sizes, (std::vector<std::string>{"tokens", "T"}));
    EXPECT_FALSE(method.info.departures.empty());
    EXPECT_TRUE(method.info.scores);
  }
}

}  // namespace
}  // namespace kvbench
