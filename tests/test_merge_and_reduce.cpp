// MergeAndReduce: sizes and weights of the levels, a smaller batch, refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "algorithms/shared/merge_and_reduce.hpp"

namespace kvbench::test_merge_and_reduce {
namespace {

std::vector<Index> every_other(std::span<const Index> block, const BlockId&) {
  std::vector<Index> out;
  for (std::size_t i = 0; i < block.size(); i += 2) {
    out.push_back(block[i]);
  }
  return out;
}

TEST(MergeAndReduceLevels, AtMostTokensPerLevelAndExactWeights) {
  for (const Index t : {2, 6, 16, 64}) {
    for (const Index limit : {Index{0}, Index{1}, Index{3}, MergeAndReduce::kUnlimited}) {
      MergeAndReduce tree(t, limit);
      std::set<std::pair<Index, Index>> seen;
      const HalveBlock halve = [&](std::span<const Index> block, const BlockId& id) {
        EXPECT_EQ(static_cast<Index>(block.size()), t);
        EXPECT_TRUE(seen.emplace(id.level, id.number).second);
        // Block b of level l stands for arrivals [b t 2^l, (b + 1) t 2^l).
        EXPECT_GE(block.front(), id.number * (t << id.level));
        EXPECT_LT(block.back(), (id.number + 1) * (t << id.level));
        return every_other(block, id);
      };
      for (Index j = 0; j < 1000; ++j) {
        tree.append(j, halve);
        ASSERT_EQ(tree.weight(), static_cast<double>(j + 1));
        for (std::size_t l = 0; l < tree.levels().size(); ++l) {
          if (static_cast<Index>(l) != limit) {
            ASSERT_LE(static_cast<Index>(tree.levels()[l].size()), t) << l;
          }
        }
      }
    }
  }
}

TEST(MergeAndReduceLevels, LoweringGivesTheShapeOfTheSmallerBatchAndNeverGrows) {
  std::mt19937_64 generator(3);
  for (int round = 0; round < 200; ++round) {
    MergeAndReduce tree(128);
    std::set<std::array<Index, 3>> seen;
    const HalveBlock halve = [&](std::span<const Index> block, const BlockId& id) {
      EXPECT_TRUE(seen.insert({id.t, id.level, id.number}).second);
      EXPECT_EQ(static_cast<Index>(block.size()), id.t);
      EXPECT_GE(block.front(), id.number * (id.t << id.level));
      EXPECT_LT(block.back(), (id.number + 1) * (id.t << id.level));
      return every_other(block, id);
    };
    const Index n = 1 + static_cast<Index>(generator() % 700);
    for (Index j = 0; j < n; ++j) {
      tree.append(j, halve);
      if (generator() % 100 == 0 && tree.t() > 2) {
        const Index before = tree.size();
        tree.lower(halve);
        ASSERT_LE(tree.size(), before);
      }
      ASSERT_EQ(tree.weight(), static_cast<double>(j + 1));
    }
    MergeAndReduce fresh(tree.t());
    for (Index j = 0; j < n; ++j) {
      fresh.append(j, every_other);
    }
    for (std::size_t l = 0; l < std::max(fresh.levels().size(), tree.levels().size()); ++l) {
      const auto size = [&](const MergeAndReduce& m) {
        return l < m.levels().size() ? m.levels()[l].size() : 0;
      };
      ASSERT_EQ(size(tree), size(fresh)) << l;
    }
  }
}

TEST(MergeAndReduceLevels, OddBatchesAreRefused) {
  EXPECT_THROW(MergeAndReduce(3), std::logic_error);
  EXPECT_THROW(MergeAndReduce(0), std::logic_error);
  MergeAndReduce limited(8, 2);
  EXPECT_THROW(limited.lower(every_other), std::logic_error);
}

}  // namespace
}  // namespace kvbench::test_merge_and_reduce
