// bumblebee with recent tokens in its set from the start: optimisers against the definition and
// each other, what is drawn, what is evaluated.
#include "algorithms/shared/scoring.hpp"
#include "bumblebee_run.hpp"

namespace kvbench::test_bumblebee_recent {
namespace {

using namespace testing_bumblebee;

// The most recent tokens are in A from the start, and the objective is over all tokens.
TEST(BumbleBeeRecent, RecentTokensThenTheDefinition) {
  for (const bool ties : {false, true}) {
    const KvHead head =
        ties ? tied_head(26, 13, /*flat=*/false) : make_head({.n = 26, .nq = 26}, 14);
    std::vector<Index> tokens = positions(2, 24);
    tokens.erase(tokens.begin() + 5);
    const auto m = static_cast<Index>(tokens.size());
    for (const auto& [name, sim] : kSims) {
      for (const char* lambda : {"0", "0.3", "1"}) {
        const reference::Mixture g = mixture(head, tokens, {0, 26}, sim, std::stold(lambda), false);
        for (const auto& [share, recent] :
             {std::pair("0", 0), {"0.1", 0}, {"0.12", 1}, {"0.5", 4}, {"0.9", 8}, {"1", 9}}) {
          const std::vector<Index> expected =
              at(tokens, sorted(reference::greedy(g, 9 - recent, positions(m - recent, m))));
          for (const char* optimizer : {"lazy", "greedy"}) {
            for (const char* mib : {"0", "256"}) {
              const Given given = {{"lambda", lambda},
                                   {"sim", name},
                                   {"recent_share", share},
                                   {"optimizer", optimizer},
                                   {"matrix_mib", mib}};
              ASSERT_EQ(run(head, tokens, given, 9).tokens, expected)
                  << ties << name << lambda << share << optimizer << mib;
            }
          }
        }
      }
    }
  }
}

TEST(BumbleBeeRecent, LazyEqualsGreedyWithManyTiesAndRecentTokens) {
  for (const bool flat : {false, true}) {
    const KvHead head = tied_head(160, 4, flat);
    const std::vector<Index> tokens = positions(5, 155);
    const Range scoring = flat ? Range{159, 160} : Range{0, 160};
    for (const char* lambda : {"0", "0.01", "0.3", "1"}) {
      for (const char* phi : {"log", "power"}) {
        for (const char* share : {"0.05", "0.5", "0.99"}) {
          Given given = {
              {"lambda", lambda}, {"phi", phi}, {"recent_share", share}, {"tokens", "70"}};
          const Outcome lazy = run_scored(head, tokens, scoring, given);
          given["optimizer"] = "greedy";
          const Outcome greedy = run_scored(head, tokens, scoring, given);
          ASSERT_EQ(greedy.tokens, lazy.tokens) << flat << lambda << phi << share;
          const auto recent = floor_share(std::stod(share), 70);
          ASSERT_TRUE(
              std::equal(greedy.tokens.end() - recent, greedy.tokens.end(), tokens.end() - recent));
          // No member's gain is computed twice in a round.
          Index all = 0;
          for (Index left = 150 - recent; left > 150 - 70; --left) {
            all += left;
          }
          EXPECT_EQ(greedy.evaluations, all);
          EXPECT_LE(lazy.evaluations, all);
        }
      }
    }
  }
}

TEST(BumbleBeeRecent, StochasticDrawsFromTheOthers) {
  const KvHead head = make_head({.n = 100, .nq = 50}, 15);
  const std::vector<Index> tokens = positions(0, 100);
  Given given = {{"optimizer", "stochastic"}, {"recent_share", "0.5"}, {"tokens", "40"}};
  const Outcome some = run_scored(head, tokens, {0, 100}, given);
  EXPECT_TRUE(std::equal(some.tokens.end() - 20, some.tokens.end(), tokens.end() - 20));
  EXPECT_EQ(some.evaluations, 20 * 47);  // ceil(80/20 * ln(1e5)) each, never more than are left
  given["epsilon"] = "1e-300";           // samples of everything that is left
  const Outcome all = run_scored(head, tokens, {0, 100}, given);
  EXPECT_EQ(all.tokens, run(head, tokens, {{"recent_share", "0.5"}}, 40).tokens);
  given["epsilon"] = "1";  // samples of one
  EXPECT_EQ(run_scored(head, tokens, {0, 100}, given).evaluations, 20);
}

TEST(BumbleBeeRecent, HalfOfTheTokensAreRecentByDefault) {
  const Method method = method_bumblebee();
  EXPECT_EQ(Params("bumblebee", method.info.params, {}).real("recent_share"), 0.5);
  const KvHead head = make_head({.n = 60, .nq = 60}, 16);
  // All recent: nothing is chosen. Of one token none is recent.
  EXPECT_EQ(run(head, positions(5, 55), {{"recent_share", "1"}}, 11).tokens, positions(44, 55));
  EXPECT_EQ(run(head, positions(5, 55), {{"recent_share", "0.5"}}, 1).tokens,
            run(head, positions(5, 55), {}, 1).tokens);
}

}  // namespace
}  // namespace kvbench::test_bumblebee_recent
