// chunkkv: chunks by hand, and the selection against the definition.
#include "reference/chunkkv.hpp"
#include "selection_checks.hpp"

namespace kvbench::test_chunkkv {
namespace {

// Few scores of few hundred lie as close as float64's rounding; none of these seeds' do.
TEST(ChunkKv, EqualsReference) {
  for (unsigned seed = 0; seed < 5; ++seed) {
    for (const std::vector<Index>& tokens : token_lists(8, 70)) {
      const JobOf job("chunkkv", make_head({.n = 90, .nq = 60, .group = 3}, seed), tokens,
                      {35, 75});
      for (const Given& given : settings("window=9;kernel=1,5;chunk_length=1,2,7,20,41,1000")) {
        const reference::Vec scores =
            reference::snapkv(job.head(), tokens, 75 - 9, 75, index_in(given, "kernel") / 2, false,
                              reference::ReferenceReduce::mean);
        for (const Index kept : {0, 1, 5, 20, 33, 41}) {
          ASSERT_EQ(job.kept(kept, given),
                    reference::chunks_kept(tokens, scores, index_in(given, "chunk_length"), kept));
        }
      }
    }
  }
}

// One query that gives token i a weight in proportion to weights[i].
KvHead head_of(const std::vector<double>& weights) {
  KvHead head;
  head.scale = 1.0;
  const auto n = static_cast<Index>(weights.size());
  head.k = Matrix(n, 1);
  head.v = Matrix(n, 1);
  head.q.emplace_back(1, 1);
  head.q[0].row(0)[0] = 1.0F;
  for (Index i = 0; i < n; ++i) {
    head.k.row(i)[0] = static_cast<float>(std::log(weights[i]));
    head.v.row(i)[0] = 1.0F;
  }
  return head;
}

TEST(ChunkKv, ChunksByHand) {
  // Means 1, 1.73, 2, and 4 of the last chunk, which has one token.
  const JobOf job("chunkkv", head_of({1, 1, 1, 5, 0.1, 0.1, 2, 2, 2, 4, 1}), positions(0, 10),
                  {10, 11});
  const Given given = {{"chunk_length", "3"}, {"kernel", "1"}};
  EXPECT_EQ(job.kept(1, given), (std::vector<Index>{9}));
  EXPECT_EQ(job.kept(2, given), (std::vector<Index>{6, 9}));
  EXPECT_EQ(job.kept(4, given), (std::vector<Index>{6, 7, 8, 9}));
  EXPECT_EQ(job.kept(5, given), (std::vector<Index>{3, 6, 7, 8, 9}));
  EXPECT_EQ(job.kept(6, given), (std::vector<Index>{3, 4, 6, 7, 8, 9}));  // a tie
  EXPECT_EQ(job.kept(8, given), (std::vector<Index>{0, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(job.run(6 * job.head().pair_bytes(), given).diag,
            (Figures{{"chunks", "2"}}));  // whole ones
}

// Chunks of different length whose scores are all equal have equal means.
TEST(ChunkKv, EqualScoresKeepTheLowestPositions) {
  const JobOf job("chunkkv", head_of(std::vector<double>(48, 0.3)), positions(0, 47), {47, 48});
  for (const Index length : {3, 20, 23}) {
    for (const Index kept : {1, 4, 30, 46}) {
      EXPECT_EQ(job.kept(kept, {{"chunk_length", std::to_string(length)}}), positions(0, kept));
    }
  }
}

}  // namespace
}  // namespace kvbench::test_chunkkv
