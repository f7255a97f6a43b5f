// The figures of a row against hand-computed cases and naive rewrites.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "metrics/error.hpp"
#include "metrics/memory.hpp"

namespace kvbench::test_metrics {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Sums of at most a few hundred float64 products, in another order.
constexpr double kRounding = 1e-12;

/// True only where both are numbers (or both infinite) and agree; NaN agrees with nothing.
bool close(double a, double b) {
  return a == b || std::abs(a - b) <= kRounding * std::abs(b);
}

MatrixD matrix(const std::vector<std::vector<double>>& rows) {
  MatrixD m(static_cast<Index>(rows.size()), static_cast<Index>(rows.front().size()));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::copy(rows[i].begin(), rows[i].end(), m.row(static_cast<Index>(i)));
  }
  return m;
}

/// Everything that error_figures takes.
struct Case {
  ExactAttention truth;
  ValueNorms norms;
  MatrixD z;
  std::vector<double> log_denominator;

  ErrorFigures figures() const { return error_figures(truth, norms, z, log_denominator); }
};

Case make_case(const std::vector<std::vector<double>>& a,
               const std::vector<std::vector<double>>& z) {
  Case c;
  const std::size_t m = a.size();
  c.truth.output = matrix(a);
  c.truth.log_z.assign(m, 0.0);
  c.truth.p_norm.assign(m, 1.0);
  c.norms.frobenius.assign(m, 1.0);
  c.norms.spectral.assign(m, 1.0);
  c.z = matrix(z);
  c.log_denominator.assign(m, 0.0);
  return c;
}

Case random_case(std::uint64_t seed, Index m, Index dv) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> positive(0.1, 3.0);
  const auto rows = [&] {
    std::vector<std::vector<double>> out(static_cast<std::size_t>(m));
    for (auto& row : out) {
      row.resize(static_cast<std::size_t>(dv));
      std::generate(row.begin(), row.end(), [&] { return normal(random); });
    }
    return out;
  };
  const auto a = rows();
  Case c = make_case(a, rows());
  for (std::size_t j = 0; j < static_cast<std::size_t>(m); ++j) {
    c.truth.log_z[j] = normal(random);
    c.log_denominator[j] = normal(random);
    c.truth.p_norm[j] = positive(random);
    c.norms.frobenius[j] = positive(random);
    c.norms.spectral[j] = positive(random);
  }
  return c;
}

TEST(ErrorFigures, ByHand) {
  // Query 0: a = (3, 4), z = (3, 0): moved by 4 of 5. Query 1: a = (0, 2), z = (0, 3): 1 of 2.
  Case c = make_case({{3, 4}, {0, 2}}, {{3, 0}, {0, 3}});
  c.truth.p_norm = {0.5, 0.25};
  c.norms.frobenius = {10, 8};
  c.norms.spectral = {5, 8};
  c.truth.log_z = {1.0, 2.0};
  c.log_denominator = {1.5, 1.75};
  const ErrorFigures f = c.figures();
  EXPECT_TRUE(close(f.rel_error, std::sqrt(17.0 / 29.0)));
  EXPECT_TRUE(close(f.rel_error_mean, 0.65));
  EXPECT_TRUE(close(f.rel_error_p50, 0.65));
  EXPECT_TRUE(close(f.rel_error_p95, 0.5 + 0.95 * 0.3));
  EXPECT_TRUE(close(f.rel_error_max, 0.8));
  EXPECT_TRUE(close(f.eps_fro, 4.0 / 5.0));  // the other: 1 / 2
  EXPECT_TRUE(close(f.eps_op, 4.0 / 2.5));
  EXPECT_TRUE(close(f.log_z_error, 0.375));
  EXPECT_TRUE(close(f.cosine, (9.0 / 15.0 + 1.0) / 2.0));
  EXPECT_EQ(f.infinite, 0);
}

