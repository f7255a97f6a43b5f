// The places of the largest scores: the CPU's function against sorting, a machine's against it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "attention/device_on.hpp"
#include "attention/device_top_k.hpp"
#include "attention/top_k.hpp"
#include "make_head.hpp"

namespace kvbench {
namespace {

using Scores = std::vector<double>;

std::vector<Index> by_sorting(const Scores& scores, Index count) {
  std::vector<Index> order(scores.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(count));
  std::sort(order.begin(), order.end());
  return order;
}

void expect_places(const Scores& scores, Index count) {
  SCOPED_TRACE(testing::Message() << count << " of " << scores.size());
  const std::vector<Index> expected = by_sorting(scores, count);
  ASSERT_EQ(top_places(scores, count), expected);
  for (const auto order : {HostMachine::Order::forward, HostMachine::Order::backward}) {
    HostMachine machine(order);
    ASSERT_EQ(top_places_on(machine, scores, count), expected);
  }
}

void expect_places_of_some(const Scores& scores) {
  const auto m = static_cast<Index>(scores.size());
  for (const Index count : {Index{0}, std::min<Index>(m, 1), m / 3, m / 2, m - 1, m}) {
    expect_places(scores, count);
  }
}

// Tiles of blocks and of threads begin and end around these sizes.
const std::vector<Index> kSizes = {1, 2, 7, 8, 9, 255, 256, 257, 513, 2047, 2048, 2049, 4097, 9000};

TEST(TopPlaces, ScoresOfManyMagnitudes) {
  std::mt19937_64 generator(1);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> exponent(-300.0, 300.0);
  for (const Index m : kSizes) {
    Scores near, far, positive;
    for (Index i = 0; i < m; ++i) {
      near.push_back(1.0 + 1e-14 * normal(generator));  // they differ in the last bytes only
      far.push_back(normal(generator) * std::pow(10.0, exponent(generator)));
      positive.push_back(std::exp(normal(generator)));
    }
    expect_places_of_some(near);
    expect_places_of_some(far);
    expect_places_of_some(positive);
  }
}

TEST(TopPlaces, TiesGoToTheLowestPlace) {
  std::mt19937_64 generator(2);
  for (const Index m : kSizes) {
    for (const std::uint64_t values : {1, 2, 3, 20}) {
      Scores scores;
      for (Index i = 0; i < m; ++i) {
        scores.push_back(0.1 * static_cast<double>(generator() % values) - 0.1);
      }
      expect_places_of_some(scores);
    }
  }
}

TEST(TopPlaces, ZerosOfBothSignsAreEqual) {
  EXPECT_EQ(top_places(Scores{-0.0, 0.0, -0.0}, 1), (std::vector<Index>{0}));
  std::mt19937_64 generator(3);
  Scores scores(5000);
  for (double& x : scores) {
    const auto dice = generator() % 16;
    x = dice == 0 ? 1.0 : dice == 1 ? -1e-310 : dice < 8 ? -0.0 : 0.0;
  }
  expect_places_of_some(scores);
}

TEST(TopPlaces, EdgesOfFloat64) {
  using Limits = std::numeric_limits<double>;
  const Scores edges = {Limits::max(),
                        Limits::lowest(),
                        Limits::infinity(),
                        -Limits::infinity(),
                        Limits::min(),
                        -Limits::min(),
                        Limits::denorm_min(),
                        -Limits::denorm_min(),
                        0.0,
                        -0.0,
                        1.0,
                        -1.0};
  for (Index count = 0; count <= static_cast<Index>(edges.size()); ++count) {
    expect_places(edges, count);
  }
  std::mt19937_64 generator(4);
  Scores scores;
  for (int i = 0; i < 3000; ++i) {
    scores.push_back(edges[generator() % edges.size()]);
  }
  expect_places_of_some(scores);
}

TEST(TopPlaces, NoScores) {
  expect_places({}, 0);
}

// More tiles than a block has threads.
TEST(TopPlaces, ManyTiles) {
  std::mt19937_64 generator(5);
  Scores scores;
  for (Index i = 0; i < 2048 * 260 + 3; ++i) {
    scores.push_back(static_cast<double>(generator() % 1000));
  }
  expect_places(scores, 100000);
}

// A host machine that counts its launches.
struct CountingMachine : HostMachine {
  inline static int launches = 0;
  template <class Kernel>
  void launch(const Kernel& kernel, Index blocks) {
    ++launches;
    HostMachine::launch(kernel, blocks);
  }
};

TEST(TopPlaces, OnlyManyScoresGoToTheDevice) {
  const KvHead head = make_head({}, 1);
  const DeviceHeadOn<CountingMachine> device(CountingMachine(), head);
  std::mt19937_64 generator(6);
  Scores scores;
  for (Index i = 0; i < kTopOnDevice; ++i) {
    scores.push_back(static_cast<double>(generator() % 5000));
  }
  CountingMachine::launches = 0;
  const Scores fewer(scores.begin(), scores.end() - 1);
  EXPECT_EQ(top_places(fewer, 4000, &device), by_sorting(fewer, 4000));
  EXPECT_EQ(CountingMachine::launches, 0);
  EXPECT_EQ(top_places(scores, 4000, &device), by_sorting(scores, 4000));
  EXPECT_GT(CountingMachine::launches, 0);
}

}  // namespace
}  // namespace kvbench
