// attention-matching and oracle-matching: kept tokens, weights and values against references from
// the definition, the optimum on the reference queries, exactness, and inputs with nothing to fit.
#include <numeric>

#include "algorithms/grid.hpp"
#include "algorithms/methods.hpp"
#include "layer_job.hpp"
#include "merge_checks.hpp"
#include "reference/bounded_fit.hpp"
#include "reference/matching.hpp"
#include "replay_run.hpp"

namespace kvbench::test_attention_matching {
namespace {

using reference::Real;

constexpr Real kLow = 1;
constexpr Real kHigh = 20.085536923187668L;
// Weights and values are stored in float32; a solution moves by its condition times that.
constexpr Real kSolved = 2e-4L;

HeadShape matching_shape() {
  const HeadShape shape{.n = 90, .nq = 90, .dv = 5};
  return shape;
}

class Matching : public ::testing::Test {
 protected:
  Matching() : job_(method_, make_head(matching_shape(), 5), gappy(6, 60), {0, 80}) {}

  reference::Reference reference(Index count) const {
    return reference::reference(job_.head(), job_.tokens(), 80 - count, 80);
  }
  // Places of the kept tokens among the task's.
  std::vector<Index> places(const std::vector<Index>& kept) const {
    std::vector<Index> out;
    for (const Index i : kept) {
      out.push_back(std::lower_bound(job_.tokens().begin(), job_.tokens().end(), i) -
                    job_.tokens().begin());
    }
    return out;
  }
  std::vector<Index> kept(const Given& given) const {
    return job_.run({}, with(given, {{"weights", "one"}, {"values", "kept"}})).held.tokens;
  }

  const Method method_ = method_attention_matching::make();
  JobOf job_;
};

reference::Vec wide(const std::vector<float>& w) {
  return {w.begin(), w.end()};
}

TEST_F(Matching, KeysAreTheLargestScoresOfTheReferenceQueries) {
  for (const Given& given : settings("ref_queries=1,7,30;keys=rms,mean,max;tokens=1,5,20")) {
    const std::string& rule = given.at("keys");
    reference::Vec scores(job_.tokens().size(), 0);
    for (const reference::Vec& p : reference(index_in(given, "ref_queries")).softmax) {
      for (std::size_t i = 0; i < scores.size(); ++i) {
        scores[i] = rule == "max" ? std::max(scores[i], p[i])
                                  : scores[i] + (rule == "rms" ? p[i] * p[i] : p[i]);
      }
    }
    EXPECT_EQ(kept(given), reference::best(job_.tokens(), scores, index_in(given, "tokens")))
        << rule;
  }
}

TEST_F(Matching, PursuitChoosesAsTheReference) {
  const reference::Reference r = reference(20);
  for (const Index size : {1, 4, 9}) {
    std::vector<Index> expected =
        reference::pursuit(r.exponential, r.mass, size, 1e-12L, 1096.6331584284585L);
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(
        places(kept({{"keys", "omp"}, {"tokens", std::to_string(size)}, {"ref_queries", "20"}})),
        expected);
  }
}

// The weights' sum of squares is the optimum's, and the reference's conditions hold for them.
TEST_F(Matching, WeightsAreAtTheOptimum) {
  for (const Given& given : settings("ref_queries=4,20,60;tokens=1,10,24;values=kept")) {
    const reference::Reference r = reference(index_in(given, "ref_queries"));  // 8, 40, 120 rows
    const Compressed c = job_.run({}, given);
    ASSERT_EQ(c.aux_bytes, 4 * index_in(given, "tokens"));
    const reference::Rows e = reference::columns(r.exponential, places(c.held.tokens));
    const reference::Vec best = reference::bounded_fit(e, r.mass, kLow, kHigh);
    const Real optimum = reference::misfit(e, r.mass, best);
    const Real square = reference::dot(r.mass, r.mass);
    const Real mine = reference::misfit(e, r.mass, wide(c.held.weights));
    // 1e-13: float32 weights are within 6e-8 of the optimum, whose misfit is flat there.
    EXPECT_TRUE(mine <= optimum * (1 + 1e-6L) + 1e-13L * square) << r.mass.size();
    EXPECT_NEAR(diag_number(c, "mass_error"), static_cast<double>(std::sqrt(optimum / square)),
                1e-6);
  }
}

TEST_F(Matching, ValuesSolveTheRidgeProblem) {
  for (const Given& given :
       settings("ref_queries=4,20,60;ridge=0.01,1,1e-7;tokens=1,10,24;weights=fitted,one")) {
    const reference::Reference r = reference(index_in(given, "ref_queries"));
    const Real ridge = std::stold(given.at("ridge"));
    const Compressed c = job_.run({}, given);
    const Compressed held = job_.run({}, with(given, {{"values", "kept"}}));
    const std::vector<Index> at = places(held.held.tokens);
    ASSERT_EQ(c.made.weights, held.held.weights);
    const reference::Vec w =
        given.at("weights") == "one" ? reference::Vec(at.size(), 1) : wide(c.made.weights);
    const reference::Rows x = reference::weighted_softmax(reference::columns(r.exponential, at), w);
    const reference::Rows v = reference::rows_at(job_.head().v, held.held.tokens);
    reference::Rows missing = reference::product(x, v);
    Real trace = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      trace += reference::dot(x[i], x[i]);
      for (std::size_t t = 0; t < missing[i].size(); ++t) {
        missing[i][t] = r.output[i][t] - missing[i][t];
      }
    }
    const reference::Rows moved =
        reference::ridge(x, missing, ridge * trace / static_cast<Real>(at.size()));
    for (std::size_t i = 0; i < at.size(); ++i) {
      ASSERT_TRUE(std::equal(c.made.k.row(static_cast<Index>(i)),
                             c.made.k.row(static_cast<Index>(i)) + 8,
                             job_.head().k.row(held.held.tokens[i])));
      for (std::size_t t = 0; t < v[i].size(); ++t) {
        const Real expected = v[i][t] + moved[i][t];
        ASSERT_TRUE(std::fabs(static_cast<Real>(c.made.v.row(static_cast<Index>(i))[t]) -
                              expected) <= kSolved * (1 + std::fabs(expected)))
            << "ridge " << static_cast<double>(ridge) << " R " << x.size() << " B " << at.size();
      }
    }
  }
}

// Without a ridge and with more tokens than reference queries many values fit: the nearest is
// taken. Its difference from the kept values lies in the span of X's rows, and nothing is left to
// fit.
TEST_F(Matching, WithoutRidgeTheNearestValuesThatFit) {
  const reference::Reference r = reference(3);  // 6 rows
  const Compressed c =
      job_.run({}, {{"tokens", "20"}, {"ref_queries", "3"}, {"ridge", "0"}, {"weights", "one"}});
  const std::vector<Index> tokens = kept({{"tokens", "20"}, {"ref_queries", "3"}});
  const reference::Rows x = reference::weighted_softmax(
      reference::columns(r.exponential, places(tokens)), reference::Vec(20, 1));
  const reference::Rows made = reference::rows_of(c.made.v);
  const reference::Rows kept_values = reference::rows_at(job_.head().v, tokens);
  reference::Rows moved = made;
  for (std::size_t i = 0; i < 20; ++i) {
    for (std::size_t t = 0; t < 5; ++t) {
      moved[i][t] -= kept_values[i][t];
    }
  }
  const reference::Rows seen = reference::product(x, made);
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t t = 0; t < 5; ++t) {
      EXPECT_NEAR(static_cast<double>(seen[i][t]), static_cast<double>(r.output[i][t]), 1e-5);
    }
  }
  // moved = X' a: the least squares solution of that has no residual.
  const reference::Rows x_t = reference::transposed(x);
  const reference::Rows back = reference::product(x_t, reference::ridge(x_t, moved, 0));
  for (std::size_t j = 0; j < 20; ++j) {
    for (std::size_t t = 0; t < 5; ++t) {
      EXPECT_NEAR(static_cast<double>(back[j][t]), static_cast<double>(moved[j][t]), 1e-4);
    }
  }
}

