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
      double expected = 0.0;
      for (Index j = 0; j < m; ++j) {
        for (Index r = 0; r < hidden; ++r) {
          double sum = 0.0;
          for (std::size_t g = 0; g < 3; ++g) {
            for (Index t = 0; t < x[g].cols(); ++t) {
              sum += static_cast<double>(x[g].row(j)[t]) * static_cast<double>(w[g].row(r)[t]);
            }
          }
          expected += sum * sum;
        }
      }
      // Thousands of float64 terms that are all positive.
      EXPECT_TRUE(std::abs(projected_square(x, w) - expected) <= 1e-12 * expected)
          << m << " " << hidden;
      w[2].row(hidden - 1)[1] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(std::isnan(projected_square(x, w)));
    }
  }
}

}  // namespace
}  // namespace kvbench::test_layer_error