TEST(ErrorFigures, AgreeWithANaiveRewrite) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto m = static_cast<Index>(1 + seed * 3);
    const Index dv = 7;
    const Case c = random_case(seed, m, dv);
    const auto norm = [&](const std::function<double(Index)>& x) {
      double sum = 0.0;
      for (Index t = 0; t < dv; ++t) {
        sum += x(t) * x(t);
      }
      return std::sqrt(sum);
    };
    double moved2 = 0.0;
    double exact2 = 0.0;
    double mean = 0.0;
    double largest = 0.0;
    double fro = 0.0;
    double op = 0.0;
    double log_z = 0.0;
    double cosine = 0.0;
    for (Index j = 0; j < m; ++j) {
      const double* a = c.truth.output.row(j);
      const double* z = c.z.row(j);
      const auto at = static_cast<std::size_t>(j);
      const double moved = norm([&](Index t) { return z[t] - a[t]; });
      const double length = norm([&](Index t) { return a[t]; });
      double dot = 0.0;
      for (Index t = 0; t < dv; ++t) {
        dot += a[t] * z[t];
      }
      moved2 += moved * moved;
      exact2 += length * length;
      mean += moved / length / static_cast<double>(m);
      largest = std::max(largest, moved / length);
      fro = std::max(fro, moved / c.truth.p_norm[at] / c.norms.frobenius[at]);
      op = std::max(op, moved / c.truth.p_norm[at] / c.norms.spectral[at]);
      log_z += std::abs(c.log_denominator[at] - c.truth.log_z[at]) / static_cast<double>(m);
      cosine += dot / length / norm([&](Index t) { return z[t]; }) / static_cast<double>(m);
    }
    const ErrorFigures f = c.figures();
    EXPECT_TRUE(close(f.rel_error, std::sqrt(moved2 / exact2)));
    EXPECT_TRUE(close(f.rel_error_mean, mean));
    EXPECT_TRUE(close(f.rel_error_max, largest));
    EXPECT_TRUE(close(f.eps_fro, fro));
    EXPECT_TRUE(close(f.eps_op, op));
    EXPECT_TRUE(close(f.log_z_error, log_z));
    EXPECT_NEAR(f.cosine, cosine, kRounding);  // a mean of both signs may be near 0
  }
}

TEST(ErrorFigures, ANanInOneEstimatePoisonsEveryFigureThatItEnters) {
  const Index m = 9;
  for (Index bad = 0; bad < m; ++bad) {  // first, middle and last: max and sort may drop a NaN
    Case c = random_case(3, m, 5);
    c.z.row(bad)[bad % 5] = kNan;
    const ErrorFigures f = c.figures();
    for (const double x : {f.rel_error, f.rel_error_mean, f.rel_error_p50, f.rel_error_p95,
                           f.rel_error_max, f.eps_fro, f.eps_op, f.cosine}) {
      EXPECT_TRUE(std::isnan(x)) << "query " << bad << " gives " << x;
    }
    EXPECT_FALSE(std::isnan(f.log_z_error));
    EXPECT_EQ(f.infinite, 0);
  }
  Case c = random_case(3, m, 5);
  c.log_denominator[4] = kNan;
  EXPECT_TRUE(std::isnan(c.figures().log_z_error));
}

TEST(ErrorFigures, ANanEstimateOfAZeroOutputIsNan) {
  const ErrorFigures f = make_case({{0, 0}, {1, 0}}, {{kNan, 0}, {1, 0}}).figures();
  for (const double x :
       {f.rel_error, f.rel_error_mean, f.rel_error_max, f.eps_fro, f.eps_op, f.cosine}) {
    EXPECT_TRUE(std::isnan(x)) << x;
  }
  EXPECT_EQ(f.infinite, 0);
}

TEST(ErrorFigures, AnEmptyDenominatorIsInfinitelyFar) {
  Case c = make_case({{1, 1}}, {{1, 1}});
  c.log_denominator = {-kInfinity};
  EXPECT_EQ(c.figures().log_z_error, kInfinity);
}

