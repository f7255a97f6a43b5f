// clustergen and clustergen-kcenter: Algorithm 1's state against its definition, sizes and budgets,
// the stream, centres, and the laws of Lemmas B.2 and B.3, whose seeds are fixed.
#include <numeric>
#include <tuple>

#include "attention/online_clusters.hpp"
#include "reference/cluster.hpp"
#include "reference/kmeans.hpp"
#include "stream_of.hpp"

namespace kvbench::test_clustergen {
namespace {

constexpr double kFloat = 1e-6;  // weights are float32

Compressed run(const KvHead& head, const std::vector<Index>& tokens, const Given& given,
               std::uint64_t seed = 0, std::optional<Index> budget = {}) {
  return JobOf("clustergen", head, tokens, {}).run(budget, given, seed);
}

Index diag(const Compressed& c, const std::string& key) {
  return std::stoll(diag_text(c, key));
}

long double square(const KvHead& head, Index i) {
  const reference::Vec v = reference::rows_at(head.v, {i})[0];
  return reference::dot(v, v);
}

// A head of `n` tokens with values of the given squared norms, keys at 0, 1, 2, ... of a line.
KvHead line(const std::vector<double>& squares) {
  const HeadShape shape{.n = static_cast<Index>(squares.size()), .nq = 1, .d = 2, .dv = 1};
  KvHead head = make_head(shape, 1);
  for (Index i = 0; i < shape.n; ++i) {
    head.k.row(i)[0] = static_cast<float>(i);
    head.k.row(i)[1] = 0.0F;
    head.v.row(i)[0] = static_cast<float>(std::sqrt(squares[i]));
  }
  return head;
}

// Slots that each entry stands for: weight / weight of one slot, a whole number.
Index slots_of(float weight, long double each) {
  const long double slots = static_cast<long double>(weight) / each;
  EXPECT_NEAR(static_cast<double>(slots), std::round(static_cast<double>(slots)),
              kFloat * static_cast<double>(slots));
  return std::lround(static_cast<double>(slots));
}

// Slots by token of a one-cluster denominator, and of the numerator.
std::map<Index, Index> key_slots(const Compressed& c, Index count, Index t) {
  std::map<Index, Index> out;
  for (std::size_t i = 0; i < c.denominator->held.tokens.size(); ++i) {
    out[c.denominator->held.tokens[i]] =
        slots_of(c.denominator->held.weight(i),
                 static_cast<long double>(count) / static_cast<long double>(t));
  }
  return out;
}

std::map<Index, Index> pair_slots(const Compressed& c, const KvHead& head, long double mu,
                                  Index samples) {
  std::map<Index, Index> out;
  for (std::size_t i = 0; i < c.held.tokens.size(); ++i) {
    const Index token = c.held.tokens[i];
    out[token] =
        slots_of(c.held.weight(i), mu / (static_cast<long double>(samples) * square(head, token)));
  }
  return out;
}

TEST(ClusterGen, StateIsAlgorithmOnes) {
  for (const double offset : {0.0, 1e4}) {
    for (const DType dtype : {DType::bfloat16, DType::float32}) {
      const KvHead head = make_head({.n = 90, .dv = 5, .key_offset = offset, .dtype = dtype}, 3);
      const std::vector<Index> tokens = gappy(2, 88);
      const reference::Rows keys = reference::rows_at(head.k, tokens);
      long double mu = 0;
      for (const Index i : tokens) {
        mu += square(head, i);
      }
      for (const Given& given : settings("delta=0,1.5,3.1,4.5,100;t=1,3,8;samples=1,20")) {
        const std::vector<Index> cluster =
            reference::online_clusters(keys, std::stold(given.at("delta")));
        const Index clusters = reference::cluster_count(cluster);
        const Index t = index_in(given, "t");
        const Index samples = index_in(given, "samples");
        const Compressed c = run(head, tokens, given);
        ASSERT_EQ(diag(c, "clusters"), clusters);
        Index slots = 0;
        for (const auto& [token, count] : pair_slots(c, head, mu, samples)) {
          slots += count;
        }
        ASSERT_EQ(slots, samples);
        // Every cluster has t slots of its own keys, each with weight n_i / t.
        std::map<Index, Index> by_cluster;
        const HeldTokens& d = c.denominator->held;
        ASSERT_TRUE(std::is_sorted(d.tokens.begin(), d.tokens.end()));
        for (std::size_t i = 0; i < d.tokens.size(); ++i) {
          const auto place = std::find(tokens.begin(), tokens.end(), d.tokens[i]);
          const Index own = cluster[place - tokens.begin()];
          const auto size = std::count(cluster.begin(), cluster.end(), own);
          by_cluster[own] +=
              slots_of(d.weight(i), static_cast<long double>(size) / static_cast<long double>(t));
        }
        ASSERT_EQ(static_cast<Index>(by_cluster.size()), clusters);
        for (const auto& [own, count] : by_cluster) {
          ASSERT_EQ(count, t);
        }
        const Index key_bytes = 8 * bytes_per_element(dtype);
        ASSERT_EQ(c.payload_bytes, samples * head.pair_bytes() + clusters * (1 + t) * key_bytes);
        ASSERT_EQ(c.aux_bytes, 8 + 4 * clusters);
      }
    }
  }
}

// Zeros among other values: PairsAreDrawnByValueNorm.
TEST(ClusterGen, ZeroValuesAreNeverDrawn) {
  const KvHead none = line({0, 0, 0});
  const Compressed c =
      run(none, positions(0, 3), {{"delta", "0"}, {"t", "2"}, {"samples", "4"}}, 1);
  EXPECT_TRUE(c.held.tokens.empty());
  EXPECT_EQ(c.denominator->held.tokens, positions(0, 3));
  EXPECT_EQ(c.denominator->held.weights, (std::vector<float>{1, 1, 1}));
  // Slots without a pair are allocated all the same.
  EXPECT_EQ(c.payload_bytes, 4 * none.pair_bytes() + 3 * 3 * 8);
}

TEST(ClusterGen, BudgetIsNeverExceededAndDeltaIsTheSmallest) {
  for (const DType dtype : {DType::float16, DType::float32}) {
    const KvHead head = make_head({.n = 100, .dv = 4, .dtype = dtype}, 21);
    const Index pair = head.pair_bytes();
    const Index key = 8 * bytes_per_element(dtype);
    for (const Index m : {1, 2, 5, 50, 90}) {
      const std::vector<Index> tokens = positions(4, 4 + m);
      const Index least = std::min(m * pair, 8 + pair + 9 * key + 4);
      for (Index budget = 0; budget < (m + 3) * pair; budget += 1 + m * pair / 60) {
        if (budget < least) {
          ASSERT_EQ(needed_bytes([&] { run(head, tokens, {}, 0, budget); }), least);
          continue;
        }
        const Compressed c = run(head, tokens, {}, 0, budget);
        ASSERT_LE(middle_bytes_of(c, head), budget);
        if (budget >= m * pair) {  // everything fits: everything is kept
          ASSERT_EQ(c.held.tokens, tokens);
          ASSERT_TRUE(c.held.weights.empty());
          ASSERT_FALSE(c.denominator.has_value());
          continue;
        }
        const Index samples = diag(c, "samples");
        ASSERT_GE(samples, 1);
        const Index k = (budget - 8 - samples * pair) / (9 * key + 4);
        ASSERT_GE(k, 1);
        if (samples > 1) {
          ASSERT_LE(2 * samples * pair, budget);
        }
        const Clusters cover =
            online_clusters(head.k, tokens, smallest_delta(*cpu_rows(head.k, tokens), k));
        ASSERT_EQ(diag(c, "clusters"), static_cast<Index>(cover.representatives.size()));
        ASSERT_LE(diag(c, "clusters"), k);
      }
    }
  }
}

TEST(ClusterGen, NativeParametersAndBudgetsTogether) {
  const KvHead head = line(std::vector<double>(20, 1.0));  // pair 12 bytes, key 8
  const std::vector<Index> tokens = positions(0, 20);
  EXPECT_THROW(run(head, tokens, {}), InputError);
  EXPECT_THROW(run(head, tokens, {{"samples", "3"}}), InputError);
  // 10 clusters of 3 keys and a count: 280 bytes; as much again, or three times, for pairs.
  EXPECT_EQ(diag(run(head, tokens, {{"delta", "1"}, {"t", "2"}}), "samples"), 280 / 12);
  EXPECT_EQ(diag(run(head, tokens, {{"delta", "1"}, {"t", "2"}, {"share", "0.75"}}), "samples"),
            3 * 280 / 12);
  EXPECT_EQ(diag(run(head, tokens, {{"delta", "1"}, {"t", "2"}}, 0, 328), "samples"), 3);
  EXPECT_EQ(needed_bytes([&] { run(head, tokens, {{"delta", "1"}, {"t", "2"}}, 0, 299); }), 300);
  EXPECT_EQ(diag(run(head, tokens, {{"samples", "5"}, {"t", "1"}}, 0, 168), "clusters"), 5);
}

// 0.7 times the bytes of 90 pairs is just below those of 63 in float64.
TEST(ClusterGen, AShareThatIsWholeUpToRoundingIsWhole) {
  const KvHead head = make_head({.n = 200}, 22);
  const Index budget = 8 + 90 * head.pair_bytes();
  EXPECT_EQ(diag(run(head, positions(0, 200), {{"share", "0.7"}}, 0, budget), "samples"), 63);
}

TEST(ClusterGen, EqualKeysAreOneCluster) {
  KvHead head = make_head({.n = 40}, 2);
  repeat_first_row(head.k);
  const Compressed equal = run(head, positions(0, 40), {}, 0, 20 * head.pair_bytes());
  EXPECT_EQ(diag(equal, "clusters"), 1);
  EXPECT_NEAR(weight_sum(equal.denominator->held), 40.0, 40 * kFloat);
}

TEST(ClusterGenStream, EqualsCompressOfWhatHasLeft) {
  const KvHead head = make_head({.n = 120}, 6);
  const Given given = {{"delta", "3"}, {"t", "3"}, {"samples", "9"}};
  for (const auto& [sink, recent] : {std::pair<Index, Index>{0, 0},
                                     {0, 1},
                                     {0, 30},
                                     {0, 119},
                                     {0, 120},
                                     {0, 500},
                                     {7, 0},
                                     {16, 30},
                                     {119, 0},
                                     {130, 0},
                                     {60, 60}}) {
    StreamOf stream("clustergen", head, given, {sink, recent}, {}, 0);
    for (Index j = 0; j < 120; ++j) {
      stream.step();
      const Compressed c = stream.view();
      if (stream.left() > 0) {
        ASSERT_TRUE(same(c, run(head, positions(sink, sink + stream.left()), given)));
      } else {
        ASSERT_TRUE(c.held.tokens.empty() && c.denominator->held.tokens.empty());
      }
    }
  }
}

// A budget of all that is no sink holds just that, as it is.
TEST(ClusterGenStream, WithRoomForAllItKeepsAll) {
  const KvHead head = make_head({.n = 150, .nq = 150, .dtype = DType::float16}, 7);
  const Compressed c = StreamOf("clustergen", head, {}, {16, 10}, 124 * head.pair_bytes()).run();
  EXPECT_EQ(c.held.tokens, positions(16, 140));
  EXPECT_FALSE(c.denominator);
}

Compressed run_kcenter(const KvHead& head, const std::vector<Index>& tokens, const Given& given,
                       std::optional<Index> budget = {}) {
  // Centres alone unless a test says more.
  return JobOf("clustergen-kcenter", head, tokens, {})
      .run(budget, with({{"recent_share", "0"}}, given));
}

// The recent ones, and centres of the others by the reference, whose mean and sizes are meant.
void expect_equal(const KvHead& head, const std::vector<Index>& tokens, const char* share,
                  Index recent, Index kept) {
  const auto m = static_cast<Index>(tokens.size());
  const Index held = std::min(kept, m);
  const reference::Rows points =  // of the others
      reference::rows_at(head.k, {tokens.begin(), tokens.end() - recent});
  const reference::Vec mean =
      points.empty() ? reference::Vec() : reference::mean_of(points, positions(0, m - recent));
  Index far = 0;  // distances within the mean's rounding of each other are not compared
  for (Index i = 0; i < m - recent; ++i) {
    far = reference::distance(points[i], mean) > reference::distance(points[far], mean) + 1e-9L
              ? i
              : far;
  }
  for (const char* start : {"first", "farthest-from-mean"}) {
    const std::vector<Index> centers =
        reference::greedy_centers(points, held - recent, std::string(start) == "first" ? 0 : far);
    std::map<Index, float> expected;
    for (const Index place : centers) {
      expected[tokens[place]] = 0.0F;
    }
    if (!centers.empty()) {
      for (const Index number : reference::nearest_centers(points, centers)) {
        const Index place = centers[number];
        expected[tokens[place]] += 1.0F;
      }
    }
    for (Index i = m - recent; i < m; ++i) {
      expected[tokens[i]] = 1.0F;
    }
    std::vector<Index> positions_kept;
    std::vector<float> sizes;
    for (const auto& [token, size] : expected) {
      positions_kept.push_back(token);
      sizes.push_back(size);
    }
    for (const char* weights : {"one", "cluster"}) {
      const Compressed c = run_kcenter(head, tokens,
                                       {{"start", start},
                                        {"weights", weights},
                                        {"recent_share", share},
                                        {"tokens", std::to_string(kept)}});
      const bool cluster = std::string(weights) == "cluster";
      ASSERT_EQ(c.held.tokens, positions_kept) << start << " " << kept << " " << share;
      ASSERT_EQ(c.held.weights, cluster ? sizes : std::vector<float>{});
      ASSERT_EQ(c.held.common, 1.0F);
      ASSERT_EQ(c.aux_bytes, cluster ? 4 * held : 0);
      ASSERT_FALSE(c.denominator.has_value());
    }
  }
}

// Keys are whole numbers, with ties and equal keys; tokens are what another method left.
TEST(ClusterGenKCenter, EqualsReference) {
  std::mt19937_64 generator(1);
  for (const double offset : {0.0, 1e4}) {
    KvHead head = make_head({.n = 40}, 2);
    head.k = lattice(40, 8, 2, generator, offset);
    std::vector<Index> tokens;
    for (Index i = 3; i < 38; i += i % 3 == 0 ? 1 : 2) {
      tokens.push_back(i);
    }
    const auto m = static_cast<Index>(tokens.size());
    for (const Index kept : {Index{0}, Index{1}, Index{2}, Index{7}, m - 1, m, m + 9}) {
      expect_equal(head, tokens, "0", 0, kept);
    }
  }
}

TEST(ClusterGenKCenter, RecentTokensAndCentresOfTheOthersEqualReference) {
  for (unsigned seed = 1; seed <= 3; ++seed) {
    std::vector<Index> tokens = positions(4, 50);
    tokens.erase(tokens.begin() + 7);
    const auto m = static_cast<Index>(tokens.size());
    for (const auto& [share, kept, recent] : {std::tuple("0.5", Index{9}, Index{4}),
                                              {"0.5", Index{1}, Index{0}},
                                              {"0.29", Index{20}, Index{5}},
                                              {"0", Index{9}, Index{0}},
                                              {"1", Index{9}, Index{9}},
                                              {"0.5", m, m / 2},
                                              {"1", m, m}}) {
      expect_equal(make_head({.n = 60}, seed), tokens, share, recent, kept);
    }
  }
}

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
}  // namespace kvbench::test_clustergen
