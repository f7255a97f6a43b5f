// leverage against its definition: exact, through the sketch's own draws, with every layout of
// rotary tables; how near the sketch comes; what is refused.
#include <numeric>

#include "algorithms/shared/leverage_scores.hpp"
#include "reference/leverage.hpp"
#include "selection_checks.hpp"

namespace kvbench::test_leverage {
namespace {

using testing_replay::rope_tables;

constexpr reference::Real kRidge = 1e-2L;
// The matrix has a condition of up to 1e7 (keys of some tens over a ridge of 1e-2), which costs
// float64 as many of its 16 digits.
constexpr reference::Real kRounding = 1e-8L;

MatrixD as_double(const Matrix& m) {
  MatrixD out;
  gather_rows(m, positions(0, m.rows()), out);
  return out;
}

TEST(Leverage, ScoresEqualTheDefinition) {
  const Rng rng(3, {"p", 0, 0}, "leverage");
  std::mt19937_64 generator(4);
  for (const Index m : {1, 2, 5, 40, 700}) {  // fewer tokens than channels, and several blocks
    for (const Index d : {1, 7, 24}) {
      for (const double norm : {0.01, 1.0, 30.0}) {
        Matrix keys = normal_matrix(m, d, norm, generator);
        for (Index i = 0; i < m; ++i) {
          keys.row(i)[0] += 5.0F;  // a common offset, which the mean takes out
        }
        for (const Index columns : {0, 1, 5, 48}) {
          const reference::Vec slow = reference::leverage(
              reference::rows_of(keys), sketch_of(rng.stream("sketch"), d, columns), kRidge);
          const std::vector<double> fast =
              leverage_scores(as_double(keys), columns, rng.stream("sketch"));
          ASSERT_EQ(fast.size(), slow.size());
          for (std::size_t i = 0; i < fast.size(); ++i) {
            ASSERT_TRUE(std::abs(fast[i] - slow[i]) <= kRounding) << m << " " << d << " " << norm;
            ASSERT_TRUE(fast[i] >= 0.0 && fast[i] <= 1.0 + static_cast<double>(kRounding));
          }
        }
      }
    }
  }
}

TEST(Leverage, KeepsWhatTheDefinitionKeeps) {
  for (const auto& [layout, dim] : kRopeLayouts) {
    for (const std::vector<Index>& tokens : token_lists(8, 90)) {
      JobOf job("leverage", make_head({.n = 110, .d = 10, .key_norm = 6.0}, 5), tokens, {});
      job.rope = rope_tables(110, dim, layout, 50.0, 1.2);
      const reference::Rows keys = reference::unrotated(job.head(), tokens, job.rope->cos,
                                                        job.rope->sin, layout == RopeLayout::half);
      for (const Index columns : {0, 3, 48}) {
        const Rng rng(1, {"p", 0, 0}, "leverage");
        const reference::Vec slow =
            reference::leverage(keys, sketch_of(rng.stream("sketch"), 10, columns), kRidge);
        expect_best_kept(job, slow, kRounding, {{"sketch", std::to_string(columns)}});
      }
    }
  }
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto centred = [](const std::vector<double>& x) {
    const double mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
    reference::Vec out;
    for (const double y : x) {
      out.push_back(y - mean);
    }
    return out;
  };
  return static_cast<double>(reference::cosine(centred(a), centred(b)));
}

// Keys in a space of no more dimensions than the sketch has columns keep their leverage whatever
// the draws, but for the ridge; keys of falling spectrum nearly do, the better the more columns.
TEST(Leverage, TheSketchComesNearTheExactScores) {
  std::mt19937_64 generator(6);
  const Matrix narrow = normal_matrix(600, 32, 20.0, generator);
  Matrix wide = normal_matrix(600, 96, 20.0, generator);
  for (Index i = 0; i < 600; ++i) {
    for (Index t = 0; t < 96; ++t) {
      wide.row(i)[t] *= std::exp(-0.06F * static_cast<float>(t));
    }
  }
  const auto mean_correlation = [](const Matrix& keys, Index columns) {
    const RngStream none;
    const std::vector<double> exact = leverage_scores(as_double(keys), 0, none);
    double sum = 0.0;
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const Rng rng(seed, {"p", 0, 0}, "leverage");
      sum += correlation(exact, leverage_scores(as_double(keys), columns, rng.stream("sketch")));
    }
    return sum / 5.0;
  };
  EXPECT_GT(mean_correlation(narrow, 48), 0.999);
  const double few = mean_correlation(wide, 6);
  const double usual = mean_correlation(wide, 48);
  const double many = mean_correlation(wide, 1024);
  EXPECT_GT(usual, 0.6);
  EXPECT_GT(usual, few + 0.1);
  EXPECT_GT(many, 0.99);
}

// Keys as large as float32 holds, and repeated ones: the ridge grows until there is a factor.
TEST(Leverage, HugeAndRepeatedKeysStayFinite) {
  for (const float size : {1e-38F, 1e6F, 1e12F, 3e38F}) {
    for (const Index columns : {0, 48}) {
      std::mt19937_64 generator(8);
      Matrix keys = normal_matrix(50, 8, 1.0, generator);
      for (Index i = 0; i < 50; ++i) {
        for (Index t = 0; t < 8; ++t) {
          const float x = std::clamp(keys.row(i % 3)[t], -1.0F, 1.0F);  // rank 3
          keys.row(i)[t] = size * x;
        }
      }
      const Rng rng(1, {"p", 0, 0}, "leverage");
      for (const double x : leverage_scores(as_double(keys), columns, rng.stream("sketch"))) {
        ASSERT_TRUE(x >= 0.0 && x <= 1.0 + 1e-6) << size << " " << columns << " " << x;
      }
    }
  }
}

TEST(Leverage, EqualKeysTieToTheLowestPosition) {
  KvHead head = make_head({}, 9);
  std::fill_n(head.k.data(), 64 * 8, 0.0F);
  const JobOf job("leverage", head, positions(10, 50), {}, true);
  EXPECT_EQ(job.kept(4), (std::vector<Index>{10, 11, 12, 13}));
  head.k.row(33)[2] = 1.0F;
  const JobOf odd("leverage", head, positions(10, 50), {}, true);
  EXPECT_EQ(odd.kept(2), (std::vector<Index>{10, 33}));
}

}  // namespace
}  // namespace kvbench::test_leverage
