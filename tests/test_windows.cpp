// Which tokens are sinks, middle and recent, which queries score and which are evaluated; budgets
// in bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "core/error.hpp"
#include "replay/windows.hpp"

namespace kvbench::test_windows {
namespace {

ReplayOptions windows(Index sink, Index recent, Index queries, Scores scores = Scores::past) {
  ReplayOptions o;
  o.sink = sink;
  o.recent = recent;
  o.queries = queries;
  o.scores = scores;
  return o;
}

TEST(Windows, ByHand) {
  const Windows w = windows_of(windows(4, 8, 5), 100, 100, 0);
  EXPECT_EQ(w.sink, (Range{0, 4}));
  EXPECT_EQ(w.middle, (Range{4, 92}));
  EXPECT_EQ(w.recent, (Range{92, 100}));
  EXPECT_EQ(w.queries, 5);
  EXPECT_EQ(w.scoring, (Range{0, 95}));
  EXPECT_EQ(windows_of(windows(4, 8, 5, Scores::all), 100, 100, 0).scoring, (Range{0, 100}));
  // Of 20 stored queries the first 15 may be seen; of 3, none, and only 3 can be evaluated.
  EXPECT_EQ(windows_of(windows(4, 8, 5), 100, 20, 0).scoring, (Range{80, 95}));
  EXPECT_EQ(windows_of(windows(4, 8, 5), 100, 3, 0).scoring.size(), 0);
  EXPECT_EQ(windows_of(windows(4, 8, 5, Scores::all), 100, 3, 0).scoring, (Range{97, 100}));
  EXPECT_EQ(windows_of(windows(4, 8, 5), 100, 3, 0).queries, 3);
}

TEST(Windows, PartitionTheTokensWhateverTheSizes) {
  for (Index n = 1; n <= 10; ++n) {
    for (Index sink = 0; sink <= 12; ++sink) {
      for (Index recent = 1; recent <= 12; ++recent) {
        for (Index queries = 1; queries <= recent; ++queries) {
          for (Index nq = 1; nq <= n; ++nq) {
            const Windows past = windows_of(windows(sink, recent, queries), n, nq, 0);
            const Windows all = windows_of(windows(sink, recent, queries, Scores::all), n, nq, 0);
            std::vector<int> covered(n, 0);
            for (const Range r : {past.sink, past.middle, past.recent}) {
              for (Index i = r.begin; i < r.end; ++i) {
                ++covered.at(i);
              }
            }
            ASSERT_EQ(covered, std::vector<int>(n, 1));
            ASSERT_EQ(past.sink.size(), std::min(sink, n));
            ASSERT_EQ(past.middle.size(), std::max<Index>(0, n - sink - recent));
            ASSERT_EQ(past.queries, std::min(queries, nq));
            if (past.middle.size() > 0) {  // every evaluated query sees all of it
              ASSERT_LE(past.middle.end, n - past.queries);
            }
            ASSERT_EQ(past.scoring.size(), nq - past.queries);
            ASSERT_EQ(past.scoring.begin, n - nq);
            ASSERT_EQ(all.scoring, (Range{n - nq, n}));
            ASSERT_EQ(all.middle, past.middle);
          }
        }
      }
    }
  }
}

// Products that are whole numbers stay whole: 0.29 * 100 is 28.999999999999996.
TEST(BudgetBytes, DecimalFractionsOfAnything) {
  EXPECT_EQ(budget_bytes(0.29, 100), 29);
  std::mt19937_64 random(11);
  std::uniform_int_distribution<Index> sizes(1, 1LL << 36);
  for (int i = 0; i < 20000; ++i) {
    const Index full = i < 4000 ? i : sizes(random);
    const auto p = static_cast<Index>(random() % 1001);
    const double rho = static_cast<double>(p) / 1000.0;
    ASSERT_EQ(budget_bytes(rho, full), p * full / 1000) << rho << " of " << full;
  }
}

TEST(BudgetBytes, IsTheFloor) {
  std::mt19937_64 random(12);
  std::uniform_real_distribution<double> fractions(0.0, 1.0);
  for (int i = 0; i < 20000; ++i) {
    const double rho = fractions(random);
    const auto full = static_cast<Index>(random() % 2048);
    // 53 and 11 bits: the product is exact in the 64 bits of x87's long double.
    const long double exact = static_cast<long double>(rho) * static_cast<long double>(full);
    ASSERT_EQ(budget_bytes(rho, full), static_cast<Index>(std::floor(exact)));
  }
}

// Fine at the prompt's end, 32 wide from offset 32 on; every query is in one bin.
TEST(QueryBins, FineFirstThen32Wide) {
  EXPECT_EQ(query_bins(40),
            (std::vector<Range>{{0, 1}, {1, 2}, {2, 4}, {4, 8}, {8, 16}, {16, 32}, {32, 40}}));
  EXPECT_EQ(query_bins(256).size(), 13U);
  EXPECT_EQ(query_bins(256)[7], (Range{64, 96}));
  for (Index n = 0; n < 300; ++n) {
    Index next = 0;
    for (const Range bin : query_bins(n)) {
      ASSERT_EQ(bin.begin, next);
      ASSERT_GE(bin.size(), 1);
      ASSERT_LE(bin.size(), 32);
      next = bin.end;
    }
    ASSERT_EQ(next, n);
  }
}

TEST(MiddleBudget, OfAllTokensIsWhatTheExactOnesLeave) {
  ReplayOptions o;
  o.sink = 4;
  o.recent = 16;
  o.queries = 8;
  const Windows w = windows_of(o, 100, 100, 0);
  EXPECT_EQ(middle_budget(o, 0.5, w, 8), 320);  // of 80 tokens
  o.total_budget = true;
  EXPECT_EQ(middle_budget(o, 1.0, w, 8), 640);
  EXPECT_EQ(middle_budget(o, 0.5, w, 8), 240);  // 50 tokens less 20
  EXPECT_EQ(middle_budget(o, 0.2, w, 8), 0);
  EXPECT_THROW(middle_budget(o, 0.19, w, 8), Infeasible);
  // Only tokens that the evaluated queries see count: 3 + 80 + 16 of 99.
  EXPECT_EQ(middle_budget(o, 1.0, windows_of(o, 100, 100, 92), 8), 640);
}

}  // namespace
}  // namespace kvbench::test_windows
