// clustergen-kcenter as a method: what is kept, with which weights, for how many bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "algorithms/contract.hpp"
#include "algorithms/methods.hpp"
#include "algorithms/params.hpp"
#include "clustergen_run.hpp"
#include "core/error.hpp"
#include "make_head.hpp"
#include "reference/cluster.hpp"
#include "reference/kmeans.hpp"

namespace kvbench::test_clustergen_kcenter {
namespace {

Compressed run_kcenter(const KvHead& head, const std::vector<Index>& tokens,
                       const std::map<std::string, std::string>& given,
                       std::optional<Index> budget = {}) {
  const Method m = method_clustergen_kcenter();
  std::map<std::string, std::string> all = given;
  all.try_emplace("recent_share", "0");  // centres alone unless a test says more
  const Task task{head, tokens, budget, {0, 0}, {}, Rng(0, {"p", 0, 0}, m.info.name)};
  return m.compress(task, Params(m.info.name, m.info.params, all));
}

// The recent ones, and centres of the others by the reference, whose mean and sizes are meant.
void expect_equal(const KvHead& head, const std::vector<Index>& tokens, const char* share,
                  Index recent, Index kept) {
  const auto m = static_cast<Index>(tokens.size());
  const Index held = std::min(kept, m);
  reference::Rows points;  // of the others
  for (Index i = 0; i < m - recent; ++i) {
    points.push_back(reference::rows_of(head.k)[tokens[i]]);
  }
  const reference::Vec mean =
      points.empty() ? reference::Vec() : reference::mean_of(points, positions(0, m - recent));
  Index far = 0;  // distances within the mean's rounding of each other are not compared
  for (Index i = 0; i < m - recent; ++i) {
    far = reference::distance(points[i], mean) > reference::distance(points[far], mean) + 1e-9L
              ? i
              : far;
  }
  for (const char* start : {"first", "farthest-from-mean"}) {
    const std::vector<Index> centers =
        reference::greedy_centers(points, held - recent, std::string(start) == "first" ? 0 : far);
    std::map<Index, float> expected;
    for (const Index place : centers) {
      expected[tokens[place]] = 0.0F;
    }
    if (!centers.empty()) {
      for (const Index number : reference::nearest_centers(points, centers)) {
        const Index place = centers[number];
        expected[tokens[place]] += 1.0F;
      }
    }
    for (Index i = m - recent; i < m; ++i) {
      expected[tokens[i]] = 1.0F;
    }
    std::vector<Index> positions_kept;
    std::vector<float> sizes;
    for (const auto& [token, size] : expected) {
      positions_kept.push_back(token);
      sizes.push_back(size);
    }
    for (const char* weights : {"one", "cluster"}) {
      const Compressed c = run_kcenter(head, tokens,
                                       {{"start", start},
                                        {"weights", weights},
                                        {"recent_share", share},
                                        {"tokens", std::to_string(kept)}});
      const bool cluster = std::string(weights) == "cluster";
      ASSERT_EQ(c.held.tokens, positions_kept) << start << " " << kept << " " << share;
      ASSERT_EQ(c.held.weights, cluster ? sizes : std::vector<float>{});
      ASSERT_EQ(c.held.common, 1.0F);
      ASSERT_EQ(c.aux_bytes, cluster ? 4 * held : 0);
      ASSERT_FALSE(c.denominator.has_value());
    }
  }
}

// Keys are whole numbers, with ties and equal keys; tokens are what another method left.
TEST(ClusterGenKCenter, EqualsReference) {
  std::mt19937_64 generator(1);
  for (const double offset : {0.0, 1e4}) {
    KvHead head = make_head({.n = 40}, 2);
    head.k = lattice(40, 8, 2, generator, offset);
    std::vector<Index> tokens;
    for (Index i = 3; i < 38; i += i % 3 == 0 ? 1 : 2) {
      tokens.push_back(i);
    }
    const auto m = static_cast<Index>(tokens.size());
    for (const Index kept : {Index{0}, Index{1}, Index{2}, Index{7}, m - 1, m, m + 9}) {
      expect_equal(head, tokens, "0", 0, kept);
    }
  }
}

TEST(ClusterGenKCenter, RecentTokensAndCentresOfTheOthersEqualReference) {
  for (unsigned seed = 1; seed <= 3; ++seed) {
    std::vector<Index> tokens = positions(4, 50);
    tokens.erase(tokens.begin() + 7);
    const auto m = static_cast<Index>(tokens.size());
    for (const auto& [share, kept, recent] : {std::tuple("0.5", Index{9}, Index{4}),
                                              {"0.5", Index{1}, Index{0}},
                                              {"0.29", Index{20}, Index{5}},
                                              {"0", Index{9}, Index{0}},
                                              {"1", Index{9}, Index{9}},
                                              {"0.5", m, m / 2},
                                              {"1", m, m}}) {
      expect_equal(make_head({.n = 60}, seed), tokens, share, recent, kept);
    }
  }
}

TEST(ClusterGenKCenter, OddInputs) {
  KvHead head = make_head({}, 1);
  EXPECT_EQ(run_kcenter(head, {17}, {{"weights", "cluster"}}, 1000).held.weights,
            (std::vector<float>{1.0F}));
  repeat_first_row(head.k);
  // Equal keys: the lowest positions; the first stands for all that are not kept.
  const Compressed c =
      run_kcenter(head, positions(10, 30), {{"weights", "cluster"}, {"tokens", "3"}});
  EXPECT_EQ(c.held.tokens, (std::vector<Index>{10, 11, 12}));
  EXPECT_EQ(c.held.weights, (std::vector<float>{18.0F, 1.0F, 1.0F}));
}

}  // namespace
}  // namespace kvbench::test_clustergen_kcenter
