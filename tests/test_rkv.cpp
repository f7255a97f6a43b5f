// rkv: scores by hand and against the reference, the prefill's selection, and the stream step by
// step.
#include "algorithms/shared/rkv_scores.hpp"
#include "reference/rkv.hpp"
#include "selection_checks.hpp"
#include "stream_of.hpp"

namespace kvbench::test_rkv {
namespace {

// Softmaxes of float64 sums of some hundred terms of at most 1.
constexpr long double kRounding = 1e-12L;

void expect_close(const std::vector<double>& got, const reference::Vec& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool above = expected[i] > 1;  // above all others: only the order counts
    ASSERT_TRUE(above ? got[i] > 1.0 && (i == 0 || got[i] > got[i - 1])
                      : std::abs(got[i] - expected[i]) <= kRounding)
        << i << " " << got[i] << " " << static_cast<double>(expected[i]);
  }
}

TEST(Rkv, ScoresEqualReference) {
  // More than two tiles.
  for (unsigned seed = 0; seed < 2; ++seed) {
    KvHead head = make_head({.n = 300, .nq = 120, .d = 12}, seed);
    if (seed == 1) {
      head.k = odd_keys(300, 12, seed);
    }
    for (const std::vector<Index>& cache : {positions(0, 250), gappy(3, 260)}) {
      for (const Range queries : {Range{230, 240}, Range{255, 261}, Range{261, 261}}) {
        std::vector<Index> own;
        for (std::size_t i = 20; i < cache.size(); i += i % 5 == 0 ? 1 : 2) {
          own.push_back(cache[i]);
        }
        for (const reference::RkvReference& t :
             {reference::RkvReference{}, reference::RkvReference{0.5L, 0.8L, 1, false},
              reference::RkvReference{0, 0.1L, 3, true}, reference::RkvReference{1, 1, 51, true},
              reference::RkvReference{0, 0.99L, 1, true}}) {
          const RkvRules rules = {static_cast<double>(t.lambda), static_cast<double>(t.threshold),
                                  t.kernel, t.largest};
          expect_close(rkv_scores(head, cache, own, queries, rules),
                       reference::rkv_scores(head, cache, own, queries.begin, queries.end,
                                             {rules.lambda, rules.threshold, t.kernel, t.largest}));
        }
      }
    }
  }
}

// Three equal keys and one across. Rows lose the last equal one: the first and the second that of
// the third, the third that of the second. So the columns keep 2, 1, 0 and 0 of 4 rows.
TEST(Rkv, OfEqualKeysTheOldestAreRedundant) {
  KvHead head = make_head({.n = 4, .nq = 1, .d = 2, .group = 1}, 1);
  for (Index i = 0; i < 4; ++i) {
    head.k.row(i)[0] = i == 3 ? 0.0F : 2.0F;
    head.k.row(i)[1] = i == 3 ? 5.0F : 0.0F;
  }
  RkvRules rules;
  rules.lambda = 0.0;
  const std::vector<Index> all = positions(0, 4);
  const std::vector<double> got = rkv_scores(head, all, all, {4, 4}, rules);
  const double sum = std::exp(0.5) + std::exp(0.25) + 2.0;
  // The norm's 1e-8 makes equal keys' cosine 1 - 1e-8.
  EXPECT_NEAR(got[0], -std::exp(0.5) / sum, 1e-7);
  EXPECT_NEAR(got[1], -std::exp(0.25) / sum, 1e-7);
  EXPECT_NEAR(got[2], -1.0 / sum, 1e-7);
  EXPECT_NEAR(got[3], -1.0 / sum, 1e-7);
}

TEST(Rkv, PrefillEqualsReference) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    for (const std::vector<Index>& tokens : token_lists(8, 70)) {
      for (const Range scoring : {Range{30, 75}, Range{30, 72}, Range{70, 71}, Range{30, 60}}) {
        const JobOf job("rkv", make_head({.n = 90, .nq = 60}, seed), tokens, scoring);
        const Index begin = std::max(scoring.begin, scoring.end - 8);
        const reference::Vec scores = reference::rkv_scores(
            job.head(), positions(0, std::max(scoring.end, tokens.back() + 1)), tokens, begin,
            scoring.end, {});
        expect_best_kept(job, scores, 0);
      }
    }
  }
}

constexpr ExactTokens kWindows[] = {{0, 0}, {0, 5}, {4, 0}, {4, 20}, {30, 9}, {100, 9}};

TEST(Rkv, TheStreamEqualsTheReferenceAtEveryStep) {
  const KvHead head = make_head({.n = 70, .nq = 70}, 5);
  for (const ExactTokens& w : kWindows) {
    for (const Index capacity : {0, 1, 2, 17, 50}) {
      for (const Index buffer : {1, 6, 128}) {
        StreamOf stream("rkv", head,
                        {{"tokens", std::to_string(capacity)}, {"buffer", std::to_string(buffer)}},
                        w);
        reference::RkvStream slow{{}, capacity, buffer, 8, w.sink, w.recent, {}, 0};
        for (Index j = 0; j < 70; ++j) {
          slow.step(head, stream.step());
          const Compressed view = stream.view();
          ASSERT_EQ(view.held.tokens, slow.own) << w.sink << " " << w.recent << " " << j;
          ASSERT_EQ(view.diag, (Figures{{"compressions", std::to_string(slow.compressions)}}));
          ASSERT_LE(static_cast<Index>(view.held.tokens.size()), capacity);
        }
      }
    }
  }
}

// 8 queries of two heads weigh what 8 tokens' keys do twice; where all fits nothing is scored.
TEST(Rkv, AStreamPaysForItsQueries) {
  const KvHead head = make_head({.n = 100, .nq = 100, .dv = 4}, 5);
  const Index pair = head.pair_bytes();
  const Index queries = 8 * 2 * 8 * 4;
  const auto open = [&](Index budget) {
    return StreamOf("rkv", head, {{"buffer", "5"}}, {4, 10}, budget);
  };
  EXPECT_EQ(needed_bytes([&] { open(queries - 1); }), queries);
  for (const Index budget : {queries, queries + 7 * pair, 86 * pair - 1, 86 * pair}) {
    StreamOf stream = open(budget);
    const bool all = budget == 86 * pair;
    std::size_t most = 0;
    for (Index j = 0; j < 100; ++j) {
      stream.step();
      ASSERT_EQ(stream.view().aux_bytes, all ? 0 : queries);
      most = std::max(most, stream.view().held.tokens.size());
    }
    EXPECT_EQ(static_cast<Index>(most), all ? 86 : (budget - queries) / pair);
  }
}

}  // namespace
}  // namespace kvbench::test_rkv
