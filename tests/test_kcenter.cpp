// Greedy k-center and the online delta-cover against their definitions.
#include <gtest/gtest.h>

#include "attention/kcenter.hpp"
#include "attention/online_clusters.hpp"
#include "attention/row_set.hpp"
#include "make_head.hpp"
#include "reference/cluster.hpp"

namespace kvbench::test_kcenter {
namespace {

// Float64 sums of at most 70 squares against long double: 70 roundings of 2^-53.
constexpr double kRounding = 1e-14;

std::vector<Index> every_other(Index n) {
  std::vector<Index> out;
  for (Index i = 1; i < n; i += 2) {
    out.push_back(i);
  }
  return out;
}

void expect_centers(MatrixView m, const std::vector<Index>& rows, Index k, Index first,
                    double tolerance) {
  const KCenter fast = k_center(m, rows, k, first);
  const reference::Rows points = reference::rows_at(m, rows);
  ASSERT_EQ(fast.centers, reference::greedy_centers(points, k, first));
  ASSERT_EQ(fast.nearest, reference::nearest_centers(points, fast.centers));
  for (std::size_t j = 0; j < fast.centers.size(); ++j) {
    const std::vector<Index> so_far(fast.centers.begin(),
                                    fast.centers.begin() + static_cast<std::ptrdiff_t>(j) + 1);
    const auto slow = static_cast<double>(reference::radius(points, so_far));
    ASSERT_LE(std::abs(fast.radius[j] - slow), tolerance * slow);
  }
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Index c = fast.centers[fast.nearest[i]];
    const auto d = reference::distance(points[i], points[c]);
    ASSERT_LE(std::abs(fast.squared[i] - static_cast<double>(d * d)),
              2 * kRounding * static_cast<double>(d * d));
  }
}

// On whole numbers every difference, square and sum is exact in float64: references agree to the
// bit.
TEST(KCenter, EqualsReferenceExactlyWithTiesAndEqualRows) {
  std::mt19937_64 generator(1);
  for (const double offset : {0.0, 1e4, -1e4}) {
    for (const Index d : {1, 2, 7, 8, 9, 20}) {
      for (const Index n : {2, 3, 16, 31}) {
        const Matrix m = lattice(n, d, d == 1 ? 4 : 2, generator, offset);
        const std::vector<Index> rows = every_other(n);
        for (const Index k : {Index{1}, Index{2}, Index{5}, n}) {
          const auto first = static_cast<Index>(generator() % rows.size());
          expect_centers(m, rows, k, first, 0.0);
        }
      }
    }
  }
}

// Above 64 rows several centres are found from one pass; few and many ties, near and at the bound.
TEST(KCenter, EqualsReferenceWhereSomeRowsAreNoCandidates) {
  std::mt19937_64 generator(3);
  for (const Index n : {128, 130, 132, 400}) {
    for (const int values : {2, 3, 100}) {
      for (const Index d : {2, 8, 11}) {
        const Matrix m = lattice(n, d, values, generator);
        const auto first = static_cast<Index>(generator() % static_cast<std::uint64_t>(n / 2));
        expect_centers(m, every_other(n), n / 4, first, 0.0);
      }
    }
  }
}

TEST(KCenter, EqualsReferenceOnNormalKeysWithACommonOffset) {
  for (const double offset : {0.0, 1e4}) {
    for (const auto& [n, d] : {std::pair<Index, Index>{60, 3}, {60, 8}, {60, 70}, {600, 16}}) {
      const KvHead head =
          make_head({.n = n, .d = d, .key_offset = offset}, static_cast<unsigned>(d));
      expect_centers(head.k, every_other(n), n / 6, 3, kRounding);
    }
  }
}

TEST(KCenter, WithinTwiceTheBestRadius) {
  std::mt19937_64 generator(2);
  for (int round = 0; round < 40; ++round) {
    const Matrix m =
        round % 2 == 0 ? normal_matrix(10, 3, 1.0, generator) : lattice(10, 2, 5, generator);
    const reference::Rows points = reference::rows_of(m);
    for (const Index k : {1, 2, 3, 5}) {
      const KCenter found = k_center(m, positions(0, 10), k, static_cast<Index>(generator() % 10));
      ASSERT_LE(found.radius.back(),
                2.0 * static_cast<double>(reference::best_radius(points, k)) * (1.0 + kRounding));
      for (std::size_t j = 1; j < found.radius.size(); ++j) {
        ASSERT_LE(found.radius[j], found.radius[j - 1]);
      }
    }
  }
}

TEST(KCenter, OddInputs) {
  std::mt19937_64 generator(3);
  const Matrix m = normal_matrix(6, 4, 1.0, generator);
  EXPECT_TRUE(k_center(m, {}, 3).centers.empty());
  EXPECT_TRUE(k_center(m, positions(0, 6), 0).centers.empty());
  EXPECT_EQ(k_center(m, positions(0, 6), 100).centers.size(), 6U);
  const std::vector<Index> one = {4};
  const KCenter single = k_center(m, one, 2);
  EXPECT_EQ(single.centers, (std::vector<Index>{0}));
  EXPECT_EQ(single.radius, (std::vector<double>{0.0}));
  Matrix same(5, 4);  // equal rows: in order, radius 0, each its own
  const KCenter equal = k_center(same, positions(0, 5), 3, 2);
  EXPECT_EQ(equal.centers, (std::vector<Index>{2, 0, 1}));
  EXPECT_EQ(equal.radius, (std::vector<double>{0.0, 0.0, 0.0}));
  EXPECT_EQ(equal.nearest, (std::vector<Index>{1, 2, 0, 0, 0}));
  Matrix huge(2, 3);
  std::fill_n(huge.row(0), 3, 3e38F);
  std::fill_n(huge.row(1), 3, -3e38F);
  const double far = k_center(huge, positions(0, 2), 1).radius.back();
  EXPECT_NEAR(far / (6e38 * std::sqrt(3.0)), 1.0, 1e-7);  // 3e38F is 3e38 to 2^-24
}

TEST(KCenter, FarthestFromMean) {
  Matrix m(5, 1);
  const float values[] = {0.0F, 4.0F, 4.0F, 8.0F, 4.0F};  // mean 4: rows 0 and 3 tie
  std::copy_n(values, 5, m.data());
  EXPECT_EQ(farthest_from_mean(m, positions(0, 5)), 0);
  EXPECT_EQ(farthest_from_mean(m, positions(1, 5)), 2);
  EXPECT_EQ(farthest_from_mean(m, {}), 0);
}

TEST(OnlineClusters, EqualsReferenceWithTiesAndDistancesEqualToDelta) {
  std::mt19937_64 generator(7);
  for (const double offset : {0.0, 1e4}) {
    for (const Index d : {1, 2, 9}) {
      const Matrix m = lattice(41, d, d == 9 ? 2 : 6, generator, offset);
      const std::vector<Index> rows = every_other(41);
      const reference::Rows points = reference::rows_at(m, rows);
      // 1, 2 and 3 are distances that occur; sqrt(2) too, and rounds alike on both sides.
      for (const double delta : {0.0, 0.5, 1.0, std::sqrt(2.0), 1.5, 2.0, 3.0, 100.0}) {
        const Clusters fast = online_clusters(m, rows, delta);
        // The reference's square root has more digits: let it be generous by its own rounding.
        const auto slow =
            reference::online_clusters(points, static_cast<long double>(delta) + 1e-15L);
        ASSERT_EQ(fast.cluster, slow) << d << " " << delta;
        ASSERT_TRUE(fast.complete);
        ASSERT_EQ(static_cast<Index>(fast.representatives.size()), reference::cluster_count(slow));
        ASSERT_LE(fast.largest_join, delta);
        ASSERT_GT(fast.smallest_open, delta);
        ASSERT_EQ(online_clusters(m, rows, fast.largest_join).cluster, slow);
        for (std::size_t c = 0; c < fast.representatives.size(); ++c) {
          const auto r = static_cast<std::size_t>(fast.representatives[c]);
          ASSERT_EQ(fast.cluster[r], static_cast<Index>(c));
          for (std::size_t e = 0; e < c; ++e) {  // Lemma B.3, property 4
            ASSERT_GT(reference::distance(points[r], points[fast.representatives[e]]),
                      static_cast<long double>(delta));
          }
        }
      }
    }
  }
}

TEST(OnlineClusters, JoinsTheNearestAndEqualDistanceJoins) {
  Matrix m(5, 1);
  const float values[] = {0.0F, 5.0F, 3.0F, 2.5F, 10.0F};
  std::copy_n(values, 5, m.data());
  // 3 lies within delta of both 0 and 5: the nearer, 5, though later. 2.5 ties: the earlier.
  const Clusters cover = online_clusters(m, positions(0, 5), 4.0);
  EXPECT_EQ(cover.cluster, (std::vector<Index>{0, 1, 1, 0, 2}));
  EXPECT_EQ(cover.representatives, (std::vector<Index>{0, 1, 4}));
  EXPECT_EQ(online_clusters(m, positions(0, 5), 5.0).cluster, (std::vector<Index>{0, 0, 0, 0, 1}));
  EXPECT_EQ(online_clusters(m, positions(0, 5), std::nextafter(5.0, 0.0)).representatives,
            (std::vector<Index>{0, 1, 4}));
  const Clusters stopped = online_clusters(m, positions(0, 5), 4.0, 2);
  EXPECT_FALSE(stopped.complete);
  EXPECT_EQ(stopped.cluster.size(), 4U);
}

// The delta found opens at most k clusters, the next smaller distance between two keys more; and
// where the count falls monotonically it is the smallest of all.
TEST(SmallestDelta, IsMinimal) {
  std::mt19937_64 generator(11);
  int monotone = 0;
  int rounds = 0;
  for (int round = 0; round < 60; ++round) {
    const Index n = 5 + static_cast<Index>(generator() % 20);
    const Matrix m = round % 3 == 0 ? lattice(n, 2, 4, generator, 1e4)
                                    : normal_matrix(n, 1 + round % 4, 2.0, generator);
    const std::vector<Index> rows = positions(0, n);
    const reference::Rows points = reference::rows_of(m);
    const reference::Vec distances = reference::all_distances(points);
    for (const Index k : {Index{1}, Index{2}, Index{4}, n / 2, n}) {
      const double delta = smallest_delta(*cpu_rows(m, rows), k);
      const auto count = [&](double x) {
        return static_cast<Index>(online_clusters(m, rows, x).representatives.size());
      };
      ASSERT_LE(count(delta), k);
      if (delta == 0.0) {
        continue;
      }
      ++rounds;
      ASSERT_GT(count(std::nextafter(delta, 0.0)), k);
      double first = 0.0;  // smallest of all distances that suffices
      bool falls = true;
      Index before = n + 1;
      for (auto x = distances.rbegin(); x != distances.rend(); ++x) {
        // A little more than the reference's distance, which float64 may round either way.
        const Index now = count(static_cast<double>(*x) * (1.0 + kRounding));
        first = now <= k ? static_cast<double>(*x) : first;
        falls = falls && (x == distances.rbegin() || now >= before);
        before = now;
      }
      ASSERT_GE(delta, first * (1.0 - kRounding));
      if (falls) {
        ++monotone;
        ASSERT_NEAR(delta, first, kRounding * first);
      }
      // Never above twice the greedy radius.
      ASSERT_LE(delta, 2.0 * k_center(m, rows, k).radius.back() * (1.0 + kRounding));
    }
  }
  EXPECT_GT(rounds, 150);
  EXPECT_GT(monotone, 50);  // the strong claim was really tried
}

}  // namespace
}  // namespace kvbench::test_kcenter