TEST(ErrorFigures, ZeroOutputs) {
  // |a| = 0: no error where z is 0 too, an infinite one where it is not.
  const ErrorFigures same = make_case({{0, 0}, {3, 4}}, {{0, 0}, {3, 4}}).figures();
  EXPECT_EQ(same.rel_error, 0.0);
  EXPECT_EQ(same.rel_error_max, 0.0);
  EXPECT_EQ(same.infinite, 0);
  EXPECT_TRUE(close(same.cosine, 1.0));  // 1 where both are 0

  const ErrorFigures moved =
      make_case({{0, 0}, {3, 4}, {0, 0}}, {{1, 0}, {3, 4}, {0, 2}}).figures();
  EXPECT_EQ(moved.infinite, 2);
  EXPECT_TRUE(close(moved.rel_error, std::sqrt(5.0) / 5.0));  // over all queries |A| > 0
  EXPECT_EQ(moved.rel_error_mean, kInfinity);
  EXPECT_EQ(moved.rel_error_max, kInfinity);
  EXPECT_EQ(moved.rel_error_p50, kInfinity);
  EXPECT_TRUE(close(moved.cosine, 1.0 / 3.0));  // 0 where one is 0

  const ErrorFigures all = make_case({{0, 0}}, {{1, 0}}).figures();
  EXPECT_EQ(all.rel_error, kInfinity);
  const ErrorFigures none = make_case({{0, 0}}, {{0, 0}}).figures();
  EXPECT_EQ(none.rel_error, 0.0);
  EXPECT_EQ(none.cosine, 1.0);
}

TEST(ErrorFigures, ZeroValuesHaveNoEpsilonOfTheirOwn) {
  Case c = make_case({{0, 0}}, {{0, 0}});
  c.norms.frobenius = {0.0};
  c.norms.spectral = {0.0};
  EXPECT_EQ(c.figures().eps_fro, 0.0);
  EXPECT_EQ(c.figures().eps_op, 0.0);
  c.z.row(0)[0] = 1.0;
  EXPECT_EQ(c.figures().eps_fro, kInfinity);
  EXPECT_EQ(c.figures().eps_op, kInfinity);
}

TEST(Percentile, NanAndInfinity) {
  EXPECT_TRUE(std::isnan(percentile(std::vector<double>{1.0, kNan, 2.0}, 0.0)));
  EXPECT_EQ(percentile(std::vector<double>{1.0, 2.0, kInfinity}, 0.5), 2.0);
  EXPECT_EQ(percentile(std::vector<double>{1.0, 2.0, kInfinity}, 0.75), kInfinity);
  EXPECT_EQ(percentile(std::vector<double>{kInfinity, kInfinity}, 0.5), kInfinity);
}

TEST(Percentile, NeverLeavesTheOrderStatisticsBesideIt) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  for (std::size_t n = 1; n < 40; ++n) {
    std::vector<double> values(n);
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    for (const double p : {0.0, 0.01, 0.25, 0.5, 0.77, 0.95, 1.0}) {
      const double at = p * static_cast<double>(n - 1);
      const double low = sorted[static_cast<std::size_t>(std::floor(at))];
      const double high = sorted[static_cast<std::size_t>(std::ceil(at))];
      const double got = percentile(values, p);
      EXPECT_TRUE(low <= got && got <= high);
      EXPECT_NEAR(got, low + (at - std::floor(at)) * (high - low), kRounding);
    }
  }
}

TEST(HeldFigures, ByHand) {
  ExactAttention truth;
  truth.mass = {0.4, 0.3, 0.2, 0.06, 0.04};
  truth.noticed = {1, 1, 0, 1, 1};
  const std::vector<std::uint8_t> held{1, 0, 0, 0, 1};
  const HeldFigures f = held_figures(truth, held);
  EXPECT_TRUE(close(f.mass_kept, 0.44));
  EXPECT_EQ(f.amnesia_count, 2);  // tokens 1 and 3; token 2 was lost, but nobody noticed
  EXPECT_TRUE(close(f.amnesia_mass, 0.36));
}

