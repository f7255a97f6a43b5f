// rocketkv against its definition, query by query; its sizes by hand.
#include "reference/rocketkv.hpp"
#include "retrieval_run.hpp"

namespace kvbench::test_rocketkv {
namespace {

constexpr Index kQueries = 20;

TEST(RocketKv, EqualsReference) {
  for (const std::vector<Index>& tokens : {positions(8, 120), gappy(8, 120), positions(8, 9)}) {
    const ReadsOf job("rocketkv", make_rounded_head(retrieval_shape(), 32), tokens, kQueries);
    for (const Given& given : settings("share=0.4,1;page=1,3,8;channels=1,5,16;tokens=1,7,40")) {
      const Reads reads = job.run({}, given);
      const Index page = index_in(given, "page");
      const Index channels = index_in(given, "channels");
      const Index count = index_in(given, "tokens");
      const auto m = static_cast<Index>(tokens.size());
      const auto size = std::max<Index>(
          1, static_cast<Index>(std::stod(given.at("share")) * static_cast<double>(m) + 1e-9));
      // Queries 98 to 129 of those before the evaluated ones.
      const std::vector<Index> kept =
          reference::best(tokens,
                          reference::snapkv(job.head(), tokens, 98, 130, 31, true,
                                            reference::ReferenceReduce::mean),
                          size);
      const Index pages = (size + page - 1) / page;
      ASSERT_EQ(reads.index_bytes, pages * 16 * (page > 1 ? 2 : 1) * 2);
      ASSERT_EQ(reads.index_read, pages * channels * 2);
      ASSERT_TRUE(reads.lists.shared);
      for (Index j = 0; j < kQueries; ++j) {
        const reference::Vec scores =
            reference::rocket_scores(job.head(), kept, page, channels, 130 + j);
        const std::vector<Index> best = reference::best(kept, scores, std::min(size, count));
        ASSERT_EQ(list_of(reads, 0, j), Tokens(best.begin(), best.end()))
            << page << " " << channels << " " << count;
        ASSERT_EQ(reads.asked[kQueries + j], std::min(size, count));
      }
    }
  }
}

// m = 112 tokens of 16 + 8 channels in float16, 48 bytes.
TEST(RocketKv, SizesFollowTheBudget) {
  const ReadsOf job("rocketkv", make_rounded_head(retrieval_shape(), 33), positions(8, 120),
                    kQueries);
  // c = 8: a = .38, 112 / 8^.38 = 50.8; r = 50/14: pages of min(3, ceil(1.89)) = 2, channels 16 *
  // 2 / (50/14) = 8.96. Index: 25 pages of 8 elements, 400 bytes; of 672, (672 - 400) / 48 = 5.67.
  const Reads eighth = job.run(14 * 48);
  EXPECT_EQ(diag_text(eighth, "stage1"), "50");
  EXPECT_EQ(diag_text(eighth, "page"), "2");
  EXPECT_EQ(diag_text(eighth, "channels"), "8");
  EXPECT_EQ(eighth.index_read, 400);
  EXPECT_EQ(eighth.index_bytes, 25 * 32 * 2);
  EXPECT_EQ(eighth.asked[0], 5);
  // tokens=7 has the sizes of a budget of 14.
  const Reads native = job.run({}, {{"tokens", "7"}});
  EXPECT_EQ(native.index_read, 400);
  EXPECT_EQ(native.asked[0], 7);
  // c = 1: all tokens, all channels of every key.
  const Reads whole = job.run(112 * 48);
  EXPECT_EQ(diag_text(whole, "stage1"), "112");
  EXPECT_EQ(diag_text(whole, "channels"), "16");
  EXPECT_EQ(whole.index_bytes, 112 * 16 * 2);
  EXPECT_EQ(whole.asked[0], (112 * 48 - 112 * 32) / 48);
  EXPECT_THROW(job.run(48), Infeasible);
  EXPECT_THROW(job.run({}), InputError);
  EXPECT_THROW(facts_of("rocketkv", {{"kernel", "4"}}), InputError);
}

// Logits that are 1e4 apart still rank.
TEST(RocketKv, FarApartPagesStillRank) {
  KvHead head = make_rounded_head(retrieval_shape(), 34);
  for (Index i = 0; i < head.n(); ++i) {
    std::fill_n(head.k.row(i), head.d(), 0.0F);
    head.k.row(i)[0] = static_cast<float>(100 * i);
  }
  for (Matrix& q : head.q) {
    for (Index j = 0; j < q.rows(); ++j) {
      q.row(j)[0] = 400.0F;
    }
  }
  const ReadsOf job("rocketkv", head, positions(8, 108), kQueries);
  const Reads reads =
      job.run({}, {{"share", "1"}, {"page", "5"}, {"channels", "16"}, {"tokens", "12"}});
  // The last two pages, and the first two tokens of the one before.
  EXPECT_EQ(list_of(reads, 0, 3), (Tokens{93, 94, 98, 99, 100, 101, 102, 103, 104, 105, 106, 107}));
}

}  // namespace
}  // namespace kvbench::test_rocketkv
