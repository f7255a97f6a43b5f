// bumblebee (prefill): its optimisers against each other and against greedy by the definition, with
// and without recent tokens, the ends of lambda, the bound of greedy, and zero normalisers.
#include "algorithms/shared/scoring.hpp"
#include "method_checks.hpp"
#include "reference/bumblebee.hpp"
#include "reference/selection.hpp"

namespace kvbench::test_bumblebee {
namespace {

// Similarities are rounded to 2^-30 in lib, not here.
constexpr long double kGrid = 1e-8L;

const std::map<std::string, Reduce> kReduces = {
    {"mean", Reduce::mean}, {"max", Reduce::max}, {"sum", Reduce::sum}};

struct Outcome {
  std::vector<Index> tokens;
  Index evaluations = 0;
};

// The bare objective, unless `given` has recent tokens.
Outcome run_scored(const KvHead& head, const std::vector<Index>& tokens, Range scoring,
                   const Given& given, std::uint64_t seed = 0) {
  const Compressed c =
      JobOf("bumblebee", head, tokens, scoring).run({}, with({{"recent_share", "0"}}, given), seed);
  EXPECT_TRUE(c.held.weights.empty());
  EXPECT_EQ(c.held.common, 1.0F);
  EXPECT_EQ(c.aux_bytes, 0);
  EXPECT_EQ(c.diag.size(), 1U);
  return {c.held.tokens, static_cast<Index>(diag_number(c, "gain_evaluations"))};
}

Outcome run(const KvHead& head, const std::vector<Index>& tokens, const Given& given, Index count) {
  return run_scored(head, tokens, {0, head.n()}, with(given, {{"tokens", std::to_string(count)}}));
}

// Few distinct keys, some of them zero; where `flat`, queries of zero that see all alike, so that
// scores tie too.
KvHead tied_head(Index n, unsigned seed, bool flat) {
  KvHead head = make_head({.n = n, .nq = n, .d = 4}, seed);
  head.k = odd_keys(n, 4, seed);
  for (Matrix& q : head.q) {
    q = flat ? Matrix(n, 4) : q;
  }
  return head;
}

KvHead usual_head(Index n, unsigned seed) {
  return make_head({.n = n, .nq = n}, seed);
}

// The reference's mixture over `tokens`, with attention from its own exact softmax.
reference::Mixture mixture(const KvHead& head, const std::vector<Index>& tokens, const Given& given,
                           bool grid = false) {
  reference::Mixture g = reference::mixture_of(reference::rows_at(head.k, tokens), given, grid);
  g.acc = reference::taken(reference::reduced(reference::attention_sums(head, 0, head.n()),
                                              reference::ReferenceReduce::mean),
                           tokens);
  return g;
}

std::vector<Index> at(const std::vector<Index>& tokens, std::vector<Index> places) {
  std::ranges::sort(places);
  for (Index& i : places) {
    i = tokens[i];
  }
  return places;
}

// The most recent tokens are in A from the start, and the objective is over all tokens.
TEST(BumbleBee, LazyAndGreedyEqualTheDefinition) {
  for (const bool ties : {false, true}) {
    const KvHead head = ties ? tied_head(26, 13, /*flat=*/false) : usual_head(26, 14);
    std::vector<Index> tokens = positions(2, 24);
    tokens.erase(tokens.begin() + 5);  // what another method may leave
    const auto m = static_cast<Index>(tokens.size());
    for (const Given& given : settings("lambda=0,0.3,1;sim=relu,one-plus,abs;phi=log,power")) {
      const reference::Mixture g = mixture(head, tokens, given, /*grid=*/true);
      for (const auto& [share, count, recent] : {std::tuple<const char*, Index, Index>{"0", 1, 0},
                                                 {"0", 12, 0},
                                                 {"0.1", 9, 0},
                                                 {"0.12", 9, 1},
                                                 {"0.5", 9, 4},
                                                 {"0.9", 9, 8},
                                                 {"1", 9, 9}}) {
        const std::vector<Index> expected =
            at(tokens, reference::greedy(g, count - recent, positions(m - recent, m)));
        for (Given way : settings("optimizer=lazy,greedy;matrix_mib=0,256")) {
          way["recent_share"] = share;
          ASSERT_EQ(run(head, tokens, with(given, way), count).tokens, expected)
              << ties << share << count << way["optimizer"];
        }
      }
    }
  }
}

TEST(BumbleBee, LazyEqualsGreedyWithManyTies) {
  for (const unsigned seed : {1U, 2U}) {
    for (const bool flat : {false, true}) {
      const KvHead head = tied_head(200, seed, flat);
      const std::vector<Index> tokens = positions(5, 195);
      // Flat: only the last query scores, and every token gets the same.
      const Range scoring = flat ? Range{199, 200} : Range{0, 200};
      for (const Given& given :
           settings("tokens=90;sim=relu,one-plus,abs;lambda=0,0.01,0.3,1;phi=log,power;"
                    "recent_share=0,0.5,0.99")) {
        const Outcome lazy = run_scored(head, tokens, scoring, given);
        const Given slow = with(given, {{"matrix_mib", "0"}});
        ASSERT_EQ(run_scored(head, tokens, scoring, slow).tokens, lazy.tokens);
        const Outcome greedy =
            run_scored(head, tokens, scoring, with(slow, {{"optimizer", "greedy"}}));
        ASSERT_EQ(greedy.tokens, lazy.tokens) << seed << flat;
        const Index recent = floor_share(std::stod(given.at("recent_share")), 90);
        ASSERT_TRUE(
            std::equal(greedy.tokens.end() - recent, greedy.tokens.end(), tokens.end() - recent));
        Index all = 0;
        for (Index left = 190 - recent; left > 100; --left) {
          all += left;
        }
        EXPECT_EQ(greedy.evaluations, all);
        EXPECT_LE(lazy.evaluations, all);  // no member's gain is computed twice in a round
      }
    }
  }
}

TEST(BumbleBee, LazyLooksAtFarFewerGains) {
  const KvHead head = make_head({.n = 600, .nq = 100, .d = 16}, 5);
  const std::vector<Index> tokens = positions(0, 600);
  const Outcome lazy = run(head, tokens, {}, 200);
  const Outcome greedy = run(head, tokens, {{"optimizer", "greedy"}}, 200);
  EXPECT_EQ(lazy.tokens, greedy.tokens);
  EXPECT_LT(10 * lazy.evaluations, greedy.evaluations);
}

TEST(BumbleBee, LambdaZeroIsHeavyHitters) {
  for (const bool ties : {false, true}) {
    const KvHead head = ties ? tied_head(80, 6, /*flat=*/true) : usual_head(80, 6);
    const std::vector<Index> tokens = positions(10, 70);
    const Range scoring = ties ? Range{79, 80} : Range{20, 60};
    for (const Given& given :
         settings("lambda=0;optimizer=lazy,greedy;tokens=1,17,60;reduce=mean,max,sum")) {
      const std::vector<double> sums =
          reduce_group(attention_sums(head, scoring), kReduces.at(given.at("reduce")));
      ASSERT_EQ(run_scored(head, tokens, scoring, given).tokens,
                reference::best(tokens, {sums.begin() + 10, sums.begin() + 70},
                                index_in(given, "tokens")));
    }
  }
}

TEST(BumbleBee, WithinTheGreedyBoundOfTheBestSet) {
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    const KvHead head = seed % 2 == 0 ? tied_head(10, seed, false) : usual_head(10, seed);
    for (const Given& given : settings("lambda=0.3,1")) {
      const reference::Mixture g = mixture(head, positions(0, 10), given);
      for (const Index count : {1, 2, 3, 5}) {
        const long double got = g.value(run(head, positions(0, 10), given, count).tokens);
        const long double best = reference::best_value(g, count);
        ASSERT_GE(got, (1 - std::exp(-1.0L)) * best - kGrid);
        ASSERT_LE(got, best + kGrid);
      }
    }
  }
}

// Samples are of the tokens that are not recent.
TEST(BumbleBee, StochasticIsCloseToGreedyAndAtTinyEpsilonEqual) {
  const KvHead head = make_head({.n = 120, .nq = 60}, 9);
  const std::vector<Index> tokens = positions(0, 120);
  const reference::Mixture g = mixture(head, tokens, {});
  for (const auto& [share, recent] : {std::pair<const char*, Index>{"0", 0}, {"0.5", 15}}) {
    const Given common = {{"tokens", "30"}, {"recent_share", share}};
    const Outcome greedy = run(head, tokens, common, 30);
    const Given given = with(common, {{"optimizer", "stochastic"}});
    bool seeds_differ = false;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Outcome some = run_scored(head, tokens, {0, 120}, given, seed);
      ASSERT_EQ(some.tokens.size(), 30U);
      EXPECT_TRUE(std::equal(some.tokens.end() - recent, some.tokens.end(), tokens.end() - recent));
      // ceil(120/30 * ln(1e5)) = 47 each, ceil(105/15 * ln(1e5)) = 81, never more than are left.
      EXPECT_EQ(some.evaluations, recent == 0 ? 30 * 47 : 15 * 81);
      EXPECT_GE(g.value(some.tokens), 0.98L * g.value(greedy.tokens)) << seed;
      seeds_differ = seeds_differ || some.tokens != greedy.tokens;
    }
    EXPECT_TRUE(seeds_differ);
    // Samples of everything that is left; samples of one.
    EXPECT_EQ(run(head, tokens, with(given, {{"epsilon", "1e-300"}}), 30).tokens, greedy.tokens);
    EXPECT_EQ(run(head, tokens, with(given, {{"epsilon", "1"}}), 30).evaluations, 30 - recent);
  }
}

