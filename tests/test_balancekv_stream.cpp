// balancekv-stream: the offline reference on the same signs, erasures, and that a larger t errs
// less. The levels alone: test_merge_and_reduce.cpp.
#include "held_sets.hpp"
#include "reference/merge_and_reduce.hpp"
#include "stream_of.hpp"

namespace kvbench::test_balancekv_stream {
namespace {

constexpr const char* kName = "balancekv-stream";

Compressed run(const KvHead& head, const Given& given, std::optional<Index> budget = {},
               std::uint64_t seed = 0) {
  return StreamOf(kName, head, given, {}, budget, seed).run();
}

using Weights = std::map<Index, double>;

Weights weights_of(const HeldTokens& held) {
  Weights out;
  for (std::size_t i = 0; i < held.tokens.size(); ++i) {
    out[held.tokens[i]] = static_cast<double>(held.weight(i));
  }
  return out;
}

// All arrivals so far through the offline reference; the walks are reference::walk on the same
// uniforms.
void add_reference(const KvHead& head, const std::vector<Index>& tokens, const std::string& name,
                   Index t, Index levels, const reference::WalkReference& walk, Weights& out) {
  const reference::Rows k = reference::rows_of(head.k);
  const reference::Rows v = reference::rows_of(head.v);
  const Rng rng(0, {"p", 0, 0}, kName);
  const auto halve = [&](const std::vector<Index>& block, Index level, Index number) {
    std::vector<double> uniforms(block.size());
    rng.stream("walk-" + name + "-" + std::to_string(t) + "-" + std::to_string(level) + "-" +
               std::to_string(number))
        .uniforms(0, uniforms);
    reference::Rows keys, values;
    for (const Index i : block) {
      keys.push_back(k[i]);
      values.push_back(name == "denominator" ? reference::Vec{1} : v[i]);
    }
    const reference::Vec ones(block.size(), 1);
    return reference::smaller_half(block, reference::walk(keys, values, ones, walk, uniforms).sign);
  };
  const auto c = reference::merge_and_reduce(tokens, t, levels, halve);
  for (std::size_t l = 0; l < c.size(); ++l) {
    for (const Index token : c[l]) {
      out[token] = std::ldexp(1.0, static_cast<int>(l));
    }
  }
}

TEST(BalanceKvStream, EqualsTheOfflineReferenceAtEveryStep) {
  KvHead head = make_head({.n = 180, .nq = 180, .value_norm = 1.5}, 5);
  std::fill_n(head.v.row(20), 8, 0.0F);  // a zero value: in the denominator alone
  const auto check = [&](const Given& given, const reference::WalkReference& walk, Index t,
                         Index levels, Index sink = 0, Index recent = 0) {
    StreamOf cache(kName, head, given, {sink, recent}, {}, 0);
    std::vector<Index> all;
    std::map<int, std::vector<Index>> buckets;
    for (Index j = 0; j < head.n(); ++j) {
      cache.step();
      const Index left = j - recent;
      long double square = 0;
      for (Index c = 0; left >= sink && c < 8; ++c) {
        square += static_cast<long double>(head.v.row(left)[c]) * head.v.row(left)[c];
      }
      if (left >= sink) {
        all.push_back(left);
      }
      if (square > 0) {
        buckets[reference::norm_bucket(std::sqrt(square))].push_back(left);
      }
      if (j % 17 != 0 && j + 1 != head.n()) {
        continue;
      }
      const Compressed c = cache.view();
      Weights numerator, denominator;
      for (const auto& [bucket, tokens] : buckets) {
        add_reference(head, tokens, "numerator" + std::to_string(bucket), t, levels, walk,
                      numerator);
      }
      add_reference(head, all, "denominator", t, levels, walk, denominator);
      ASSERT_EQ(weights_of(c.held), numerator) << j;
      ASSERT_EQ(weights_of(c.denominator->held), denominator) << j;
      ASSERT_EQ(diag_number(c, "buckets"), static_cast<double>(buckets.size()));
      ASSERT_EQ(diag_number(c, "weight_sum"), static_cast<double>(all.size()));
    }
  };
  reference::WalkReference walk;
  walk.scale = static_cast<reference::Real>(head.scale);
  walk.step = reference::ReferenceStep::self;
  check({{"t", "8"}, {"step", "self"}, {"fill", "order"}}, walk, 8, 5);
  check({{"t", "8"}, {"step", "self"}, {"fill", "order"}}, walk, 8, 5, 5);
  check({{"t", "8"}, {"step", "self"}, {"fill", "order"}}, walk, 8, 5, 16, 20);
  check({{"t", "8"}, {"step", "self"}, {"fill", "order"}}, walk, 8, 5, 170, 20);
  check({{"t", "6"}, {"T", "2"}, {"step", "self"}, {"fill", "order"}}, walk, 6, 2);
  walk.step = reference::ReferenceStep::theory;
  walk.center = false;
  check({{"T", "4"}, {"step", "theory"}, {"fill", "order"}, {"center", "none"}}, walk, 12, 4);
  walk.step = reference::ReferenceStep::greedy;
  check({{"t", "32"}, {"fill", "order"}, {"center", "none"}}, walk, 32, 3);
}

// Plenty of room: nothing is halved, and the estimate is exact.
TEST(BalanceKvStream, WithRoomForAllItKeepsAll) {
  const KvHead head = make_head({.n = 100, .nq = 100}, 2);
  const Compressed c = run(head, {}, Index{1} << 30);
  EXPECT_EQ(c.held.tokens, positions(0, 100));
  EXPECT_EQ(c.denominator->held.tokens, positions(0, 100));
  EXPECT_EQ(weight_sum(c.held), 100.0);
  EXPECT_EQ(c.aux_bytes, 16 + 16 * (1 + static_cast<Index>(diag_number(c, "buckets"))));
  EXPECT_TRUE(std::isinf(diag_number(c, "log10_epsilon_theorem")));
}

// Measured epsilon of the theorem, BalanceKV eq. 2, at the last position.
double measured_epsilon(const KvHead& head, const Compressed& c) {
  const reference::Attention truth = reference::attention(head, 0, head.n() - 1);
  const HeldSets held = held_sets(head, {}, c);
  const reference::Estimate e = reference::estimate(reference::rows_of(head.q[0]).back(),
                                                    head.scale, held.numerator, held.denominator);
  reference::Real square = 0;
  for (std::size_t t = 0; t < e.z.size(); ++t) {
    square += (e.z[t] - truth.out[t]) * (e.z[t] - truth.out[t]);
  }
  reference::Real frobenius = 0;
  for (const reference::Vec& v : reference::rows_of(head.v)) {
    frobenius += reference::dot(v, v);
  }
  return static_cast<double>(std::sqrt(square / (reference::dot(truth.p, truth.p) * frobenius)));
}

// Mean over 30 seeds; a factor of four in t is far outside of the mean's spread.
TEST(BalanceKvStream, ErrorFallsWithTheBatchSizeAndIsBelowTheTheorems) {
  const KvHead head = make_head({.n = 512, .nq = 512, .group = 1, .key_norm = 1.0}, 9);
  double last = std::numeric_limits<double>::infinity();
  for (const char* t : {"4", "16", "64", "256"}) {
    double sum = 0.0;
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      const Compressed c = run(head, {{"t", t}}, {}, seed);
      const double epsilon = measured_epsilon(head, c);
      sum += epsilon;
      const double theorem = std::pow(10.0, diag_number(c, "log10_epsilon_theorem"));
      EXPECT_LT(epsilon, theorem);
      EXPECT_TRUE(std::isfinite(theorem));
    }
    EXPECT_LT(sum / 30.0, last) << t;
    last = sum / 30.0;
  }
  EXPECT_GT(last, 0.0);
}

TEST(BalanceKvStream, ErasesWhatLiesBelowTheBoundAndOnlyThat) {
  KvHead head = make_head({.n = 64, .nq = 64}, 4);
  std::fill_n(head.v.data(), 64 * 8, 0.0F);
  for (Index i = 0; i < 64; ++i) {
    // |v| = 2^-20 at first, 1 in the middle, then both in turns.
    const bool small = i < 20 || (i >= 40 && i % 2 == 0);
    head.v.row(i)[0] = small ? std::ldexp(1.0F, -20) : 1.0F;
  }
  // r = 0, epsilon = 1: the bound is v_max / 128, and 2^-19 is below it once a 1 has come.
  StreamOf cache(kName, head, {{"t", "64"}, {"epsilon", "1"}, {"r", "0"}});
  EXPECT_EQ(cache.run(20).held.tokens.size(), 20U);
  EXPECT_EQ(diag_number(cache.view(), "erasures"), 0.0);
  EXPECT_EQ(cache.run(21).held.tokens, (std::vector<Index>{20}));
  EXPECT_EQ(diag_number(cache.view(), "erasures"), 1.0);
  const Compressed all = cache.run();
  EXPECT_EQ(diag_number(all, "erasures"), 1.0 + 12.0);
  EXPECT_EQ(diag_number(all, "erased_weight"), 20.0 + 12.0);
  EXPECT_EQ(diag_number(all, "numerator_weight_sum"), 32.0);
  EXPECT_EQ(diag_number(all, "weight_sum"), 64.0);
  const auto erasures = [&](const char* r) {
    return diag_number(run(head, {{"t", "64"}, {"epsilon", "1"}, {"r", r}}), "erasures");
  };
  // exp(-s r^2) lowers the bound: with keys as they are nothing is small enough.
  EXPECT_EQ(erasures("10"), 0.0);
  // The bucket's upper end counts: 2^-7 = v_max / 128 itself is kept in its bucket [2^-7, 2^-6).
  for (const auto& [exponent, erased] : {std::pair{-7, 0.0}, {-8, 32.0}}) {
    for (Index i = 0; i < 64; ++i) {
      head.v.row(i)[0] = i % 2 == 0 ? 1.0F : std::ldexp(1.0F, exponent);
    }
    EXPECT_EQ(erasures("0"), erased);
  }
}

TEST(BalanceKvStream, TheBoundsRadiusIsTheLargestNormSeenOfKeysAndOfAnyHeadsQueries) {
  KvHead head = make_head({.n = 64, .nq = 64}, 4);
  std::fill_n(head.k.data(), 64 * 8, 0.0F);
  std::fill_n(head.v.data(), 64 * 8, 0.0F);
  for (Matrix& q : head.q) {
    std::fill_n(q.data(), 64 * 8, 0.0F);
  }
  for (Index i = 0; i < 64; ++i) {
    head.v.row(i)[0] = i % 2 == 0 ? 1.0F : std::ldexp(1.0F, -20);
  }
  const auto erasures = [&] {
    return diag_number(run(head, {{"t", "64"}, {"epsilon", "1"}}), "erasures");
  };
  EXPECT_EQ(erasures(), 32.0);  // r = 0
  // s r^2 = 64 / sqrt(8) = 22.6 lowers the bound by more than 20 ln 2 = 13.9.
  head.q[1].row(0)[3] = 8.0F;
  EXPECT_EQ(erasures(), 0.0);
  head.q[1].row(0)[3] = 0.0F;
  head.k.row(0)[3] = -8.0F;
  EXPECT_EQ(erasures(), 0.0);
  head.k.row(0)[3] = 0.0F;
  head.k.row(9)[3] = 8.0F;  // the four small ones before it are gone
  EXPECT_EQ(erasures(), 4.0);
}

// What a row would refuse is refused before any.
TEST(BalanceKvStream, SizesAndRefusals) {
  const KvHead head = make_head({}, 1);
  for (const char* t : {"3", "7", "32767"}) {
    EXPECT_THROW(facts_of(kName, {{"t", t}}), InputError) << t;
  }
  for (const char* t : {"auto", "2", "8", "32768"}) {
    EXPECT_NO_THROW(facts_of(kName, {{"t", t}})) << t;
  }
  EXPECT_EQ(run(head, {{"T", "0"}}).held.tokens.size(), 64U);  // nothing is ever halved
  EXPECT_EQ(run(head, {{"t", "2"}, {"T", "1"}}).denominator->held.tokens.size(), 32U);
}

}  // namespace
}  // namespace kvbench::test_balancekv_stream