// With as many keys as tokens nothing is missing: weights 1 and the values as they are.
TEST_F(Matching, AllTokensAreExact) {
  for (const Given& given : settings("tokens=1000;keys=rms,omp,h2o;ridge=0,0.01")) {
    const Compressed c = job_.run({}, given);
    ASSERT_EQ(c.made.k.rows(), static_cast<Index>(job_.tokens().size()));
    for (Index i = 0; i < c.made.k.rows(); ++i) {
      const Index at = job_.tokens()[i];
      EXPECT_TRUE(std::equal(c.made.v.row(i), c.made.v.row(i) + 5, job_.head().v.row(at)));
      EXPECT_EQ(c.made.weights[i], 1.0F);
    }
  }
}

TEST_F(Matching, KeysOfOtherMethodsAreTheirs) {
  for (const std::string name : {"h2o", "snapkv", "local", "knorm", "balancekv", "uniform",
                                 "clustergen-kcenter", "bumblebee"}) {
    const Method& other = find_method(name);
    const Task task = job_.task();
    Task as_part = task;
    as_part.rng = task.rng.part(name);
    const Compressed own =
        other.compress(as_part, Params(name, other.info.params, {{"tokens", "13"}}));
    EXPECT_EQ(kept({{"keys", name}, {"tokens", "13"}}), own.held.tokens) << name;
  }
  // The other's parameters are taken under its name.
  EXPECT_NE(kept({{"keys", "h2o"}, {"tokens", "13"}, {"h2o.heavy_ratio", "1"}}),
            kept({{"keys", "h2o"}, {"tokens", "13"}, {"h2o.heavy_ratio", "0"}}));
}

