// adakv: budgets sum exactly, floors hold, equal scores share equally; selection against a
// reference that takes one token at a time.
#include <numeric>

#include "layer_job.hpp"
#include "reference/selection.hpp"

namespace kvbench::test_adakv {
namespace {

TEST(AdaKv, SharesEqualReferenceWithManyTies) {
  std::mt19937_64 generator(5);
  for (int round = 0; round < 400; ++round) {
    const auto heads = 1 + generator() % 5;
    const auto m = static_cast<Index>(1 + generator() % 20);
    const auto each = static_cast<Index>(generator()) & 31;
    std::vector<Survey> surveys;
    reference::Rows scores;
    for (std::size_t h = 0; h < heads; ++h) {
      Survey s{.tokens = std::min(m, each), .kv_head = static_cast<Index>(h), .middle = m};
      reference::Vec row;
      for (Index i = 0; i < m; ++i) {
        row.push_back(
            static_cast<long double>(generator() % (round % 2 == 0 ? 4 : 1000) * (h == 0 ? 3 : 1)));
        s.data.push_back(static_cast<double>(row.back()));
      }
      for (Index i = 0; i < m; ++i) {
        s.data.push_back(static_cast<double>(7 + 2 * i));
      }
      surveys.push_back(s);
      scores.push_back(row);
    }
    const Index kept = surveys[0].tokens;
    for (const Index tenths : {0, 2, 5, 10}) {
      const std::vector<Index> got = shared_tokens(
          "adakv", surveys, {{"floor", std::to_string(0.1 * static_cast<double>(tenths))}});
      const Index safe = kept * tenths / 10;
      ASSERT_EQ(got, reference::pooled_counts(scores, kept, safe));
      ASSERT_EQ(std::accumulate(got.begin(), got.end(), Index{0}),
                static_cast<Index>(heads) * kept);
    }
  }
}

TEST(AdaKv, TheLayersTokensAreTheBestOfAllHeads) {
  std::vector<KvHead> heads;
  for (unsigned h = 0; h < 3; ++h) {
    heads.push_back(make_head({.n = 90, .nq = 60}, 50 + h));
    heads.back().scale *= 0.3 + h;  // heads differ in how sharp they are
  }
  for (const std::vector<Index>& tokens : {positions(8, 70), gappy(8, 70)}) {
    const SharedJob job("adakv", heads, 3, tokens, {35, 75});
    reference::Rows scores;
    for (const KvHead& head : heads) {
      scores.push_back(
          reference::snapkv(head, tokens, 43, 75, 2, false, reference::ReferenceReduce::mean));
    }
    for (const Index each : {1, 9, 20, 41}) {
      const std::vector<Index> counts = reference::pooled_counts(scores, each, each / 5);
      const auto got = job.run(each * heads[0].pair_bytes());
      for (std::size_t h = 0; h < 3; ++h) {
        ASSERT_TRUE(reference::is_top(tokens, scores[h], got[h], counts[h], 1e-9L));
      }
    }
  }
}

}  // namespace
}  // namespace kvbench::test_adakv
