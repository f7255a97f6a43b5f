// What float32 rules out, where it can least be trusted: neighbours that differ by its rounding,
// sums that overflow or vanish in it, equal and zero rows. The outcome must be that of float64 for
// every row, whose order of summation is written out here once more.
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "attention/float32_bounds.hpp"
#include "attention/kcenter.hpp"
#include "attention/nearest_keys.hpp"
#include "attention/online_clusters.hpp"
#include "make_head.hpp"

namespace kvbench::test_float32_bounds {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

enum class Kind { near, sphere, huge, tiny, mixed, equal };

// near: around three points. sphere: of one norm, then nearly zero, so that all of the first are
// equally far from each of the others but for rounding.
Matrix rows_of_kind(Kind kind, Index n, Index d, unsigned seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(0.0, 1.0);
  Matrix out(n, d);
  for (Index i = 0; i < n; ++i) {
    const bool copy = kind == Kind::equal && i >= 7;
    const double scale = kind == Kind::huge   ? 1e37
                         : kind == Kind::tiny ? 1e-24
                         : kind == Kind::mixed
                             ? std::pow(10.0, -42.0 + static_cast<double>(i * 7 % 80))
                             : 1.0;
    for (Index t = 0; t < d; ++t) {
      const double point = kind == Kind::near ? std::sin(static_cast<double>(i % 3 + 5 * t)) : 0.0;
      const double size = kind == Kind::near ? 3e-7 : scale;
      const double x = std::clamp(point + size * normal(generator), -3e38, 3e38);
      out.row(i)[t] = copy ? out.row(i % 7)[t] : static_cast<float>(x);
    }
  }
  for (Index i = 0; kind == Kind::sphere && i < n; ++i) {
    double square = 0.0;
    for (Index t = 0; t < d; ++t) {
      square += std::pow(static_cast<double>(out.row(i)[t]), 2);
    }
    const double factor = i < n / 2 ? 1.3 / std::sqrt(square) : 3e-8;
    for (Index t = 0; t < d; ++t) {
      out.row(i)[t] = static_cast<float>(factor * static_cast<double>(out.row(i)[t]));
    }
  }
  if (kind == Kind::equal) {
    std::fill_n(out.row(2), d, 0.0F);
  }
  return out;
}

constexpr std::array kKinds = {Kind::near, Kind::sphere, Kind::huge,
                               Kind::tiny, Kind::mixed,  Kind::equal};

double slow_squared(const Matrix& m, Index a, Index b) {
  std::array<double, 8> lanes{};
  for (Index t = 0; t < m.cols(); ++t) {
    const double x = static_cast<double>(m.row(a)[t]) - static_cast<double>(m.row(b)[t]);
    lanes[t % 8] = std::fma(x, x, lanes[t % 8]);
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

double slow_cosine(const Matrix& m, Index from, Index to) {
  double product = 0.0;
  double square = 0.0;
  for (Index t = 0; t < m.cols(); ++t) {
    const auto y = static_cast<double>(m.row(to)[t]);
    product = std::fma(static_cast<double>(m.row(from)[t]), y, product);
    square = std::fma(y, y, square);
  }
  return square > 0.0 ? product * (1.0 / std::sqrt(square)) : 0.0;
}

TEST(Float32Bounds, NearestKeysAreThoseOfFloat64) {
  for (const Kind kind : kKinds) {
    for (const Index d : {1, 5, 64, 130}) {
      KvHead head;
      head.k = rows_of_kind(kind, 120, d, static_cast<unsigned>(d));
      head.v = Matrix(120, 1);
      const std::vector<Index> to = positions(0, 70);
      const std::vector<Index> from = positions(40, 120);
      std::vector<Index> slow;
      for (const Index f : from) {
        Index best = 0;
        for (const Index t : to) {
          best = slow_cosine(head.k, f, t) > slow_cosine(head.k, f, best) ? t : best;
        }
        slow.push_back(best);
      }
      EXPECT_EQ(nearest_keys(head, to, from), slow) << static_cast<int>(kind) << " " << d;
    }
  }
}

TEST(Float32Bounds, CentersAreThoseOfFloat64) {
  for (const Kind kind : kKinds) {
    for (const Index d : {1, 5, 64, 1030}) {
      const Index n = 300;
      const Matrix m = rows_of_kind(kind, n, d, static_cast<unsigned>(d));
      const KCenter fast = k_center(m, positions(0, n), 60);
      for (Index i = 0; i < n; ++i) {
        double smallest = std::numeric_limits<double>::infinity();
        for (const Index c : fast.centers) {
          smallest = std::min(smallest, slow_squared(m, c, i));
        }
        EXPECT_EQ(fast.squared[i], smallest) << static_cast<int>(kind) << " " << d << " " << i;
      }
      std::vector<double> squared(n, std::numeric_limits<double>::infinity());
      Index next = 0;
      for (std::size_t c = 0; c < fast.centers.size(); ++c) {
        if (c > 0 && !(fast.radius[c - 1] > 0.0)) {
          break;  // all rows lie on centres
        }
        ASSERT_EQ(fast.centers[c], next) << static_cast<int>(kind) << " " << d;
        for (Index i = 0; i < n; ++i) {
          squared[i] = std::min(squared[i], slow_squared(m, next, i));
        }
        next = std::max_element(squared.begin(), squared.end()) - squared.begin();
        EXPECT_EQ(fast.radius[c], std::sqrt(squared[next]));
      }
    }
  }
}

TEST(Float32Bounds, ClustersAreThoseOfFloat64) {
  for (const Kind kind : kKinds) {
    for (const Index d : {1, 5, 64, 130}) {
      const Index n = 200;
      const Matrix m = rows_of_kind(kind, n, d, static_cast<unsigned>(d));
      // From one cluster to some hundred, each more than any block of representatives.
      for (const double part : {0.7, 0.71, 0.8, 0.05}) {
        const double delta = part * std::sqrt(slow_squared(m, 0, 9));
        std::vector<Index> representatives;
        std::vector<Index> slow;
        for (Index i = 0; i < n; ++i) {
          double smallest = std::numeric_limits<double>::infinity();
          Index nearest = -1;
          for (std::size_t c = 0; c < representatives.size(); ++c) {
            const double x = slow_squared(m, representatives[c], i);
            if (x < smallest) {
              smallest = x;
              nearest = static_cast<Index>(c);
            }
          }
          if (nearest < 0 || !(std::sqrt(smallest) <= delta)) {
            nearest = static_cast<Index>(representatives.size());
            representatives.push_back(i);
          }
          slow.push_back(nearest);
        }
        const Clusters fast = online_clusters(m, positions(0, n), delta);
        EXPECT_EQ(fast.cluster, slow) << static_cast<int>(kind) << " " << d << " " << delta;
        EXPECT_EQ(fast.representatives, representatives);
      }
    }
  }
}

TEST(Float32Bounds, VisitsAtLeastTheBoundAndNan) {
  for (const std::size_t n : {0U, 1U, 31U, 32U, 33U, 100U}) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = static_cast<float>(i * 37 % 64);
    }
    if (n > 40) {
      x[40] = kNan;
    }
    for (const float bound : {0.0F, 20.0F, 63.0F, 64.0F, kNan}) {
      std::vector<std::size_t> visited;
      visit_at_least(x, bound, [&](std::size_t i) { visited.push_back(i); });
      std::vector<std::size_t> expected;
      for (std::size_t i = 0; i < n; ++i) {
        if (std::isnan(x[i]) || std::isnan(bound) || x[i] >= bound) {
          expected.push_back(i);
        }
      }
      EXPECT_EQ(visited, expected) << n << " " << bound;
    }
  }
}

TEST(Float32Bounds, BoundsAreOnTheSafeSide) {
  EXPECT_TRUE(std::isnan(ruled_out_below(1.0F, 0.0, 1e39)));  // a sum may have overflowed
  EXPECT_TRUE(std::isnan(ruled_out_below(std::numeric_limits<float>::infinity(), 0.0, 1.0)));
  EXPECT_TRUE(std::isnan(ruled_out_below(kNan, 0.0, 1.0)));
  for (const float largest : {-3.0F, 0.0F, 1e-40F, 1.0F, 1e30F}) {
    for (const double error : {0.0, 1e-45, 1e-9, 0.1}) {
      const auto bound = static_cast<double>(ruled_out_below(largest, error, 1.0));
      const double exact = static_cast<double>(largest) - 2.0 * error;
      EXPECT_LT(bound, exact);
      EXPECT_GE(bound, exact - 2.4e-7 * std::fabs(exact) - 3e-45);
    }
  }
  for (const double x : {0.0, 1e-46, 1.0 + 1e-9, 1e38, 4e38}) {
    EXPECT_GE(static_cast<double>(round_up(x)), x);
  }
  EXPECT_EQ(largest_of({}), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(largest_of(std::vector<float>{-2.0F, kNan, -1.0F, -5.0F}), -1.0F);
}

}  // namespace
}  // namespace kvbench::test_float32_bounds
