// clustergen: the laws of Lemmas B.2 and B.3. Seeds are fixed; each test names its level.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "clustergen_run.hpp"

namespace kvbench::test_clustergen_law {
namespace {

// Sum of (seen - expected)^2 / expected over cells of the given probabilities.
double chi_square(const std::vector<double>& seen, const std::vector<double>& probability) {
  const double total = std::accumulate(seen.begin(), seen.end(), 0.0);
  double chi = 0.0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double expected = total * probability[i];
    chi += (seen[i] - expected) * (seen[i] - expected) / expected;
  }
  return chi;
}

// The cells of two independent draws without order, and where a pair of slots falls.
std::vector<double> unordered_pairs(const std::vector<double>& p) {
  std::vector<double> out;
  for (std::size_t i = 0; i < p.size(); ++i) {
    for (std::size_t j = i; j < p.size(); ++j) {
      out.push_back(i == j ? p[i] * p[i] : 2 * p[i] * p[j]);
    }
  }
  return out;
}

std::size_t pair_cell(const std::map<Index, Index>& slots, std::size_t n) {
  const auto first = static_cast<std::size_t>(slots.begin()->first);
  const auto last = static_cast<std::size_t>(slots.rbegin()->first);
  return first * n - first * (first + 1) / 2 + last;
}

// Lemma B.3, property 5: each of t slots is uniform over its cluster. 8 keys, 4000 x 3 draws;
// chi-square of 7 degrees, level 0.001: 24.3. And jointly: the slots are independent, so 2 slots of
// 4 keys fall into their 10 cells with 2/16 or 1/16; 9 degrees: 27.9.
TEST(ClusterGenLaw, ReservoirIsUniformWithReplacement) {
  const KvHead eight = line({1, 1, 1, 1, 1, 1, 1, 1});
  const KvHead four = line({1, 1, 1, 1});
  std::vector<double> seen(8, 0.0);
  std::vector<double> cells(10, 0.0);
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    const Compressed c =
        run(eight, positions(0, 8), {{"delta", "7"}, {"t", "3"}, {"samples", "1"}}, seed);
    for (const auto& [token, count] : key_slots(c, 8, 3)) {
      seen[token] += static_cast<double>(count);
    }
    const Compressed two =
        run(four, positions(0, 4), {{"delta", "7"}, {"t", "2"}, {"samples", "1"}}, seed);
    cells[pair_cell(key_slots(two, 4, 2), 4)] += 1.0;
  }
  EXPECT_LT(chi_square(seen, std::vector<double>(8, 0.125)), 24.3);
  EXPECT_LT(chi_square(cells, unordered_pairs({0.25, 0.25, 0.25, 0.25})), 27.9);
}

// Lemma B.2: each slot is token i with probability |v_i|^2 / mu. Zero values never. 4 degrees at
// level 0.001: 18.5; jointly as above, 27.9.
TEST(ClusterGenLaw, PairsAreDrawnByValueNorm) {
  const KvHead six = line({0, 4, 1, 0, 9, 0.25, 2});
  const KvHead four = line({1, 4, 2, 3});
  std::vector<double> seen(7, 0.0);
  std::vector<double> cells(10, 0.0);
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    const Compressed c =
        run(six, positions(0, 7), {{"delta", "1"}, {"t", "1"}, {"samples", "3"}}, seed);
    for (const auto& [token, count] : pair_slots(c, six, 16.25L, 3)) {
      seen[token] += static_cast<double>(count);
    }
    const Compressed two =
        run(four, positions(0, 4), {{"delta", "1"}, {"t", "1"}, {"samples", "2"}}, seed);
    cells[pair_cell(pair_slots(two, four, 10.0L, 2), 4)] += 1.0;
  }
  EXPECT_EQ(seen[0] + seen[3], 0.0);
  const double mu = 16.25;
  EXPECT_LT(chi_square({seen[1], seen[2], seen[4], seen[5], seen[6]},
                       {4 / mu, 1 / mu, 9 / mu, 0.25 / mu, 2 / mu}),
            18.5);
  EXPECT_LT(chi_square(cells, unordered_pairs({0.1, 0.4, 0.2, 0.3})), 27.9);
}

