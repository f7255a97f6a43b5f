// Errors of a layer's output: products of any size against triple loops, quotients of zeros.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "make_trace.hpp"
#include "metrics/layer_error.hpp"

namespace kvbench::test_layer_error {
namespace {

TEST(LayerErrorTest, QuotientsOfZeroAndNoNumbers) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(layer_error(4.0, 16.0, 64.0).out_rel, 0.5);
  EXPECT_EQ(layer_error(4.0, 16.0, 64.0).residual_rel, 0.25);
  EXPECT_FALSE(layer_error(4.0, 16.0, std::nullopt).residual_rel.has_value());
  EXPECT_EQ(layer_error(0.0, 0.0, 0.0).out_rel, 0.0);
  EXPECT_EQ(layer_error(0.0, 0.0, 0.0).residual_rel, 0.0);
  EXPECT_TRUE(std::isinf(layer_error(1.0, 0.0, 0.0).out_rel));
  EXPECT_TRUE(std::isinf(*layer_error(1.0, 0.0, 0.0).residual_rel));
  EXPECT_TRUE(std::isnan(layer_error(kNan, 0.0, 1.0).out_rel));
  EXPECT_TRUE(std::isnan(*layer_error(kNan, 1.0, 1.0).residual_rel));
}

TEST(LayerErrorTest, ProductsOfAnySizeAreThoseOfTripleLoops) {
  std::mt19937_64 random(5);
  for (const Index m : {1, 255, 256, 300}) {
    for (const Index hidden : {1, 127, 129, 260}) {
      std::vector<Matrix> x;
      std::vector<Matrix> w;
      for (int g = 0; g < 3; ++g) {
        x.push_back(testing_replay::random_matrix(m, 5 + g, 1.0F, random));
        w.push_back(testing_replay::random_matrix(hidden, 5 + g, 1.0F, random));
      }
      double whole = 0.0;
      std::vector<double> of_heads(3, 0.0);
      for (Index j = 0; j < m; ++j) {
        for (Index r = 0; r < hidden; ++r) {
          double sum = 0.0;
          for (std::size_t g = 0; g < 3; ++g) {
            double part = 0.0;
            for (Index t = 0; t < x[g].cols(); ++t) {
              part += static_cast<double>(x[g].row(j)[t]) * static_cast<double>(w[g].row(r)[t]);
            }
            of_heads[g] += part * part;
            sum += part;
          }
          whole += sum * sum;
        }
      }
      ProjectedSquares got = projected_squares(x, w);
      // Thousands of float64 terms that are all positive.
      EXPECT_TRUE(std::abs(got.whole - whole) <= 1e-12 * whole) << m << " " << hidden;
      ASSERT_EQ(got.of_heads.size(), 3U);
      for (std::size_t g = 0; g < 3; ++g) {
        EXPECT_TRUE(std::abs(got.of_heads[g] - of_heads[g]) <= 1e-12 * of_heads[g]) << g;
      }
      w[2].row(hidden - 1)[1] = std::numeric_limits<float>::quiet_NaN();
      got = projected_squares(x, w);
      EXPECT_TRUE(std::isnan(got.whole) && std::isnan(got.of_heads[2]));
      EXPECT_FALSE(std::isnan(got.of_heads[0]) || std::isnan(got.of_heads[1]));
    }
  }
}

}  // namespace
}  // namespace kvbench::test_layer_error
