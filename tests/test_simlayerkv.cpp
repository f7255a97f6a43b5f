// simlayerkv: which layers keep everything, by budget and by threshold, against the reference.
#include <fmt/format.h>

#include <set>

#include "layer_job.hpp"
#include "reference/simlayerkv.hpp"

namespace kvbench::test_simlayerkv {
namespace {

constexpr std::size_t kLayers = 5;
constexpr std::size_t kHeads = 2;

std::vector<KvHead> layers() {
  std::vector<KvHead> heads;
  for (unsigned h = 0; h < kLayers * kHeads; ++h) {
    HeadShape shape;
    const std::size_t layer = h / kHeads;
    shape.key_norm = 1.0 + static_cast<double>(layer);
    heads.push_back(make_head(shape, 40 + h));
  }
  return heads;
}

reference::Vec laziness(const std::vector<KvHead>& heads, const std::vector<Index>& tokens,
                        Index last) {
  reference::Vec out;
  for (std::size_t l = 0; l < kLayers; ++l) {
    out.push_back(reference::laziness({heads.begin() + static_cast<Index>(l * kHeads),
                                       heads.begin() + static_cast<Index>((l + 1) * kHeads)},
                                      tokens, 60 - last, 60));
  }
  return out;
}

// By layer; all heads of one must agree.
std::vector<bool> full(const std::vector<std::vector<Index>>& kept,
                       const std::vector<Index>& tokens) {
  const std::vector<bool> heads = kept_whole(kept, tokens);
  std::vector<bool> out;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    if (i % kHeads == 0) {
      out.push_back(heads[i]);
    }
    EXPECT_EQ(out.back(), heads[i]);
  }
  return out;
}

TEST(SimLayerKv, TheLaziestAreReducedUntilTheOthersFit) {
  const std::vector<KvHead> heads = layers();
  for (const std::vector<Index>& tokens : {positions(5, 45), gappy(5, 45)}) {
    const SharedJob job("simlayerkv", heads, kHeads, tokens, {10, 60});
    const auto m = static_cast<Index>(tokens.size());
    for (const Index last : {1, 7, 50}) {
      const reference::Vec lazy = laziness(heads, tokens, last);
      for (Index each = 0; each <= m; ++each) {
        const auto got = job.run(each * heads[0].pair_bytes(), {{"n_last", std::to_string(last)}});
        const Index fit = static_cast<Index>(kLayers) * each / m;
        ASSERT_EQ(full(got, tokens), reference::least_lazy(lazy, fit));
        ASSERT_EQ(job.degenerate,
                  std::vector<std::string>(kLayers * kHeads, fit == 0 ? "no layer fits" : ""));
      }
    }
  }
}

TEST(SimLayerKv, AThresholdReducesTheLazier) {
  const std::vector<KvHead> heads = layers();
  const std::vector<Index> tokens = positions(5, 45);
  const SharedJob job("simlayerkv", heads, kHeads, tokens, {10, 60});
  const reference::Vec lazy = laziness(heads, tokens, 1);
  std::set<std::vector<bool>> seen;
  std::vector<double> thresholds = {0.0, 1.0};
  for (const reference::Real x : lazy) {  // a millionth is far above rounding
    thresholds.push_back(static_cast<double>(x) - 1e-6);
    thresholds.push_back(static_cast<double>(x) + 1e-6);
  }
  for (const double threshold : thresholds) {
    std::vector<bool> expected;
    for (const reference::Real x : lazy) {
      expected.push_back(x <= static_cast<reference::Real>(threshold));
    }
    const auto got =
        job.run(40 * heads[0].pair_bytes(), {{"threshold", fmt::format("{}", threshold)}});
    ASSERT_EQ(full(got, tokens), expected) << threshold;
    // All reduced is what the rule says, and no failure of the method.
    ASSERT_EQ(job.degenerate, std::vector<std::string>(kLayers * kHeads));
    seen.insert(expected);
  }
  EXPECT_EQ(seen.size(), kLayers + 1);  // from none to all
}

TEST(SimLayerKv, OfEqualLayersTheLowestStay) {
  const std::vector<KvHead> heads(kLayers * kHeads, make_head({}, 1));
  const SharedJob job("simlayerkv", heads, kHeads, positions(5, 45), {10, 60});
  EXPECT_EQ(full(job.run(17 * heads[0].pair_bytes()), positions(5, 45)),
            (std::vector<bool>{true, true, false, false, false}));
}

TEST(SimLayerKv, LayersOfDifferentSizes) {
  const Method& method = find_method("simlayerkv");
  std::vector<Survey> surveys(3);
  for (std::size_t l = 0; l < 3; ++l) {
    surveys[l].layer = static_cast<Index>(l);
    surveys[l].pair_bytes = 4;
    surveys[l].middle = l == 0 ? 100 : 10;
    surveys[l].budget_bytes = 40;
    surveys[l].data = {l == 0 ? 0.9 : 0.1 * static_cast<double>(l)};
  }
  const Params params("simlayerkv", method.info.params, {});
  // The two others are lazier and go first; the large one does not fit even then.
  for (const Share& share : method.share(surveys, params)) {
    EXPECT_EQ(share.tokens, 0);
    EXPECT_TRUE(share.data != nullptr);
  }
  surveys[0].data = {0.05};  // now it is the laziest, and both others fit
  const std::vector<Share> shares = method.share(surveys, params);
  EXPECT_EQ(shares[0].tokens, 0);
  EXPECT_EQ(shares[1].tokens, 10);
  EXPECT_EQ(shares[2].tokens, 10);
  EXPECT_TRUE(shares[0].data == nullptr);
}

}  // namespace
}  // namespace kvbench::test_simlayerkv
