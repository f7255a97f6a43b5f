// duoattention: which heads keep everything, against sorting by the reference's attention mass.
#include "layer_job.hpp"
#include "reference/selection.hpp"

namespace kvbench::test_duoattention {
namespace {

std::vector<KvHead> layer() {
  std::vector<KvHead> heads;
  for (unsigned h = 0; h < 4; ++h) {
    heads.push_back(make_head({}, 80 + h));
  }
  return heads;
}

// Attention mass on `tokens`, by head.
reference::Vec masses(const std::vector<KvHead>& heads, const std::vector<Index>& tokens,
                      reference::ReferenceReduce reduce) {
  reference::Vec out;
  for (const KvHead& head : heads) {
    const reference::Vec all = reference::reduced(reference::attention_sums(head, 10, 60), reduce);
    out.push_back(0);
    for (const Index i : tokens) {
      out.back() += all[i];
    }
  }
  return out;
}

// The `count` largest of those allowed.
std::vector<bool> expected(const reference::Vec& mass, const std::vector<bool>& allowed,
                           Index count) {
  std::vector<std::pair<reference::Real, std::size_t>> order;
  for (std::size_t h = 0; h < mass.size(); ++h) {
    if (allowed[h]) {
      order.emplace_back(-mass[h], h);
    }
  }
  std::sort(order.begin(), order.end());
  std::vector<bool> out(mass.size(), false);
  for (std::size_t i = 0; i < order.size() && static_cast<Index>(i) < count; ++i) {
    out[order[i].second] = true;
  }
  return out;
}

TEST(DuoAttention, LargestMassFirstAsManyAsFit) {
  const std::vector<KvHead> heads = layer();
  for (const std::vector<Index>& tokens : {positions(5, 45), gappy(5, 45)}) {
    const SharedJob job("duoattention", heads, 4, tokens, {10, 60});
    const auto m = static_cast<Index>(tokens.size());
    for (const auto& [word, reduce] : std::map<std::string, reference::ReferenceReduce>{
             {"mean", reference::ReferenceReduce::mean},
             {"max", reference::ReferenceReduce::max}}) {
      const reference::Vec mass = masses(heads, tokens, reduce);
      for (Index each = 0; each <= m; ++each) {
        const auto got = job.run(each * heads[0].pair_bytes(), {{"reduce", word}});
        ASSERT_EQ(kept_whole(got, tokens), expected(mass, {true, true, true, true}, 4 * each / m));
        ASSERT_EQ(job.degenerate, std::vector<std::string>(4, 4 * each < m ? "no head fits" : ""));
      }
    }
  }
}

TEST(DuoAttention, TheTracesHeadsAndNoOthers) {
  const std::vector<KvHead> heads = layer();
  const std::vector<Index> tokens = positions(5, 45);
  SharedJob job("duoattention", heads, 4, tokens, {10, 60});
  const Index pair = heads[0].pair_bytes();
  const reference::Vec mass = masses(heads, tokens, reference::ReferenceReduce::mean);
  for (unsigned mask = 0; mask < 16; ++mask) {
    job.retrieval_heads.clear();
    std::vector<bool> named;
    for (unsigned h = 0; h < 4; ++h) {
      job.retrieval_heads.push_back((mask >> h & 1U) != 0 ? 1 : 0);
      named.push_back((mask >> h & 1U) != 0);
    }
    EXPECT_EQ(kept_whole(job.run(40 * pair), tokens), named);  // all that are named fit
    for (const Index count : {0, 1, 2}) {
      EXPECT_EQ(kept_whole(job.run(10 * count * pair), tokens), expected(mass, named, count));
      // A layer without retrieval heads streams in full, as it should.
      const bool none_fits = count == 0 && mask != 0;
      EXPECT_EQ(job.degenerate, std::vector<std::string>(4, none_fits ? "no head fits" : ""));
    }
  }
}

// More heads than a sort leaves in place by chance.
TEST(DuoAttention, ManyTiesGoToTheLowestHeads) {
  std::vector<Survey> surveys(64);
  for (std::size_t h = 0; h < 64; ++h) {
    surveys[h].middle = 10;
    surveys[h].tokens = 5;
    surveys[h].pair_bytes = 4;
    surveys[h].budget_bytes = 20;
    surveys[h].data = {1.0, h % 2 == 0 ? 1.0 : 2.0};
  }
  std::vector<Index> odd, first;
  for (Index h = 0; h < 64; ++h) {
    odd.push_back(h % 2 == 1 ? 10 : 0);  // 32 of 64 fit: all of the larger mass
    first.push_back(h < 32 ? 10 : 0);
  }
  EXPECT_EQ(shared_tokens("duoattention", surveys), odd);
  for (Survey& s : surveys) {
    s.data = {1.0, 1.0};
  }
  EXPECT_EQ(shared_tokens("duoattention", surveys), first);
}

}  // namespace
}  // namespace kvbench::test_duoattention
