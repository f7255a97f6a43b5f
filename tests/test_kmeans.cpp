// kmeans against its reference, and what a common key offset and equal keys do to it.
#include "merge_checks.hpp"
#include "reference/cluster.hpp"
#include "reference/kmeans.hpp"

namespace kvbench::test_kmeans {
namespace {

Given given(Index tokens, Index iterations = 10) {
  return {{"tokens", std::to_string(tokens)}, {"iterations", std::to_string(iterations)}};
}

// Clusters by the reference, called by their lowest position.
std::map<Index, reference::Merged> expected(const KvHead& head, const std::vector<Index>& tokens,
                                            Index count, Index rounds) {
  const reference::Rows k = reference::rows_at(head.k, tokens);
  const reference::Rows v = reference::rows_at(head.v, tokens);
  std::map<Index, reference::Merged> out;
  for (const std::vector<Index>& members :
       reference::lloyd(k, reference::greedy_centers(k, count, 0), rounds)) {
    out[tokens[members[0]]] = {reference::mean_of(k, members), reference::mean_of(v, members),
                               static_cast<reference::Real>(members.size()), members.size() > 1};
  }
  return out;
}

TEST(KMeans, EqualsTheReference) {
  for (const unsigned seed : {3U, 4U}) {
    for (const auto& tokens : {positions(10, 60), gappy(10, 70)}) {
      const JobOf job("kmeans", make_head(merging_shape(80), seed), tokens, {});
      const auto m = static_cast<Index>(tokens.size());
      for (const Index count : {Index{1}, Index{2}, Index{7}, Index{20}, m - 1, m}) {
        for (const Index rounds : {1, 2, 10}) {
          const Compressed c = job.run({}, given(count, rounds));
          expect_merged(c, expected(job.head(), tokens, count, rounds));
          const Index clusters = static_cast<Index>(c.held.tokens.size()) + c.made.k.rows();
          ASSERT_EQ(c.aux_bytes, 4 * clusters);
          ASSERT_EQ(c.diag[0].second, std::to_string(clusters));
        }
      }
      EXPECT_EQ(job.run({}, given(m)).held.tokens, tokens);
    }
  }
}

// Whole numbers of two values: many equal distances, and equal keys among the first centres, whose
// clusters get no token and are gone.
TEST(KMeans, TiesGoToTheEarlierAndEmptyClustersAreGone) {
  std::mt19937_64 generator(1);
  bool gone = false;
  for (const Index d : {1, 2, 3}) {
    HeadShape shape = merging_shape(50);
    shape.d = d;
    KvHead head = make_head(shape, 2);
    for (Index i = 0; i < 50 * d; ++i) {
      head.k.data()[i] = static_cast<float>(generator() % 4);
    }
    const JobOf job("kmeans", head, gappy(3, 48), {});
    for (const Index count : {1, 2, 4, 9, 20, 30}) {
      // Means of thirds and sevenths are rounded differently in long double: one assignment, whose
      // centres are whole numbers.
      const Compressed c = job.run({}, given(count, 1));
      expect_merged(c, expected(head, job.tokens(), count, 1));
      gone = gone || static_cast<Index>(c.held.tokens.size()) + c.made.k.rows() < count;
    }
  }
  EXPECT_TRUE(gone);
}

// An offset that all keys share moves the centroids by as much and changes no cluster.
TEST(KMeans, ACommonOffsetCostsNoDigits) {
  std::mt19937_64 generator(5);
  KvHead head = make_head(merging_shape(60), 6);
  for (Index i = 0; i < 60 * 8; ++i) {
    head.k.data()[i] = static_cast<float>(generator() % 1000) / 1024.0F;  // exact beside 4096
  }
  KvHead moved = head;
  for (Index i = 0; i < 60 * 8; ++i) {
    moved.k.data()[i] += 4096.0F;
  }
  const JobOf here("kmeans", head, positions(0, 60), {});
  const JobOf there("kmeans", moved, positions(0, 60), {});
  for (const Index count : {2, 10, 25}) {
    const Compressed a = here.run({}, given(count));
    const Compressed b = there.run({}, given(count));
    ASSERT_GT(a.made.v.rows(), 0);
    EXPECT_EQ(a.held.tokens, b.held.tokens);
    EXPECT_EQ(a.made.weights, b.made.weights);
    EXPECT_TRUE(same_bits(a.made.v, b.made.v));
  }
}

// One cluster for all equal keys, with the mean of their values: what attention makes of them.
TEST(KMeans, EqualKeysAreOneCluster) {
  KvHead head = make_head(merging_shape(20), 7);
  repeat_first_row(head.k);
  const JobOf job("kmeans", head, positions(2, 18), {});
  const Compressed c = job.run({}, given(5));
  EXPECT_TRUE(c.held.tokens.empty());
  EXPECT_EQ(c.made.weights, (std::vector<float>{16.0F}));
  EXPECT_TRUE(std::equal(c.made.k.row(0), c.made.k.row(0) + 8, head.k.row(0)));
  EXPECT_EQ(c.aux_bytes, 4);
}

}  // namespace
}  // namespace kvbench::test_kmeans
