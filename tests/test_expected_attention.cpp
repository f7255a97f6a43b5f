// expected-attention of queries as stored against its definition in long double; test_rope.cpp has
// the method with rotary tables.
#include "reference/expected_attention.hpp"
#include "selection_checks.hpp"

namespace kvbench::test_expected_attention {
namespace {

using reference::Real;

// Logits reach some tens, so float64's relative error of a score is some 1e-14.
constexpr Real kRounding = 1e-11L;

TEST(ExpectedAttention, EqualsReference) {
  HeadShape shape{.n = 110, .nq = 70, .d = 11, .dv = 5, .group = 3};
  for (const double norm : {0.5, 3.0, 20.0}) {
    shape.key_norm = norm;
    const KvHead head = make_head(shape, 9);
    for (const std::vector<Index>& tokens : token_lists(8, 90)) {
      for (const Range scoring : {Range{40, 100}, Range{45, 46}, Range{60, 65}}) {
        const JobOf job("expected-attention", head, tokens, scoring);
        for (const auto& [word, reduce] : reference::kReduces) {
          const reference::Vec slow = reference::expected_attention(
              head, tokens, scoring.begin, scoring.end, nullptr, nullptr, true, 0, reduce);
          expect_best_kept(job, slow, kRounding, {{"reduce", word}});
        }
      }
    }
  }
}

TEST(ExpectedAttention, WithoutScoringQueriesTheValuesDecide) {
  KvHead head = make_head({}, 1);
  for (Index t = 0; t < 8; ++t) {
    head.v.row(20)[t] = 0.0F;
    head.v.row(30)[t] = 100.0F;
  }
  const JobOf job("expected-attention", head, positions(10, 40), {64, 64});
  EXPECT_EQ(job.kept(1), (std::vector<Index>{30}));
  const std::vector<Index> most = job.kept(29);
  EXPECT_FALSE(std::binary_search(most.begin(), most.end(), 20));
}

// Scores e^-1000 apart still rank: nothing underflows to a tie.
TEST(ExpectedAttention, FarApartScoresStillRank) {
  KvHead head;
  head.k = Matrix(40, 1);
  head.v = Matrix(40, 1);
  head.q.emplace_back(40, 1);
  head.q.emplace_back(40, 1);
  for (Index i = 0; i < 40; ++i) {
    head.k.data()[i] = 50.0F * static_cast<float>(i);
    head.v.data()[i] = 1.0F;
    head.q[0].data()[i] = 10.0F;
    head.q[1].data()[i] = 11.0F;
  }
  for (const char* reduce : {"mean", "max", "sum"}) {
    const JobOf job("expected-attention", head, positions(3, 33), {10, 40});
    EXPECT_EQ(job.kept(7, {{"reduce", reduce}}), positions(26, 33));
  }
}

}  // namespace
}  // namespace kvbench::test_expected_attention
