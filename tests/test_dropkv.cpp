// dropkv against outputs computed anew without each token, and by hand.
#include "layer_job.hpp"
#include "reference/window_scores.hpp"
#include "selection_checks.hpp"

namespace kvbench::test_dropkv {
namespace {

// Weights and outputs are float64 here.
constexpr reference::Real kRounding = 1e-10L;
constexpr reference::Real kEpsilon = 1e-6L;

TEST(DropKv, EqualsReference) {
  for (const double norm : {0.5, 3.0, 20.0}) {
    const KvHead head = make_head({.n = 70, .nq = 40, .dv = 3, .group = 3, .key_norm = norm}, 9);
    for (const std::vector<Index>& tokens : token_lists(4, 60)) {
      const JobOf job("dropkv", head, tokens, {35, 65});
      for (const auto& [window, kernel] : {std::pair{"32", "7"}, {"20", "1"}, {"1", "3"}}) {
        for (const auto& [word, reduce] : reference::kReduces) {
          expect_best_kept(job,
                           reference::dropkv(head, tokens, std::max(35, 65 - std::stoi(window)), 65,
                                             kEpsilon, std::stoll(kernel), reduce),
                           kRounding, {{"window", window}, {"kernel", kernel}, {"reduce", word}});
        }
      }
    }
  }
}

TEST(DropKv, ALayersTokensCompeteByScore) {
  std::vector<KvHead> heads;
  reference::Rows scores;
  const std::vector<Index> tokens = positions(4, 50);
  for (unsigned h = 0; h < 3; ++h) {
    heads.push_back(make_head({.n = 60, .nq = 30, .dv = 4, .value_norm = 1.0 + h}, 20 + h));
    scores.push_back(reference::dropkv(heads.back(), tokens, 30, 55, kEpsilon, 7,
                                       reference::ReferenceReduce::mean));
  }
  const SharedJob job("dropkv", heads, 3, tokens, {30, 55});
  const Given given = {{"scope", "layer"}};
  for (const Index each : {1, 8, 20}) {
    // No two of these scores are within rounding of each other.
    EXPECT_EQ(job.run(each * heads[0].pair_bytes(), given),
              reference::best_of_heads(tokens, scores, 3 * each));
  }
}

// The output is the value of the token that has nearly all of the weight: it is missed most, and a
// token whose value is the output is not missed at all.
TEST(DropKv, WeightAndDistanceFromTheOutputDecide) {
  KvHead head = make_head({.n = 20, .d = 1, .dv = 1, .group = 1}, 1);
  std::fill_n(head.k.data(), 20, 0.0F);
  std::fill_n(head.q[0].data(), 20, 1.0F);
  std::fill_n(head.v.data(), 20, 0.0F);
  head.k.row(7)[0] = 200.0F;  // weight 1 in float64, and odds of 1e6
  head.v.row(7)[0] = 1.0F;
  const Given given = {{"kernel", "1"}, {"window", "1"}};
  EXPECT_EQ(JobOf("dropkv", head, positions(2, 15), {0, 18}).kept(1, given),
            (std::vector<Index>{2}));  // 7 is the output itself; the others have no weight: ties
  head.k.row(7)[0] = 1.0F;
  head.v.row(9)[0] = -3.0F;
  head.v.row(11)[0] = 2.0F;
  EXPECT_EQ(JobOf("dropkv", head, positions(2, 15), {0, 18}).kept(3, given),
            (std::vector<Index>{7, 9, 11}));
}
}  // namespace
}  // namespace kvbench::test_dropkv
