// vattention against its definition, draw by draw, and the laws of what it estimates.
#include "algorithms/shared/adaptive_sample.hpp"
#include "reference/vattention.hpp"
#include "retrieval_run.hpp"

namespace kvbench::test_vattention {
namespace {

constexpr Index kQueries = 20;

TEST(UpperQuantile, EqualsTables) {
  // Abramowitz and Stegun, table 26.5, and scipy.stats.norm.isf.
  EXPECT_NEAR(upper_quantile(0.5), 0.0, 1e-12);
  EXPECT_NEAR(upper_quantile(0.1), 1.2815515655446004, 1e-12);
  EXPECT_NEAR(upper_quantile(0.05), 1.6448536269514722, 1e-12);
  EXPECT_NEAR(upper_quantile(1e-9), 5.9978070150076865, 1e-12);
}

// Tokens drawn from `tokens` that are not exact.
std::vector<Index> drawn(RngStream& from, const std::vector<Index>& tokens,
                         const std::vector<bool>& exact, Index count) {
  std::vector<Index> out;
  while (static_cast<Index>(out.size()) < count) {
    const Index token = tokens[from.next_below(tokens.size())];
    if (!exact[token]) {
      out.push_back(token);
    }
  }
  return out;
}

// The definition of a query's reads; `base`: draws of the base sample.
reference::Sampled expected_of(const ReadsOf& job, Index g, Index j, Index heavy, Index base,
                               double epsilon, reference::Real z) {
  const Index position = job.head().n() - job.queries() + j;
  reference::Vec logits;
  for (Index i = 0; i <= position; ++i) {
    logits.push_back(slow_logit(job.head(), job.head().k.row(i), job.query(g, j)));
  }
  std::vector<bool> exact(logits.size(), true);
  for (const Index i : job.tokens()) {
    exact[i] = false;
  }
  for (const std::uint32_t i : best_tokens(job.logits(g, j), heavy, job.tokens())) {
    exact[i] = true;
  }
  RngStream draws = job.task({}).rng.stream("draws " + std::to_string(g) + " " + std::to_string(j));
  const std::vector<Index> first = drawn(draws, job.tokens(), exact, base);
  const auto n = static_cast<Index>(job.tokens().size()) - heavy;
  return reference::vattention(logits, exact, sink_logit(job.head(), g), first,
                               drawn(draws, job.tokens(), exact, n), epsilon, z);
}

TEST(VAttention, EqualsReference) {
  int between = 0;
  for (const bool sinks : {false, true}) {
    KvHead head = make_rounded_head(retrieval_shape(), 31);
    head.sink_logit = sinks ? std::vector<float>{1.0F, -2.0F, 7.0F} : std::vector<float>();
    for (const std::vector<Index>& tokens : {positions(8, 120), gappy(8, 120), positions(8, 9)}) {
      const ReadsOf job("vattention", head, tokens, kQueries);
      const auto m = static_cast<Index>(tokens.size());
      for (const Given& given :
           settings("epsilon=0.1,0.4,1;heavy=0,0.1,1;delta=0.1,0.05;base=0.1")) {
        const double epsilon = std::stod(given.at("epsilon"));
        const double heavy = std::stod(given.at("heavy"));
        const auto z = given.at("delta") == "0.1" ? 1.2815515655446004L : 1.6448536269514722L;
        const Reads reads = job.run({}, given);
        const auto tops = static_cast<Index>(heavy * static_cast<double>(m) + 1e-9);
        const Index n = m - tops;
        const Index base = n > 0 ? std::max<Index>(2, n / 10) : 0;
        ASSERT_EQ(reads.index_read, base * 16 * 2);  // keys of 16 float16
        ASSERT_EQ(reads.index_bytes, 0);
        for (const auto& [g, j] : job.each_query()) {
          const reference::Sampled slow = expected_of(job, g, j, tops, base, epsilon, z);
          between += slow.draws > base && slow.draws < n ? 1 : 0;
          const Tokens list = list_of(reads, g, j);
          const std::vector<float>& weights = reads.lists.weights[reads.lists.place(g, j)];
          std::size_t at = 0;
          for (const Index i : tokens) {
            if (slow.weights[i] > 0) {
              ASSERT_LT(at, list.size());
              ASSERT_EQ(list[at], static_cast<std::uint32_t>(i)) << epsilon << " " << heavy;
              ASSERT_FLOAT_EQ(weights[at], static_cast<float>(slow.weights[i]));
              ++at;
            }
          }
          ASSERT_EQ(at, list.size());
          ASSERT_EQ(reads.asked[g * kQueries + j], static_cast<Index>(at));
        }
      }
    }
  }
  EXPECT_GT(between, 500);  // neither bound decides
}

// Inverse rates make the sums unbiased although b depends on the query: over many seeds the mean
// weight of every token is 1, whether b is drawn (epsilon) or a bound.
TEST(VAttention, WeightsAreUnbiased) {
  HeadShape shape = retrieval_shape();
  shape.group = 1;
  const ReadsOf job("vattention", make_rounded_head(shape, 15), positions(8, 40), 1);
  for (const Given& given : settings("epsilon=0.3,1;heavy=0,0.1")) {
    const auto weights = mean_weights(job, given, 4000);
    for (Index i = 8; i < 40; ++i) {
      // Five standard errors and a float32 weight's rounding, over 128 means: fails once in
      // 10,000 sets of seeds, and these are fixed.
      EXPECT_NEAR(weights.at(i).mean, 1.0, 5.0 * weights.at(i).error + 1e-6) << i;
    }
  }
}

// With base=1 b is n for every query, and the estimated sum of n draws has mean S = sum e and
// variance V = sum (e - S/n)^2. Over K seeds its mean has a standard error of sqrt(V/K), and its
// sample variance one of V sqrt((k - 1)/K), k the kurtosis of n draws: 3 + (that of one - 3)/n.
TEST(VAttention, DenominatorsHaveTheSamplesMeanAndVariance) {
  HeadShape shape = retrieval_shape();
  shape.group = 1;
  const ReadsOf job("vattention", make_rounded_head(shape, 17), positions(8, 40), 1);
  const Logits logits = job.logits(0, 0);
  const auto n = static_cast<double>(logits.size());
  double sum = 0.0;
  for (const double x : logits) {
    sum += std::exp(x);
  }
  double square = 0.0;
  double fourth = 0.0;
  for (const double x : logits) {
    square += std::pow(std::exp(x) - sum / n, 2.0);
    fourth += std::pow(std::exp(x) - sum / n, 4.0);
  }
  const double variance = square;
  const double kurtosis = 3.0 + (fourth / n / std::pow(square / n, 2.0) - 3.0) / n;
  constexpr double kSeeds = 4000;
  double mean = 0.0;
  double spread = 0.0;
  for (int seed = 0; seed < static_cast<int>(kSeeds); ++seed) {
    const Reads reads =
        job.run({}, {{"epsilon", "1"}, {"base", "1"}}, static_cast<std::uint64_t>(seed));
    double estimate = 0.0;
    for (std::size_t i = 0; i < reads.lists.tokens[0].size(); ++i) {
      estimate += static_cast<double>(reads.lists.weights[0][i]) *
                  std::exp(logits[reads.lists.tokens[0][i] - 8]);
    }
    mean += estimate / kSeeds;
    spread += (estimate - sum) * (estimate - sum) / kSeeds;
  }
  EXPECT_NEAR(mean / sum, 1.0, 5.0 * std::sqrt(variance / kSeeds) / sum);
  EXPECT_NEAR(spread / variance, 1.0, 5.0 * std::sqrt((kurtosis - 1.0) / kSeeds));
}

TEST(VAttention, ABudgetTakesTheSmallestEpsilonThatFits) {
  const ReadsOf job("vattention", make_rounded_head(retrieval_shape(), 14), positions(8, 120),
                    kQueries);
  for (const char* heavy : {"0", "0.05"}) {
    for (const double share : {0.1, 0.25, 0.5}) {
      const Index budget = job.bytes_of(share);
      const Reads reads = job.run(budget, {{"heavy", heavy}});
      std::string epsilons = reads.diag.front().second + "/";
      for (Index g = 0; g < 3; ++g) {
        const double epsilon = std::stod(epsilons);
        epsilons.erase(0, epsilons.find('/') + 1);
        EXPECT_LE(job.mean_bytes(reads, g), static_cast<double>(budget));
        // A little less reads more than fits; a little more reads no more. Six digits are printed.
        const auto bytes = [&](double factor) {
          return job.mean_bytes(
              job.run({}, {{"heavy", heavy}, {"epsilon", std::to_string(epsilon * factor)}}), g);
        };
        if (epsilon < 0.99) {
          EXPECT_GT(bytes(0.999), static_cast<double>(budget));
          EXPECT_LE(bytes(1.001), static_cast<double>(budget));
        }
      }
    }
  }
  EXPECT_THROW(job.run(10), Infeasible);
  EXPECT_THROW(job.run({}), InputError);
  EXPECT_EQ(job.run(2 * job.full_bytes()).diag.front().second, "1e-06/1e-06/1e-06");
}

// Where all logits are equal, two draws tell as much as all.
TEST(VAttention, EqualLogitsNeedTheBaseOnly) {
  KvHead head = make_rounded_head(retrieval_shape(), 4);
  std::fill_n(head.k.data(), head.n() * head.d(), 0.0F);
  const ReadsOf job("vattention", head, positions(5, 100), kQueries);
  const Reads reads = job.run({}, {{"epsilon", "1e-6"}});
  for (Index j = 0; j < kQueries; ++j) {
    float sum = 0.0F;
    for (const float w : reads.lists.weights[j]) {
      sum += w;
    }
    EXPECT_LE(list_of(reads, 0, j).size(), 2U);
    EXPECT_FLOAT_EQ(sum, 95.0F);
  }
}

}  // namespace
}  // namespace kvbench::test_vattention
