// wildcat against its reference bin by bin, the law of its draws, what its weights must give,
// budgets and odd inputs.
#include "algorithms/shared/size.hpp"
#include "merge_checks.hpp"
#include "reference/wildcat.hpp"

namespace kvbench::test_wildcat {
namespace {

// Sums over a bin in float64 under residuals of 1e-10 at worst, some 1e-3 here; stored as float32.
constexpr double kTolerance = 1e-6;

Given given(Index tokens, Index per_bin, const std::string& tau = "auto") {
  return {{"tokens", std::to_string(tokens)}, {"per_bin", std::to_string(per_bin)}, {"tau", tau}};
}

struct Expected {
  reference::Real weight = 0;
  reference::Vec value;
};

// By position of the tokens kept: every bin by the reference, with the uniforms that the method
// draws.
std::map<Index, Expected> expected(const JobOf& job, Index kept, Index per_bin, double tau) {
  const auto& tokens = job.tokens();
  const auto m = static_cast<Index>(tokens.size());
  const Index bins = per_bin == 0 ? 1 : std::max<Index>(1, kept / per_bin);
  const reference::Rows k = reference::rows_of(job.head().k);
  const reference::Rows v = reference::rows_of(job.head().v);
  const reference::Vec mean = reference::row_mean(reference::rows_at(job.head().k, tokens));
  const RngStream draws = job.task().rng.stream("pivots");
  std::map<Index, Expected> out;
  for (Index b = 0; b < bins; ++b) {
    reference::Rows keys;
    reference::Rows values;
    std::vector<Index> own;
    reference::Real radius = 0;
    for (Index i = m * b / bins; i < m * (b + 1) / bins; ++i) {
      own.push_back(tokens[i]);
      keys.push_back(k[tokens[i]]);
      values.push_back(v[tokens[i]]);
      for (std::size_t t = 0; t < mean.size(); ++t) {
        keys.back()[t] -= mean[t];
      }
      radius = std::max(radius, std::sqrt(reference::dot(keys.back(), keys.back())));
    }
    std::vector<double> uniforms;
    for (Index i = kept * b / bins; i < kept * (b + 1) / bins; ++i) {
      uniforms.push_back(draws.uniform(static_cast<std::uint64_t>(i)));
    }
    const auto scale = static_cast<reference::Real>(job.head().scale);
    const reference::Real squared =
        tau > 0.0 ? static_cast<reference::Real>(tau) * static_cast<reference::Real>(tau)
                  : reference::wildcat_temperature(scale, keys.size(), radius);
    const reference::Coreset c = reference::wildcat(keys, values, scale, squared, uniforms);
    for (std::size_t r = 0; r < c.picks.size(); ++r) {
      out[own[c.picks[r]]] = {c.weights[r], c.values[r]};
    }
  }
  return out;
}

void expect_near(float got, reference::Real want, double size) {
  ASSERT_TRUE(std::abs(static_cast<double>(got) - static_cast<double>(want)) <= kTolerance * size)
      << got << " " << static_cast<double>(want);
}

void expect_coreset(const JobOf& job, const Compressed& c,
                    const std::map<Index, Expected>& entries) {
  ASSERT_EQ(c.made.k.rows(), static_cast<Index>(entries.size()));
  ASSERT_TRUE(c.held.tokens.empty());
  ASSERT_TRUE(c.denominator.has_value());
  ASSERT_TRUE(same_bits(c.denominator->made.k, c.made.k));
  ASSERT_EQ(c.payload_bytes, c.made.k.rows() * job.head().pair_bytes());
  ASSERT_EQ(c.aux_bytes, 4 * c.made.k.rows());
  Index row = 0;
  for (const auto& [token, e] : entries) {
    ASSERT_EQ(c.made.positions[row], token);
    ASSERT_TRUE(std::equal(c.made.k.row(row), c.made.k.row(row) + 8, job.head().k.row(token)));
    const reference::Real unit = std::max<reference::Real>(1, e.weight);
    const double size = 1.0 + std::abs(static_cast<double>(e.weight));
    expect_near(c.made.weights[row], unit, size);
    expect_near(c.denominator->made.weights[row], std::max<reference::Real>(0, e.weight), size);
    for (std::size_t t = 0; t < e.value.size(); ++t) {
      const reference::Real value = e.value[t] / unit;
      expect_near(c.made.v.row(row)[t], value, 1.0 + std::abs(static_cast<double>(value)));
    }
    ++row;
  }
}

TEST(WildCat, EqualsTheReference) {
  Index negative = 0;
  for (const unsigned seed : {3U, 4U}) {
    for (const auto& tokens : {positions(10, 60), gappy(10, 70)}) {
      HeadShape shape = merging_shape(80);
      shape.key_norm = seed == 3 ? 3.0 : 8.0;
      const JobOf job("wildcat", make_head(shape, seed), tokens, {});
      for (const auto& [kept, per_bin] : std::vector<std::pair<Index, Index>>{
               {1, 12}, {5, 12}, {12, 12}, {23, 12}, {24, 12}, {20, 3}, {10, 1}, {15, 0}}) {
        expect_coreset(job, job.run({}, given(kept, per_bin)), expected(job, kept, per_bin, 0.0));
        const Compressed c = job.run({}, given(kept, per_bin, "1.5"));
        expect_coreset(job, c, expected(job, kept, per_bin, 1.5));
        negative += static_cast<Index>(diag_number(c, "negative"));
      }
    }
  }
  EXPECT_GT(negative, 0);  // the case is there
}

// The first draw is proportional to exp(s|k|^2 / tau^2), the second to what the first leaves.
TEST(WildCat, TheLawOfTheDraws) {
  HeadShape shape = merging_shape(4);
  const JobOf job("wildcat", make_head(shape, 11), positions(0, 4), {});
  const KvHead& head = job.head();
  std::vector<double> mean(8, 0.0);
  for (Index i = 0; i < 4; ++i) {
    for (std::size_t t = 0; t < 8; ++t) {
      mean[t] += static_cast<double>(head.k.row(i)[t]) / 4.0;
    }
  }
  const auto kernel = [&](Index i, Index j) {
    double dot = 0.0;
    for (std::size_t t = 0; t < 8; ++t) {
      dot += (static_cast<double>(head.k.row(i)[t]) - mean[t]) *
             (static_cast<double>(head.k.row(j)[t]) - mean[t]);
    }
    return std::exp(head.scale * dot / 4.0);  // tau = 2
  };
  std::map<std::vector<Index>, double> pairs;
  double first = 0.0;
  for (Index i = 0; i < 4; ++i) {
    first += kernel(i, i);
  }
  for (Index i = 0; i < 4; ++i) {
    const auto left = [&](Index j) {
      return j == i ? 0.0 : kernel(j, j) - kernel(i, j) * kernel(i, j) / kernel(i, i);
    };
    const double second = left(0) + left(1) + left(2) + left(3);
    for (Index j = 0; j < 4; ++j) {
      if (j != i) {
        pairs[{std::min(i, j), std::max(i, j)}] += kernel(i, i) / first * left(j) / second;
      }
    }
  }
  constexpr int kSeeds = 4000;
  std::map<std::vector<Index>, double> seen;
  for (int seed = 0; seed < kSeeds; ++seed) {
    seen[job.run({}, given(2, 0, "2"), static_cast<std::uint64_t>(seed)).made.positions] +=
        1.0 / kSeeds;
  }
  ASSERT_EQ(pairs.size(), 6U);
  for (const auto& [pair, p] : pairs) {
    // Five standard deviations.
    EXPECT_NEAR(seen[pair], p, 5.0 * std::sqrt(p * (1.0 - p) / kSeeds)) << pair[0] << pair[1];
  }
}

// Three keys, each many times: three tokens say all there is, whatever is asked for.
TEST(WildCat, EqualKeysAreOneToken) {
  KvHead head = make_head(merging_shape(40), 7);
  for (Index i = 3; i < 40; ++i) {
    std::copy_n(head.k.row(i % 3), 8, head.k.row(i));
  }
  const JobOf job("wildcat", head, positions(3, 33), {});
  const Compressed c = job.run({}, given(8, 12));
  ASSERT_EQ(c.made.k.rows(), 3);
  for (Index r = 0; r < 3; ++r) {
    EXPECT_NEAR(c.made.weights[r], 10.0F, 1e-4F);
    const Index which = c.made.positions[r] % 3;
    for (Index t = 0; t < 5; ++t) {
      double mean = 0.0;
      for (Index i = 3; i < 33; ++i) {
        mean += i % 3 == which ? static_cast<double>(head.v.row(i)[t]) / 10.0 : 0.0;
      }
      EXPECT_NEAR(static_cast<double>(c.made.v.row(r)[t]), mean, 1e-5);
    }
  }
  EXPECT_NEAR(diag_number(c, "weight_sum"), 30.0, 1e-3);
}

// Of the first query head's outputs, over all tokens.
double error_of(const JobOf& job, const Compressed& c) {
  const KvHead& head = job.head();
  const reference::Rows k = reference::rows_of(c.made.k);
  return static_cast<double>(reference::relative_error(
      reference::rows_of(head.q[0]), head.scale,
      reference::entries(reference::rows_of(head.k), reference::rows_of(head.v)),
      reference::entries(k, reference::rows_of(c.made.v), c.made.weights),
      reference::entries(k, {}, c.denominator->made.weights)));
}

// Keys that differ little span a space of few dimensions, to rounding: 6 and 15 tokens span the
// polynomials of two channels up to degrees 2 and 4.
TEST(WildCat, FewTokensOfFlatKeysGiveAllAttention) {
  HeadShape shape = merging_shape(200);
  shape.d = 2;
  shape.key_norm = 0.2;
  shape.key_offset = 20.0;  // a common part of all keys changes nothing
  KvHead head = make_head(shape, 13);
  const JobOf job("wildcat", head, positions(0, 200), {});
  const double one = error_of(job, job.run({}, given(1, 0)));
  const double few = error_of(job, job.run({}, given(6, 0)));
  const double more = error_of(job, job.run({}, given(15, 0)));
  EXPECT_LT(few, 0.3 * one);
  EXPECT_LT(more, 0.1 * few);
}

TEST(WildCat, AllTokensAreHeldAsTheyAre) {
  const JobOf job("wildcat", make_head(merging_shape(80), 4), gappy(5, 75), {});
  const auto m = static_cast<Index>(job.tokens().size());
  const Compressed c = job.run({}, given(m, 12));
  EXPECT_EQ(c.held.tokens, job.tokens());
  EXPECT_EQ(c.aux_bytes, 0);
  // One bin keeps one token less than it has.
  EXPECT_EQ(job.run({}, given(m - 1, 1)).made.k.rows(), m - 1);
}

}  // namespace
}  // namespace kvbench::test_wildcat
