#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "algorithms/shared/halving.hpp"

namespace kvbench::test_halving {
namespace {

using Signs = std::vector<std::int8_t>;

std::vector<Survivor> run(const Signs& signs, Select select, Fill fill = Fill::order,
                          Index block = 256) {
  RngStream stream(1, 0, 0);
  return halve(signs, select, fill, block, stream);
}

std::vector<std::pair<Index, double>> pairs(const std::vector<Survivor>& s) {
  std::vector<std::pair<Index, double>> out;
  for (const Survivor& x : s) {
    out.emplace_back(x.place, x.factor);
  }
  return out;
}

using P = std::vector<std::pair<Index, double>>;

TEST(Halving, WeightedByHand) {
  // +: 0 1 3; the third + of ceil(5/2) = 3 stands at c = 3. Up to there keep the - at 2, doubled.
  EXPECT_EQ(pairs(run({1, 1, -1, 1, -1}, Select::weighted)), (P{{2, 2.0}, {4, 1.0}}));
  // Equal counts, m = 4: - reaches 2 first, at place 1: both go, the rest stays as it is.
  EXPECT_EQ(pairs(run({-1, -1, 1, 1}, Select::weighted)), (P{{2, 1.0}, {3, 1.0}}));
  EXPECT_TRUE(run({1}, Select::weighted).empty());
  EXPECT_TRUE(run({}, Select::weighted).empty());
}

TEST(Halving, RepoByHand) {
  // floor(5/2) = 2: + gets there at 1, - at 4; c = 4, - is dropped up to it, + doubled (three of
  // them: one too many, the last goes).
  EXPECT_EQ(pairs(run({1, 1, -1, 1, -1}, Select::repo)), (P{{0, 2.0}, {1, 2.0}}));
  // - never gets to 2: c = place of the second +, at 2. Keep the - at 1 doubled, then 3 as it is.
  EXPECT_EQ(pairs(run({1, -1, 1, 1}, Select::repo)), (P{{1, 2.0}, {3, 1.0}}));
  // The doubled come first, whatever their place.
  EXPECT_EQ(pairs(run({1, 1, 1, -1, 1, 1}, Select::repo)), (P{{3, 1.0}, {4, 1.0}, {5, 1.0}}));
}

TEST(Halving, StrictByHand) {
  // Minority - at 2 and 4.
  EXPECT_EQ(pairs(run({1, 1, -1, 1, -1}, Select::strict)), (P{{2, 2.0}, {4, 2.0}}));
  // Minority - at 2 alone, filled up with the earliest +.
  EXPECT_EQ(pairs(run({1, 1, -1, 1, 1}, Select::strict)), (P{{0, 2.0}, {2, 2.0}}));
  // Equal counts: +1.
  EXPECT_EQ(pairs(run({-1, 1, -1, 1}, Select::strict)), (P{{1, 2.0}, {3, 2.0}}));
}

TEST(Halving, BlockIsStrictInsideEachBlock) {
  EXPECT_EQ(pairs(run({1, 1, -1, 1, 1, -1}, Select::block, Fill::order, 4)),
            (P{{0, 2.0}, {2, 2.0}, {4, 2.0}}));
}

// What every rule promises, on random signs of every length and bias.
TEST(Halving, CountsOrderAndWeights) {
  std::mt19937_64 generator(9);
  for (Index m = 0; m < 60; ++m) {
    for (const double bias : {0.0, 0.2, 0.5, 0.9, 1.0}) {
      Signs signs;
      std::bernoulli_distribution plus(bias);
      for (Index i = 0; i < m; ++i) {
        signs.push_back(plus(generator) ? std::int8_t{1} : std::int8_t{-1});
      }
      for (const Select select : {Select::weighted, Select::repo, Select::strict, Select::block}) {
        for (const Fill fill : {Fill::random, Fill::order}) {
          const auto survivors = run(signs, select, fill, 8);
          ASSERT_EQ(static_cast<Index>(survivors.size()), m / 2);
          std::vector<Index> places;
          double weight = 0.0;
          for (const Survivor& s : survivors) {
            places.push_back(s.place);
            weight += s.factor;
            ASSERT_TRUE(s.factor == 1.0 || s.factor == 2.0);
          }
          if (select != Select::repo) {
            ASSERT_TRUE(std::is_sorted(places.begin(), places.end()));
          }
          std::sort(places.begin(), places.end());
          ASSERT_TRUE(std::adjacent_find(places.begin(), places.end()) == places.end());
          if (select == Select::weighted && m > 0) {
            // Weights sum to c + 1 + m - 2 ceil(m/2), c by its definition.
            Index seen[2] = {0, 0};
            Index c = -1;
            for (Index i = 0; c < 0; ++i) {
              Index& n = seen[signs[i] > 0 ? 1 : 0];
              c = ++n == (m + 1) / 2 ? i : -1;
            }
            ASSERT_EQ(weight, static_cast<double>(c + 1 + m - 2 * ((m + 1) / 2)));
            ASSERT_LE(weight, static_cast<double>(m));
          } else if (select == Select::strict || select == Select::block) {
            ASSERT_EQ(weight, static_cast<double>(m / 2 * 2));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvbench::test_halving
