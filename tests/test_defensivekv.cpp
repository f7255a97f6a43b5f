// defensivekv against its definition: scores, the first stage, budgets of a layer and of layers.
#include "layer_job.hpp"
#include "reference/window_scores.hpp"

namespace kvbench::test_defensivekv {
namespace {

// What the heads keep by the definition, `kv_heads` to a layer.
std::vector<std::vector<Index>> reference_kept(const std::vector<KvHead>& heads,
                                               std::size_t kv_heads, const Matrix& w,
                                               const std::vector<Index>& tokens, Range window,
                                               Index kernel, reference::Real first_mass,
                                               Index each) {
  reference::Rows scores, norms;
  for (const KvHead& head : heads) {
    norms.push_back(reference::output_norms(head, tokens, w));
  }
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const reference::Defended d =
        reference::defended(heads[h], tokens, window.begin, window.end, kernel);
    reference::Vec score;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      reference::Real sum = 0;
      for (std::size_t other = 0; other < heads.size(); ++other) {
        sum += other / kv_heads == h / kv_heads ? norms[other][i] : 0;
      }
      score.push_back(d.s[i] * norms[h][i] / sum);
    }
    const Index first = std::min(each, reference::first_count(d.mean, first_mass));
    for (const Index i : reference::top(d.mean, first)) {
      score[static_cast<std::size_t>(i)] = 2;  // above all shares
    }
    scores.push_back(score);
  }
  return reference::best_of_heads(tokens, scores, each * static_cast<Index>(heads.size()));
}

std::vector<KvHead> make_heads(unsigned seed) {
  std::vector<KvHead> heads;
  for (unsigned h = 0; h < 4; ++h) {
    heads.push_back(make_head({.n = 90, .nq = 60, .dv = 5, .group = 3}, seed + h));
    heads.back().scale *= 0.3 + h;  // heads differ in how sharp they are
  }
  return heads;
}

TEST(DefensiveKv, EqualsReference) {
  int uneven = 0;
  int by_score = 0;
  for (unsigned seed = 0; seed < 2; ++seed) {
    const std::vector<KvHead> heads = make_heads(10 * seed);
    const std::vector<Index> tokens = positions(8, 70);
    for (const auto& [window, kernel, first_mass] :
         {std::tuple{32, 5, 0.9}, {7, 1, 0.5}, {40, 9, 0.0}}) {
      const Given given = {{"window", std::to_string(window)},
                           {"kernel", std::to_string(kernel)},
                           {"first_mass", std::to_string(first_mass)}};
      const Range queries = {std::max(35, 75 - window), 75};
      for (const Index each : {1, 9, 20, 41}) {
        // No two of these scores are within rounding of each other.
        const SharedJob all("defensivekv", heads, 2, tokens, {35, 75}, true);
        const auto got = all.run(each * heads[0].pair_bytes(), with(given, {{"scope", "layers"}}));
        EXPECT_EQ(got, reference_kept(heads, 2, *all.job(0).o_proj, tokens, queries, kernel,
                                      first_mass, each));
        const std::vector<KvHead> two(heads.begin(), heads.begin() + 2);
        const SharedJob layer("defensivekv", two, 2, tokens, {35, 75}, true);
        const auto kept = layer.run(each * heads[0].pair_bytes(), given);
        EXPECT_EQ(kept, reference_kept(two, 2, *all.job(0).o_proj, tokens, queries, kernel,
                                       first_mass, each));
        uneven += kept[0].size() != kept[1].size() ? 1 : 0;
        by_score +=
            kept == reference_kept(two, 2, *all.job(0).o_proj, tokens, queries, kernel, 0, each)
                ? 1
                : 0;
      }
    }
  }
  EXPECT_GT(uneven, 8);
  EXPECT_LT(by_score, 20);  // the first stage does decide
}

// A head alone is its layer, so values are a share of themselves.
TEST(DefensiveKv, AHeadAloneRanksWithoutItsValues) {
  KvHead head = make_head({.n = 90, .nq = 60}, 3);
  const Given given = {{"first_mass", "0"}};
  for (const std::vector<Index>& tokens : {positions(8, 70), gappy(8, 70)}) {
    const std::vector<Index> before =
        JobOf("defensivekv", head, tokens, {35, 75}, true).kept(12, given);
    EXPECT_EQ(before, reference::best(tokens, reference::defended(head, tokens, 43, 75, 5).s, 12));
    for (Index i = 0; i < 90; ++i) {
      head.v.row(i)[0] += static_cast<float>(i % 7);
    }
    EXPECT_EQ(JobOf("defensivekv", head, tokens, {35, 75}, true).kept(12, given), before);
  }
}

TEST(DefensiveKv, OneQueryOfOneHeadIsEnough) {
  KvHead head = make_head({.n = 40, .d = 2, .group = 2}, 4);
  std::fill_n(head.k.data(), 80, 0.0F);
  for (Matrix& q : head.q) {
    std::fill_n(q.data(), 80, 0.0F);
  }
  head.k.row(6)[0] = 10.0F;
  head.q[1].row(30)[0] = 1.0F;
  const JobOf job("defensivekv", head, positions(0, 25), {20, 35}, true);
  EXPECT_EQ(job.kept(1, {{"kernel", "1"}, {"first_mass", "0"}}), (std::vector<Index>{6}));
  // Of the others the mean of s is more than what any has: they tie.
  EXPECT_EQ(job.kept(3, {{"kernel", "1"}, {"first_mass", "0"}}), (std::vector<Index>{0, 1, 6}));
}

TEST(DefensiveKv, AllByMeanAttentionIsSnapKvWithoutPooling) {
  const KvHead head = make_head({.n = 90, .nq = 60}, 5);
  const JobOf job("defensivekv", head, positions(8, 70), {35, 75}, true);
  EXPECT_EQ(job.kept(15, {{"first_mass", "1"}}),
            JobOf("snapkv", head, positions(8, 70), {35, 75}).kept(15, {{"kernel", "1"}}));
}

}  // namespace
}  // namespace kvbench::test_defensivekv
