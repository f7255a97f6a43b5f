// What kvbench cluster computes about the rows of one head, against slow references.
#include <gtest/gtest.h>

#include <atomic>

#include "cluster/coverage.hpp"
#include "cluster/growth.hpp"
#include "cluster/pca.hpp"
#include "cluster/study.hpp"
#include "make_head.hpp"
#include "reference/cluster.hpp"
#include "reference/clusterability.hpp"

namespace kvbench::test_cluster {
namespace {

// Sums of at most 200 float64 terms against long double: 200 roundings of 2^-53.
constexpr double kRounding = 3e-14;
// Entries of unit eigenvectors whose eigenvalues are 5 percent apart or more: the covariance's
// rounding (kRounding) over the gap.
constexpr double kVector = 1e-12;
// Coordinates are rounded to float32: half an ulp, 2^-24, of values below 2^5.
constexpr double kCoordinate = 2e-6;

TEST(Coverage, Sizes) {
  using V = std::vector<Index>;
  EXPECT_EQ(coverage_sizes(1, 16, 4096), (V{1}));
  EXPECT_EQ(coverage_sizes(2, 1, 4096), (V{1}));
  EXPECT_EQ(coverage_sizes(3, 16, 4096), (V{1, 3}));
  EXPECT_EQ(coverage_sizes(64, 16, 4096), (V{1, 2, 4, 8, 16, 32}));
  EXPECT_EQ(coverage_sizes(64, 10, 4096), (V{1, 2, 4, 8, 10, 16, 32}));
  EXPECT_EQ(coverage_sizes(63, 1, 4096), (V{1, 2, 4, 8, 16}));
  EXPECT_EQ(coverage_sizes(64, 16, 4), (V{1, 2, 4, 16}));
  EXPECT_EQ(coverage_sizes(64, 1, 1), (V{1}));
}

TEST(Coverage, EqualsReferenceExactly) {
  std::mt19937_64 generator(1);
  for (const Index n : {1, 2, 5, 16, 40}) {
    for (const Index d : {1, 3, 9}) {
      const Matrix m = lattice(n, d, 7, generator);
      const reference::Rows rows = reference::rows_of(m);
      const Coverage found = coverage(*cpu_rows(m), 5, 4096);
      const std::vector<Index> centers = reference::greedy_centers(rows, n, 0);
      ASSERT_EQ(found.centers,
                std::vector<Index>(centers.begin(), centers.begin() + std::min<Index>(5, n)));
      ASSERT_EQ(found.curve.size(), coverage_sizes(n, 5, 4096).size());
      const auto first = static_cast<double>(reference::radius(rows, {0}));
      for (const CoveragePoint& p : found.curve) {
        const auto radius = static_cast<double>(
            reference::radius(rows, std::vector<Index>(centers.begin(), centers.begin() + p.k)));
        ASSERT_EQ(p.radius, radius) << n << " " << d << " " << p.k;
        ASSERT_EQ(p.radius_rel, first > 0.0 ? radius / first : 0.0);
        ASSERT_EQ(p.center, centers[static_cast<std::size_t>(p.k) - 1]);
      }
    }
  }
}

TEST(Growth, Prefixes) {
  using V = std::vector<Index>;
  EXPECT_EQ(stream_prefixes(1), (V{1}));
  EXPECT_EQ(stream_prefixes(16), (V{16}));
  EXPECT_EQ(stream_prefixes(17), (V{16, 17}));
  EXPECT_EQ(stream_prefixes(64), (V{16, 32, 64}));
  EXPECT_EQ(stream_prefixes(100), (V{16, 32, 64, 100}));
}

TEST(Growth, CountsEqualReferenceOfEveryPrefix) {
  std::mt19937_64 generator(3);
  int left_out = 0;
  for (const Index d : {1, 2, 6}) {
    const Matrix m = lattice(75, d, d == 1 ? 40 : 5, generator);
    const reference::Rows rows = reference::rows_of(m);
    for (const double delta : {0.0, 1.0, std::sqrt(2.0), 2.5, 100.0}) {
      for (const Index most : {Index{1}, Index{3}, Index{12}, Index{1000}}) {
        const DeltaGrowth found = delta_growth(*cpu_rows(m), delta, most);
        std::vector<PrefixCount> slow;
        for (const Index prefix : {16, 32, 64, 75}) {
          const reference::Rows head(rows.begin(), rows.begin() + prefix);
          // The reference's square root has more digits: let it be generous by its own rounding.
          const Index count = reference::cluster_count(
              reference::online_clusters(head, static_cast<long double>(delta) + 1e-15L));
          if (count <= most) {
            slow.push_back({prefix, count});
          }
        }
        ASSERT_EQ(found.counts, slow) << d << " " << delta << " " << most;
        ASSERT_EQ(found.delta, delta);
        left_out += slow.size() < 4 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(left_out, 10);  // the bound was really met
}

TEST(Growth, FitEqualsReferenceAndClosedForm) {
  // m = n^(1/2) exactly.
  const std::vector<PrefixCount> root{{16, 4}, {64, 8}, {256, 16}, {1024, 32}};
  EXPECT_NEAR(fit_power_law(root).alpha, 0.5, kRounding);
  EXPECT_NEAR(fit_power_law(root).r2, 1.0, kRounding);
  // Two points: the slope between them. log(3) / log(2).
  const std::vector<PrefixCount> two{{16, 2}, {32, 6}};
  EXPECT_NEAR(fit_power_law(two).alpha, std::log(3.0) / std::log(2.0), kRounding);
  std::mt19937_64 generator(4);
  for (int round = 0; round < 20; ++round) {
    std::vector<PrefixCount> counts;
    std::vector<std::pair<Index, Index>> points;
    for (Index n = 16; n <= 4096; n *= 2) {
      counts.push_back({n, 1 + static_cast<Index>(generator() % 500)});
      points.emplace_back(n, counts.back().clusters);
    }
    const PowerLaw law = fit_power_law(counts);
    ASSERT_NEAR(law.alpha, static_cast<double>(reference::log_log_slope(points)), kRounding);
    ASSERT_NEAR(law.r2, static_cast<double>(reference::log_log_r2(points)), kRounding);
  }
}

TEST(Growth, FitOfLittle) {
  EXPECT_TRUE(std::isnan(fit_power_law({}).alpha));
  const std::vector<PrefixCount> one{{16, 4}};
  EXPECT_TRUE(std::isnan(fit_power_law(one).alpha));
  EXPECT_TRUE(std::isnan(fit_power_law(one).r2));
  const std::vector<PrefixCount> constant{{16, 7}, {32, 7}, {64, 7}};
  EXPECT_EQ(fit_power_law(constant).alpha, 0.0);
  EXPECT_TRUE(std::isnan(fit_power_law(constant).r2));
}

// Their quantiles: test_metrics.cpp.
TEST(Rows, Norms) {
  std::mt19937_64 generator(5);
  for (const Index n : {1, 2, 3, 50}) {
    const Matrix m = normal_matrix(n, 7, 2.0, generator);
    const std::vector<double> found = cpu_rows(m)->norms();
    const reference::Vec slow = reference::norms(reference::rows_of(m));
    ASSERT_EQ(found.size(), slow.size());
    for (std::size_t i = 0; i < slow.size(); ++i) {
      ASSERT_NEAR(found[i], static_cast<double>(slow[i]), kRounding * static_cast<double>(slow[i]));
    }
  }
}

TEST(Rows, SpacedTokens) {
  using V = std::vector<Index>;
  EXPECT_EQ(spaced_tokens(5, 0, {}), (V{0, 1, 2, 3, 4}));
  EXPECT_EQ(spaced_tokens(5, 9, {}), (V{0, 1, 2, 3, 4}));
  EXPECT_EQ(spaced_tokens(10, 4, {}), (V{0, 2, 5, 7}));
  const V centers{9, 2, 3};
  EXPECT_EQ(spaced_tokens(10, 4, centers), (V{0, 2, 3, 5, 7, 9}));
  EXPECT_EQ(spaced_tokens(1, 4, V{0}), (V{0}));
}

// Columns of falling deviation, so that eigenvalues are apart and vectors are determined.
Matrix stretched(Index n, Index d, std::mt19937_64& generator) {
  Matrix mix = normal_matrix(d, d, 1.0, generator);
  Matrix base = normal_matrix(n, d, 1.0, generator);
  Matrix out(n, d);
  for (Index i = 0; i < n; ++i) {
    for (Index t = 0; t < d; ++t) {
      double x = 3.0 * static_cast<double>(t);  // a mean that is not 0
      for (Index s = 0; s < d; ++s) {
        x += static_cast<double>(base.row(i)[s]) * std::pow(0.6, static_cast<double>(s)) *
             static_cast<double>(mix.row(s)[t]);
      }
      out.row(i)[t] = static_cast<float>(x);
    }
  }
  return out;
}

TEST(Pca, EqualsJacobi) {
  std::mt19937_64 generator(6);
  for (const Index d : {1, 2, 5, 8}) {
    const Matrix m = stretched(200, d, generator);
    const reference::Rows rows = reference::rows_of(m);
    const reference::Eigen slow = reference::eigen(reference::covariance(rows));
    const Pca found = principal_components(*cpu_rows(m), 50);
    ASSERT_EQ(found.count(), d);
    for (Index c = 0; c < d; ++c) {
      const auto at = static_cast<std::size_t>(c);
      ASSERT_NEAR(found.variance[at], static_cast<double>(slow.values[at]),
                  kRounding * static_cast<double>(slow.values[0]));
      const double* v = found.components.data() + c * d;
      const double* most =
          std::max_element(v, v + d, [](double a, double b) { return std::abs(a) < std::abs(b); });
      ASSERT_GT(*most, 0.0);  // the sign rule
      if (c + 1 < d && slow.values[at + 1] > 0.95L * slow.values[at]) {
        continue;
      }
      long double agreement = 0;
      for (Index t = 0; t < d; ++t) {
        agreement += static_cast<long double>(v[t]) * slow.vectors[at][t];
      }
      ASSERT_NEAR(std::abs(static_cast<double>(agreement)), 1.0, kVector);
    }
  }
}

TEST(Pca, OrthonormalFallingAndReconstructs) {
  std::mt19937_64 generator(7);
  const Index d = 12;
  const Matrix m = stretched(60, d, generator);
  const Pca all = principal_components(*cpu_rows(m), d);
  for (Index a = 0; a < d; ++a) {
    for (Index b = 0; b <= a; ++b) {
      double dot = 0.0;
      for (Index t = 0; t < d; ++t) {
        dot += all.components[a * d + t] * all.components[b * d + t];
      }
      ASSERT_NEAR(dot, a == b ? 1.0 : 0.0, kRounding);
    }
    if (a > 0) {
      ASSERT_LE(all.variance[a], all.variance[static_cast<std::size_t>(a) - 1]);
    }
  }
  const std::vector<Index> rows{0, 17, 59};
  const Matrix x = project(all, m, rows);
  ASSERT_EQ(x.rows(), 3);
  ASSERT_EQ(x.cols(), d);
  for (Index i = 0; i < 3; ++i) {
    for (Index t = 0; t < d; ++t) {
      double back = all.mean[t];
      for (Index c = 0; c < d; ++c) {
        back += static_cast<double>(x.row(i)[c]) * all.components[c * d + t];
      }
      ASSERT_NEAR(back, static_cast<double>(m.row(rows[i])[t]),
                  kCoordinate * std::sqrt(static_cast<double>(d)));
    }
  }
  // Fewer components are the first of all.
  const Pca few = principal_components(*cpu_rows(m), 3);
  EXPECT_EQ(few.count(), 3);
  EXPECT_TRUE(std::equal(few.components.begin(), few.components.end(), all.components.begin()));
}

// Matrices to study on the CPU.
class Sets {
 public:
  explicit Sets(const std::vector<MatrixView>& points) {
    for (const MatrixView m : points) {
      rows_.push_back(cpu_rows(m));
      all_.push_back({m, rows_.back().get()});
    }
  }
  const std::vector<StudySet>& all() const { return all_; }

 private:
  std::vector<std::unique_ptr<RowSet>> rows_;
  std::vector<StudySet> all_;
};

StudyOptions small_study() {
  StudyOptions o;
  o.centers = 3;
  o.deltas = {1.0};
  o.deltas_rel = {0.25, 0.5};
  o.components = 4;
  o.max_points = 10;
  return o;
}

TEST(Study, DeltasArePlacedByTheRadius) {
  std::mt19937_64 generator(9);
  const Matrix k = normal_matrix(40, 3, 2.0, generator);
  const Sets sets({k});
  const std::atomic<bool> stop = false;
  const auto done = study(sets.all(), small_study(), 2, stop);
  ASSERT_TRUE(done);
  const double radius = done->front().coverage.curve.front().radius;
  std::vector<double> expected{1.0, 0.25 * radius, 0.5 * radius};
  std::sort(expected.begin(), expected.end());
  for (std::size_t g = 0; g < 3; ++g) {
    EXPECT_EQ(done->front().growth[g].delta, expected[g]);
  }
  // Centres are points, and only they are flagged.
  const Points& p = done->front().points;
  Index flagged = 0;
  for (std::size_t i = 0; i < p.tokens.size(); ++i) {
    const auto& c = done->front().coverage.centers;
    EXPECT_EQ(p.is_center[i], std::find(c.begin(), c.end(), p.tokens[i]) != c.end());
    flagged += p.is_center[i] ? 1 : 0;
  }
  EXPECT_EQ(flagged, 3);
}

TEST(Study, OddRows) {
  const std::atomic<bool> stop = false;
  StudyOptions o = small_study();
  o.deltas = {};
  for (const float fill : {0.0F, 3.0F}) {
    for (const Index n : {1, 20}) {
      Matrix m(n, 2);
      std::fill_n(m.data(), n * 2, fill);
      const Sets sets({m});
      const auto done = study(sets.all(), o, 2, stop);
      ASSERT_TRUE(done);
      for (const CoveragePoint& p : done->front().coverage.curve) {
        EXPECT_EQ(p.radius, 0.0);
        EXPECT_EQ(p.radius_rel, 0.0);
      }
      EXPECT_EQ(done->front().points.x.row(0)[0], 0.0F);
      EXPECT_EQ(principal_components(*cpu_rows(m), 50).variance, (std::vector<double>{0.0, 0.0}));
      ASSERT_EQ(done->front().growth.size(), 1U);  // every share of a radius of 0 is 0
      EXPECT_EQ(done->front().growth[0].delta, 0.0);
      for (const PrefixCount& c : done->front().growth[0].counts) {
        EXPECT_EQ(c.clusters, 1);
      }
    }
  }
}

TEST(Study, IsStopped) {
  const Matrix k(30, 3);
  const std::atomic<bool> stop = true;
  EXPECT_FALSE(study(Sets({k}).all(), small_study(), 2, stop));
}

}  // namespace
}  // namespace kvbench::test_cluster
