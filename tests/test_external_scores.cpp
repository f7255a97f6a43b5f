// external-scores: a selection by what the trace says, and nothing else.
#include "refusal.hpp"
#include "selection_checks.hpp"

namespace kvbench::test_external_scores {
namespace {

NamedScores random_scores(const std::string& name, Index n, unsigned seed, int values) {
  std::mt19937_64 generator(seed);
  NamedScores out{name, {}};
  for (Index i = 0; i < n; ++i) {
    out.values.push_back(static_cast<float>(generator() % static_cast<unsigned>(values)) / 8.0F -
                         3.0F);
  }
  return out;
}

TEST(ExternalScores, EqualsReference) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    for (const std::vector<Index>& tokens : token_lists(8, 110)) {
      JobOf job("external-scores", make_head({.n = 120}, seed), tokens, {});
      job.named_scores = {random_scores("a", 120, seed, 1000), random_scores("b", 120, seed, 5)};
      for (const char* name : {"a", "b"}) {
        const NamedScores& own = *find_named(job.named_scores, name);
        reference::Vec scores;
        for (const Index i : tokens) {
          scores.push_back(own.values[static_cast<std::size_t>(i)]);
        }
        expect_best_kept(job, scores, 0, {{"name", name}});
        for (const char* threshold : {"-4", "-2.875", "0", "200"}) {
          std::vector<Index> above;
          for (std::size_t i = 0; i < tokens.size(); ++i) {
            if (scores[i] > std::stold(threshold)) {
              above.push_back(tokens[i]);
            }
          }
          ASSERT_EQ(job.run({}, {{"name", name}, {"threshold", threshold}}).held.tokens, above);
        }
      }
    }
  }
}

// 0.1 as float32 lies above 0.1: what is equal as stored is not above.
TEST(ExternalScores, AThresholdIsComparedAsScoresAreStored) {
  JobOf job("external-scores", make_head({.n = 10}, 1), positions(2, 8), {});
  job.named_scores = {{"s", std::vector<float>(10, 0.1F)}};
  EXPECT_TRUE(job.run({}, {{"name", "s"}, {"threshold", "0.1"}}).held.tokens.empty());
  job.named_scores[0].values[5] = std::nextafter(0.1F, 1.0F);
  EXPECT_EQ(job.run({}, {{"name", "s"}, {"threshold", "0.1"}}).held.tokens,
            (std::vector<Index>{5}));
}

TEST(ExternalScores, TheNameIsResolvedOrRefused) {
  const MethodInfo& info = find_method("external-scores").info;
  const auto resolve = [&](const Given& given, const LayerFacts& layer) {
    return info.resolve(params_for(find_method(info.name), given), layer);
  };
  const auto refuses = [&](const Given& given, const LayerFacts& layer, const std::string& part) {
    testing_replay::expect_refusal([&] { resolve(given, layer); }, part);
  };
  LayerFacts layer{.n = 50, .evaluated = 8};
  refuses({}, layer, "the layer has no scores");
  refuses({{"name", "gate"}}, layer, "no scores 'gate', has: none");
  std::vector<ScoresInfo> scores{{"gate", 42}};
  layer.scores = scores;
  EXPECT_EQ(resolve({}, layer).at("name"), "gate");
  EXPECT_EQ(resolve({{"name", "gate"}}, layer).at("name"), "gate");
  refuses({{"name", "gates"}}, layer, "no scores 'gates', has: gate");
  scores[0].prefix = 43;
  refuses({}, layer, "had read 43 tokens (attribute prefix), expected at most n - queries = 42");
  scores[0].prefix.reset();
  refuses({}, layer, "has no attribute prefix");
  scores = {{"gate", 42}, {"other", 42}};
  layer.scores = scores;
  refuses({}, layer, "several scores, expected name= one of gate, other");
  testing_replay::expect_refusal(
      [&] {
        params_for(find_method(info.name), {{"name", "a/b"}});
      },
      "letters, digits");
}

}  // namespace
}  // namespace kvbench::test_external_scores