TEST(HeldFigures, StayWithinZeroAndOne) {
  // Nine ninths add up to 1 + 2^-52.
  ExactAttention truth;
  truth.mass.assign(9, 1.0 / 9.0);
  truth.noticed.assign(9, 1);
  HeldOverSteps kept(9);
  HeldOverSteps lost(9);
  kept.add(truth.mass, std::vector<std::uint8_t>(9, 1));
  lost.add(truth.mass, std::vector<std::uint8_t>(9, 0));
  EXPECT_EQ(kept.figures().mass_kept, 1.0);
  EXPECT_EQ(lost.figures().amnesia_mass, 1.0);
  const HeldFigures all = held_figures(truth, std::vector<std::uint8_t>(9, 1));
  EXPECT_EQ(all.mass_kept, 1.0);
  EXPECT_EQ(all.amnesia_count, 0);
  EXPECT_EQ(all.amnesia_mass, 0.0);
  const HeldFigures none = held_figures(truth, std::vector<std::uint8_t>(9, 0));
  EXPECT_EQ(none.mass_kept, 0.0);
  EXPECT_EQ(none.amnesia_count, 9);
  EXPECT_EQ(none.amnesia_mass, 1.0);
}

KvHead head_of(Index n, Index d, Index dv, DType dtype) {
  KvHead head;
  head.k = Matrix(n, d);
  head.v = Matrix(n, dv);
  head.dtype = dtype;
  return head;
}

TEST(MemoryFigures, ByHand) {
  // 10 tokens of 4 + 6 half-precision numbers: 20 bytes each; 6 of them are the middle.
  Compressed holding;
  holding.held.tokens = {4, 7};
  holding.made.k = Matrix(1, 4);
  holding.denominator = Denominator{{{4, 5}, {}}, {Matrix(1, 4), Matrix(), {}}};
  holding.aux_bytes = 7;
  holding.transient_bytes = 1000;
  const MemoryFigures f = memory_figures(holding, head_of(10, 4, 6, DType::float16), 6);
  EXPECT_EQ(f.middle_bytes, 3 * 20 + 3 * 8 + 7);
  EXPECT_EQ(f.bytes, 4 * 20 + 91);
  EXPECT_EQ(f.full_bytes, 200);
  EXPECT_EQ(f.tokens_kept, 6);  // 4 uncompressed and 2 pairs; a made pair is no kept token
  EXPECT_TRUE(close(f.ratio, 171.0 / 200.0));
  EXPECT_TRUE(close(f.middle_ratio, 91.0 / 120.0));
  EXPECT_EQ(f.aux_bytes, 7);
  EXPECT_EQ(f.transient_bytes, 1000);  // and in no other figure
}

TEST(MemoryFigures, ElementsPriceTheCache) {
  Compressed holding;
  holding.held.tokens = {2, 3, 4, 5, 6};
  for (const DType type : {DType::float16, DType::bfloat16, DType::float32}) {
    const Index each = type == DType::float32 ? 4 : 2;
    const MemoryFigures f = memory_figures(holding, head_of(9, 3, 2, type), 7);
    EXPECT_EQ(f.middle_bytes, 5 * 5 * each);
    EXPECT_EQ(f.bytes, 7 * 5 * each);
    EXPECT_EQ(f.full_bytes, 9 * 5 * each);
  }
}

TEST(MemoryFigures, AMethodsOwnPayloadReplacesTheCount) {
  Compressed holding;
  holding.held.tokens = {1, 2, 3, 4, 5, 6};
  holding.made.k = Matrix(3, 4);
  holding.payload_bytes = 11;
  holding.aux_bytes = 5;
  const MemoryFigures f = memory_figures(holding, head_of(10, 4, 6, DType::float16), 6);
  EXPECT_EQ(f.middle_bytes, 16);
  EXPECT_EQ(f.bytes, 4 * 20 + 16);
  EXPECT_EQ(f.tokens_kept, 10);
}

// Without a middle nothing was compressed.
TEST(MemoryFigures, NothingHeldOfMiddlesOfNoneAndOfAll) {
  for (const Index middle : {0, 10}) {
    const MemoryFigures f = memory_figures(Compressed{}, head_of(10, 4, 6, DType::float16), middle);
    EXPECT_EQ(f.middle_ratio, middle == 0 ? 1.0 : 0.0);
    EXPECT_EQ(f.ratio, middle == 0 ? 1.0 : 0.0);
    EXPECT_EQ(f.bytes, middle == 0 ? f.full_bytes : 0);
    EXPECT_EQ(f.tokens_kept, 10 - middle);
  }
}

}  // namespace
}  // namespace kvbench::test_metrics