// epsilon = 1 draws samples of one: uniform sampling without replacement. Chi-square of inclusions
// over 40 tokens, 400 seeds, 39 degrees of freedom: 72.1 at level 0.001.
TEST(BumbleBee, SamplesAreUniform) {
  const KvHead head = make_head({.n = 40, .nq = 4}, 10);
  const Given given = settings("optimizer=stochastic;epsilon=1;tokens=10;lambda=1").front();
  std::vector<double> included(40, 0.0);
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    for (const Index i : run_scored(head, positions(0, 40), {0, 0}, given, seed).tokens) {
      included[i] += 1.0;
    }
  }
  double chi = 0.0;  // mean 100, variance 400 * 1/4 * 3/4 = 75, times 39/40
  for (const double c : included) {
    chi += (c - 100.0) * (c - 100.0) / 75.0;
  }
  EXPECT_LT(chi * 39.0 / 40.0, 72.1);
}

TEST(BumbleBee, ZeroNormalisersAndEqualTokens) {
  const KvHead head = usual_head(40, 11);
  const std::vector<Index> tokens = positions(5, 35);
  const std::vector<Index> first = positions(5, 13);
  KvHead zero = head;
  zero.k = Matrix(40, 8);
  KvHead same = head;
  repeat_first_row(same.k);
  for (const Given& given : settings("sim=relu,one-plus,abs;optimizer=lazy,greedy;tokens=8")) {
    // No query scores: c(M) = 0, and only the keys decide.
    EXPECT_EQ(run_scored(head, tokens, {0, 0}, given).tokens,
              run_scored(head, tokens, {0, 0}, with(given, {{"lambda", "1"}})).tokens);
    // All keys zero: f(M) = 0. Every query then spreads evenly over its past: older get more.
    EXPECT_EQ(run_scored(zero, tokens, {0, 40}, given).tokens, first);
    // Neither: every gain is 0, the lowest positions.
    EXPECT_EQ(run_scored(zero, tokens, {0, 0}, given).tokens, first);
    // Equal keys and no attention: one token covers all, the rest are ties at 0.
    EXPECT_EQ(run_scored(same, tokens, {0, 0}, given).tokens, first);
  }
}

}  // namespace
}  // namespace kvbench::test_bumblebee
