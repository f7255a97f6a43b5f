// tova against the definition: the last query's softmax, mean over all query heads of the layer.
#include "layer_job.hpp"
#include "reference/selection.hpp"

namespace kvbench::test_tova {
namespace {

// One softmax in float64 against long double.
constexpr long double kRounding = 1e-12L;

std::vector<KvHead> layer(const HeadShape& shape, unsigned count) {
  std::vector<KvHead> heads;
  for (unsigned h = 0; h < count; ++h) {
    heads.push_back(make_head(shape, 30 + h));
  }
  return heads;
}

TEST(Tova, EqualsReferenceOverTheWholeLayer) {
  const HeadShape shape{.n = 90, .nq = 60, .group = 3};
  const std::vector<KvHead> heads = layer(shape, 4);
  for (const std::vector<Index>& tokens : {positions(8, 70), gappy(8, 70)}) {
    const SharedJob job("tova", heads, 4, tokens, {35, 64});
    for (const auto& [word, reduce] : reference::kReduces) {
      reference::Rows every;  // all query heads side by side, the last scoring query alone
      for (const KvHead& head : heads) {
        for (const reference::Vec& p : reference::attention_sums(head, 63, 64)) {
          every.push_back(p);
        }
      }
      const reference::Vec all = reference::reduced(every, reduce);
      const reference::Vec scores = reference::taken(all, tokens);
      for (const Index kept : {0, 1, 5, 30, 41}) {
        const auto got = job.run(kept * heads[0].pair_bytes(), {{"reduce", word}});
        for (const std::vector<Index>& set : got) {
          ASSERT_EQ(set, got.front());
          ASSERT_TRUE(reference::is_top(tokens, scores, set, kept, kRounding));
        }
      }
    }
  }
}

TEST(Tova, AHeadAloneIsALayerOfItsOwn) {
  HeadShape shape;
  const std::vector<KvHead> one = layer(shape, 1);
  const SharedJob job("tova", one, 1, positions(5, 50), {10, 60});
  EXPECT_EQ(job.run(9 * one[0].pair_bytes()).front(), job.job(0).kept(9));
}

}  // namespace
}  // namespace kvbench::test_tova
