// criticalkv against its definition; its limits are snapkv and a choice by values.
#include "method_checks.hpp"
#include "reference/leverage.hpp"
#include "replay_run.hpp"

namespace kvbench::test_criticalkv {
namespace {

// Tokens by the definition, ascending: `first` by score, the others by the product.
std::vector<Index> reference_kept(const std::vector<Index>& tokens, const reference::Vec& scores,
                                  const reference::Vec& norms, Index count, Index first,
                                  reference::Real epsilon) {
  std::vector<Index> out = reference::best(tokens, scores, first);
  std::vector<Index> rest;
  reference::Vec products;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (std::find(out.begin(), out.end(), tokens[i]) == out.end()) {
      rest.push_back(tokens[i]);
      products.push_back((scores[i] + epsilon) * norms[i]);
    }
  }
  const std::vector<Index> second = reference::best(rest, products, count - first);
  out.insert(out.end(), second.begin(), second.end());
  std::sort(out.begin(), out.end());
  return out;
}

TEST(CriticalKv, EqualsReference) {
  int by_score = 0;
  for (unsigned seed = 0; seed < 5; ++seed) {
    for (const std::vector<Index>& tokens : {positions(8, 90), gappy(8, 90)}) {
      const JobOf job("criticalkv", make_head({.n = 120, .nq = 60, .dv = 5, .group = 3}, seed),
                      tokens, {70, 110}, true);
      const reference::Vec scores = reference::snapkv(job.head(), tokens, 78, 110, 2, false,
                                                      reference::ReferenceReduce::mean);
      const reference::Vec norms = reference::output_norms(job.head(), tokens, *job.o_proj);
      for (const Index count : {0, 1, 2, 7, 30, 54}) {
        // No two of these scores or products are within rounding of each other.
        ASSERT_EQ(job.kept(count), reference_kept(tokens, scores, norms, count, count / 2, 1e-4L));
        ASSERT_EQ(job.kept(count, {{"first_share", "0.29"}, {"epsilon", "3"}}),
                  reference_kept(tokens, scores, norms, count, count * 29 / 100, 3));
        by_score += job.kept(count) == reference::best(tokens, scores, count) ? 1 : 0;
      }
    }
  }
  EXPECT_LT(by_score, 40);  // the values do decide
}

TEST(CriticalKv, AllByScoreIsSnapKv) {
  const KvHead head = make_head({.n = 150, .nq = 90}, 3);
  const JobOf job("criticalkv", head, gappy(8, 130), {70, 140}, true);
  const JobOf snap("snapkv", head, gappy(8, 130), {70, 140});
  for (const Index count : {1, 10, 50}) {
    EXPECT_EQ(job.kept(count, {{"first_share", "1"}, {"pool", "max"}}),
              snap.kept(count, {{"pool", "max"}}));
  }
}

// Each query head has its own columns of W; a value that no column passes on is never critical.
TEST(CriticalKv, TheProjectionsColumnsAreThoseOfTheHeads) {
  KvHead head = make_head({}, 4);
  JobOf job("criticalkv", head, positions(10, 50), {}, true);
  job.o_proj = Matrix(6, 16);
  std::fill_n(job.o_proj->data(), 6 * 16, 0.0F);
  job.o_proj->row(2)[8 + 3] = -2.0F;  // second query head, channel 3
  std::vector<Index> by_channel = positions(10, 50);
  std::sort(by_channel.begin(), by_channel.end(), [&](Index a, Index b) {
    return std::abs(head.v.row(a)[3]) > std::abs(head.v.row(b)[3]);
  });
  by_channel.resize(7);
  std::sort(by_channel.begin(), by_channel.end());
  EXPECT_EQ(job.kept(7, {{"first_share", "0"}}), by_channel);  // no scoring query: scores are 0
}

TEST(CriticalKv, HugeValuesStayInOrder) {
  KvHead head = make_head({}, 5);
  JobOf job("criticalkv", head, positions(10, 50), {0, 64}, true);
  for (Index i = 0; i < job.o_proj->rows() * job.o_proj->cols(); ++i) {
    job.o_proj->data()[i] = 3e38F;
  }
  KvHead huge = head;
  std::fill_n(huge.v.row(31), 8, 3e38F);
  JobOf other("criticalkv", huge, positions(10, 50), {0, 64}, true);
  other.o_proj = job.o_proj;
  const std::vector<Index> kept = other.kept(1);
  EXPECT_EQ(kept, (std::vector<Index>{31}));
}

}  // namespace
}  // namespace kvbench::test_criticalkv