// One binomial draw per token has the law of a coin per slot, also where thousands of slots make
// the draw go in parts: of 3000 slots the number that hold one of three tokens is
// Binomial(3000, p). Totals: chi-square of 2 degrees, level 0.001: 13.8. Spread over 300 seeds:
// sum of standardised squares is chi-square of 300 degrees, two-sided level 0.001: [226, 387].
TEST(ClusterGenLaw, BinomialDrawsOfManySlots) {
  const std::vector<double> p = {0.5, 0.3, 0.2};
  const KvHead head = line({5, 3, 2});
  std::vector<double> pairs(3, 0.0), spread(3, 0.0), key_spread(3, 0.0);
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Compressed c =
        run(head, positions(0, 3), {{"delta", "9"}, {"t", "3000"}, {"samples", "3000"}}, seed);
    const auto standardised = [](double x, double q) {
      return (x - 3000 * q) * (x - 3000 * q) / (3000 * q * (1 - q));
    };
    for (const auto& [token, count] : pair_slots(c, head, 10.0L, 3000)) {
      const auto i = static_cast<std::size_t>(token);
      pairs[i] += static_cast<double>(count);
      spread[i] += standardised(static_cast<double>(count), p[i]);
    }
    for (const auto& [token, count] : key_slots(c, 3, 3000)) {
      key_spread[token] += standardised(static_cast<double>(count), 1.0 / 3.0);
    }
  }
  EXPECT_LT(chi_square(pairs, p), 13.8);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_GT(spread[i], 226.0);
    EXPECT_LT(spread[i], 387.0);
    EXPECT_GT(key_spread[i], 226.0);
    EXPECT_LT(key_spread[i], 387.0);
  }
}

// Both sums of the estimator are unbiased: means over 3000 seeds within 4 standard errors of the
// exact sums (level 6e-5 each).
TEST(ClusterGenLaw, NumeratorAndDenominatorAreUnbiased) {
  const KvHead head = make_head({.n = 40, .key_norm = 1.5}, 9);
  const reference::Rows k = reference::rows_of(head.k);
  const reference::Rows v = reference::rows_of(head.v);
  const reference::Vec q = reference::rows_of(head.q[0])[3];
  const auto term = [&](Index i) {
    return static_cast<double>(
        std::exp(static_cast<long double>(head.scale) * reference::dot(k[i], q)));
  };
  const auto value = [&](Index i) { return static_cast<double>(v[i][2]); };
  double exact[2] = {0.0, 0.0};
  for (Index i = 0; i < 40; ++i) {
    exact[0] += term(i) * value(i);
    exact[1] += term(i);
  }
  double sum[2] = {0.0, 0.0}, squares[2] = {0.0, 0.0};
  const int seeds = 3000;
  for (int seed = 0; seed < seeds; ++seed) {
    const Compressed c = run(head, positions(0, 40), {{"delta", "1.5"}, {"t", "2"}},
                             static_cast<std::uint64_t>(seed));
    double x[2] = {0.0, 0.0};
    for (std::size_t i = 0; i < c.held.tokens.size(); ++i) {
      const Index token = c.held.tokens[i];
      x[0] += static_cast<double>(c.held.weight(i)) * term(token) * value(token);
    }
    const HeldTokens& d = c.denominator->held;
    for (std::size_t i = 0; i < d.tokens.size(); ++i) {
      x[1] += static_cast<double>(d.weight(i)) * term(d.tokens[i]);
    }
    for (int part = 0; part < 2; ++part) {
      sum[part] += x[part];
      squares[part] += x[part] * x[part];
    }
  }
  for (int part = 0; part < 2; ++part) {
    const double mean = sum[part] / seeds;
    const double error = std::sqrt((squares[part] / seeds - mean * mean) / seeds);
    EXPECT_GT(error, 0.0);
    EXPECT_LT(std::abs(mean - exact[part]), 4.0 * error);
  }
}

}  // namespace
}  // namespace kvbench::test_clustergen_law
