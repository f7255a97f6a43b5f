// The codebooks of quant-rotated against published tables, closed forms and a slow search.
#include <gtest/gtest.h>

#include <numbers>

#include "algorithms/shared/lloyd_max.hpp"
#include "reference/rotated.hpp"

namespace kvbench::test_lloyd_max {
namespace {

// d = 2: the arcsine law; d = 3: the uniform law on [-1, 1]; d = 1: the two signs.
TEST(LloydMax, ClosedForms) {
  const double arcsine = 2.0 / std::numbers::pi;  // mean of |x|
  EXPECT_TRUE(std::abs(unit_codebook(1, 2).levels[1] - arcsine) <= 1e-12);
  for (const int bits : {1, 2, 3, 6, 8}) {
    const Codebook& uniform = unit_codebook(bits, 3);
    const auto count = static_cast<double>(uniform.levels.size());
    for (std::size_t i = 0; i < uniform.levels.size(); ++i) {
      const double level = -1.0 + (2.0 * static_cast<double>(i) + 1.0) / count;
      ASSERT_TRUE(std::abs(uniform.levels[i] - level) <= 1e-11) << bits << " " << i;
    }
  }
  EXPECT_EQ(unit_codebook(1, 1).levels, (std::vector<double>{-1.0, 1.0}));
}

// J. Max, 1960, table I: the optimum for a Gaussian of variance 1, four digits. In d dimensions a
// coordinate's law differs from it by O(1 / d).
TEST(LloydMax, GaussianTableOfMax) {
  const std::vector<std::vector<double>> table = {
      {0.7980},
      {0.4528, 1.510},
      {0.2451, 0.7560, 1.344, 2.152},
      {0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733}};
  const Index d = 1000000;
  for (int bits = 1; bits <= 4; ++bits) {
    const Codebook& book = unit_codebook(bits, d);
    const std::vector<double>& expected = table[static_cast<std::size_t>(bits - 1)];
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double got = book.levels[expected.size() + i] * 1000.0;
      ASSERT_TRUE(std::abs(got - expected[i]) <= 6e-4 * expected[i]) << bits << " " << got;
      ASSERT_TRUE(book.levels[expected.size() - 1 - i] == -book.levels[expected.size() + i]);
    }
  }
}

// TurboQuant, theorem 1 and section 3.1: distortions 0.36, 0.117, 0.03, 0.009 for 1 to 4 bits, of a
// unit vector in high dimension, two digits each (0.0345 for 3 bits by Max's table).
TEST(LloydMax, PublishedDistortions) {
  const std::vector<double> expected = {0.3634, 0.1175, 0.03454, 0.009497};
  for (int bits = 1; bits <= 4; ++bits) {
    const Codebook& book = unit_codebook(bits, 100000);
    const double got = 100000.0 * reference::distortion(book.levels, 100000);
    const double e = expected[static_cast<std::size_t>(bits - 1)];
    EXPECT_TRUE(std::abs(got - e) <= 1e-3 * e + 1e-6) << bits << " " << got;
  }
}

// Every level is the mean of its cell, by a slow sum over a grid: at a cut one point of a cell may
// count on the wrong side, which moves a mean by less than the grid's step.
TEST(LloydMax, LevelsAreTheMeansOfTheirCells) {
  for (const Index d : {2, 3, 4, 8, 64, 128, 576}) {
    for (const int bits : {1, 2, 3, 5, 8}) {
      const Codebook& book = unit_codebook(bits, d);
      ASSERT_EQ(book.levels.size(), std::size_t{1} << static_cast<unsigned>(bits));
      ASSERT_EQ(book.cuts.size() + 1, book.levels.size());
      ASSERT_TRUE(std::ranges::is_sorted(book.levels));
      const std::vector<double> means = reference::cell_means(book.cuts, d);
      for (std::size_t i = 0; i < means.size(); ++i) {
        ASSERT_TRUE(std::abs(means[i] - book.levels[i]) <= reference::grid_step(d))
            << d << " " << bits << " " << i << " " << means[i] << " " << book.levels[i];
      }
    }
  }
}

TEST(LloydMax, NearestLevel) {
  const Codebook& book = unit_codebook(3, 16);
  for (double x = -1.0; x <= 1.0; x += 0.001) {
    const auto best = std::ranges::min_element(book.levels, {},
                                               [&](double level) { return std::abs(level - x); });
    ASSERT_EQ(book.nearest(x), *best) << x;
  }
  EXPECT_EQ(book.nearest(-9.0), book.levels.front());
  EXPECT_EQ(book.nearest(9.0), book.levels.back());
}

}  // namespace
}  // namespace kvbench::test_lloyd_max