TEST_F(Matching, HeadsShareAsTheNamedMethodDoes) {
  std::vector<KvHead> heads;
  for (unsigned h = 0; h < 3; ++h) {
    HeadShape shape = matching_shape();
    shape.key_norm = 1.0 + 4.0 * h;
    heads.push_back(make_head(shape, 40 + h));
  }
  const Index pair = heads.front().pair_bytes();
  const Method& adakv = find_method("adakv");
  const SharedJob alone(adakv, heads, 3, gappy(6, 60), {0, 80});
  const SharedJob matched(method_, heads, 3, gappy(6, 60), {0, 80});
  const Given plain = {
      {"heads", "adakv"}, {"weights", "one"}, {"values", "kept"}, {"adakv.floor", "0.1"}};
  const auto expected = alone.run(15 * pair, {{"floor", "0.1"}});
  const auto got = matched.run(15 * pair, plain);
  bool uneven = false;
  for (std::size_t h = 0; h < 3; ++h) {
    EXPECT_EQ(got[h].size(), expected[h].size());
    uneven = uneven || got[h].size() != got[0].size();
  }
  EXPECT_TRUE(uneven);
}

class MatchingRuns : public testing_replay::ReplayTest {};

TEST_F(MatchingRuns, RowsSayWhatWasSeenAndOracleIsLabelled) {
  ReplayOptions o = basic("out.csv");
  o.algorithms = {"attention-matching:ref_queries=4",
                  "oracle-matching",
                  "attention-matching:keys=oracle;ref_queries=4",
                  "oracle",
                  "h2o+attention-matching",
                  "attention-matching:heads=adakv,pyramidkv"};
  o.budgets = {0.5};
  o.sink = 2;
  o.queries = 6;
  EXPECT_EQ(run(o).failed, 0);
  std::map<std::string, double> error;
  for (const Fields& row : testing_replay::untimed(o.out)) {
    const auto cell = [&](std::string_view name) { return row[column_index(name)]; };
    EXPECT_EQ(cell("status"), "ok");
    error[cell("algorithm")] += std::stod(cell("rel_error"));
    if (cell("algorithm") == "oracle-matching") {
      EXPECT_EQ(cell("scoring_queries"), "6");
    } else if (cell("params").find("ref_queries=4") != std::string::npos) {
      EXPECT_EQ(cell("scoring_queries"), "4");
    }
  }
  EXPECT_LT(error["oracle-matching"], error["oracle"]);
}

TEST(MatchingSpecs, NamedMethodsBringTheirParameters) {
  const auto variants = expand_algorithms(
      {"attention-matching:keys=h2o;h2o.heavy_ratio=0.25,0.75", "attention-matching:keys=rms,mean",
       "h2o+attention-matching:attention-matching.keys=snapkv;attention-matching.snapkv.window=8"});
  ASSERT_EQ(variants.size(), 5U);
  EXPECT_NE(variants[0].params.canonical().find("h2o.heavy_ratio=0.25"), std::string::npos);
  EXPECT_EQ(variants[0].params.canonical().find("h2o.tokens"), std::string::npos);
  EXPECT_EQ(variants[4].params.text("attention-matching.snapkv.window"), "8");
  EXPECT_TRUE(expand_algorithms({"attention-matching:keys=oracle"}).front().sees_evaluated());
  EXPECT_TRUE(expand_algorithms({"attention-matching:keys=balancekv"}).front().random());
  EXPECT_FALSE(expand_algorithms({"attention-matching"}).front().random());
  EXPECT_EQ(expand_algorithms({"attention-matching:heads=pyramidkv"}).front().scope(),
            Scope::layers);
  const auto refused = [](const std::string& spec, const std::string& expected) {
    testing_replay::expect_refusal([&] { expand_algorithms({spec}); }, expected);
  };
  refused("attention-matching:keys=nothing", "parameter keys: got 'nothing'");
  refused("attention-matching:keys=adakv", "heads=adakv");
  refused("attention-matching:keys=kmeans", "cannot select a requested number of tokens");
  refused("attention-matching:keys=attention-matching",
          "cannot select a requested number of tokens");
  refused("attention-matching:heads=h2o", "shares no budget");
  // Scopes are those of the parameters, not of the defaults.
  EXPECT_EQ(expand_algorithms({"attention-matching:heads=defensivekv;defensivekv.scope=layers"})
                .front()
                .scope(),
            Scope::layers);
  EXPECT_EQ(
      expand_algorithms({"attention-matching:heads=dropkv;dropkv.scope=layer"}).front().scope(),
      Scope::layer);
  refused("attention-matching:heads=dropkv", "shares no budget");
  refused("attention-matching:keys=dropkv;dropkv.scope=layer", "expected heads=dropkv");
  refused("attention-matching:h2o.heavy_ratio=0.5", "no parameter 'h2o.heavy_ratio'");
  refused("attention-matching:keys=h2o;h2o.tokens=5", "no parameter 'h2o.tokens'");
  refused("attention-matching:w_min=3;w_max=2", "w_min <= w_max");
  refused("attention-matching:heads=adakv;tokens=5", "expected a budget");
  refused("h2o+attention-matching:attention-matching.heads=adakv", "shares its budget");
  refused("attention-matching:keys=snapkv;snapkv.kernel=4", "odd");
}

}  // namespace
}  // namespace kvbench::test_attention_matching
