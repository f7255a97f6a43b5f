// Fisher layer budgets: sums, proportions and caps.
#include <numeric>

#include "algorithms/shared/fisher_budget.hpp"
#include "method_checks.hpp"

namespace kvbench::test_fisher_budget {
namespace {

using Indices = std::vector<Index>;

Indices split(const std::vector<double>& fisher, const Indices& caps, Index total) {
  return fisher_split(fisher, caps, total);
}

TEST(FisherSplit, ByHand) {
  EXPECT_EQ(split({1, 2, 1}, {100, 100, 100}, 40), (Indices{10, 20, 10}));
  EXPECT_EQ(split({1, 1, 1}, {100, 100, 100}, 40), (Indices{14, 13, 13}));  // tie: lower layer
  EXPECT_EQ(split({3, 1}, {100, 100}, 6), (Indices{5, 1}));                 // 4.5, 1.5: a tie
  EXPECT_EQ(split({8, 1, 1}, {20, 100, 100}, 60), (Indices{20, 20, 20}));   // 48 capped at 20
  EXPECT_EQ(split({0, 0}, {100, 100}, 9), (Indices{5, 4}));
  EXPECT_EQ(split({5, 0}, {3, 100}, 10), (Indices{3, 7}));  // only layers without information left
  EXPECT_EQ(split({1e300, 1e300}, {10, 10}, 10), (Indices{5, 5}));
  EXPECT_EQ(split({1, 2}, {4, 5}, 1000), (Indices{4, 5}));
  EXPECT_EQ(split({1, 2}, {0, 5}, 3), (Indices{0, 3}));
  EXPECT_EQ(split({1, 2}, {4, 5}, 0), (Indices{0, 0}));
  EXPECT_EQ(split({}, {}, 10), (Indices{}));
}

TEST(FisherSplit, SumsCapsAndProportions) {
  std::mt19937_64 generator(1);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t layers = 1 + generator() % 9;
    std::vector<double> fisher;
    Indices caps;
    for (std::size_t l = 0; l < layers; ++l) {
      fisher.push_back(generator() % 5 == 0 ? 0.0 : std::exp(static_cast<double>(generator() % 9)));
      caps.push_back(static_cast<Index>(generator() % 1000));
    }
    const auto total = static_cast<Index>(generator() % 4000);
    const Indices got = split(fisher, caps, total);
    const Index room = std::accumulate(caps.begin(), caps.end(), Index{0});
    ASSERT_EQ(std::accumulate(got.begin(), got.end(), Index{0}), std::min(total, room));
    // Layers below their cap share one ratio of budget to information, to within the rounding of
    // one each; a capped one would have got at least that.
    for (std::size_t a = 0; a < layers; ++a) {
      ASSERT_GE(got[a], 0);
      ASSERT_LE(got[a], caps[a]);
      for (std::size_t b = 0; b < layers; ++b) {
        if (fisher[a] > 0 && fisher[b] > 0 && got[a] < caps[a]) {
          const double fair = static_cast<double>(got[a] + 1) * fisher[b] / fisher[a];
          ASSERT_LE(static_cast<double>(got[b]) - 1.0, fair * (1 + 1e-12));
        }
      }
    }
  }
}

// The method's own use: layers by Fisher information, then evenly over a layer's KV heads.
TEST(FisherBudget, KvReviverSharesLayersThenHeads) {
  std::vector<Survey> surveys;
  for (const Index layer : {0, 3}) {
    for (const Index head : {0, 1}) {
      Survey s{.tokens = 25,
               .data = {layer == 0 ? 3.0 : 1.0},
               .layer = layer,
               .kv_head = head,
               .middle = 100};
      surveys.push_back(s);
    }
  }
  surveys[3].tokens = 26;  // 101 tokens in all: 76 (75.75) and 25
  EXPECT_EQ(shared_tokens("kvreviver", surveys, {{"layer_budget", "fisher"}}),
            (Indices{38, 38, 13, 12}));
}

}  // namespace
}  // namespace kvbench::test_fisher_budget
