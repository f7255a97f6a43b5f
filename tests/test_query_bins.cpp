// Bins of evaluated queries: fine at the prompt's end, 32 wide from offset 32 on, and all queries
// in one of them.
#include <gtest/gtest.h>

#include "report/query_bins.hpp"

namespace kvbench::test_query_bins {
namespace {

TEST(QueryBins, FineFirstThen32Wide) {
  EXPECT_EQ(query_bins(40),
            (std::vector<QueryBin>{{0, 0}, {1, 1}, {2, 3}, {4, 7}, {8, 15}, {16, 31}, {32, 39}}));
  EXPECT_EQ(query_bins(256).size(), 13U);
  EXPECT_EQ(query_bins(256)[7], (QueryBin{64, 95}));
  EXPECT_TRUE(query_bins(0).empty());
}

TEST(QueryBins, EveryQueryIsInOne) {
  for (Index n = 1; n < 300; ++n) {
    Index next = 0;
    for (const QueryBin& bin : query_bins(n)) {
      ASSERT_EQ(bin.first, next);
      ASSERT_GE(bin.last, bin.first);
      ASSERT_LE(bin.last - bin.first + 1, 32);
      next = bin.last + 1;
    }
    ASSERT_EQ(next, n);
  }
}

}  // namespace
}  // namespace kvbench::test_query_bins
