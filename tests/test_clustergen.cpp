// clustergen: Algorithm 1's state against its definition, sizes and budgets, and the stream.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "attention/online_clusters.hpp"
#include "clustergen_run.hpp"
#include "core/error.hpp"
#include "reference/cluster.hpp"
#include "stream_of.hpp"

namespace kvbench::test_clustergen {
namespace {

TEST(ClusterGen, StateIsAlgorithmOnes) {
  for (const double offset : {0.0, 1e4}) {
    for (const DType dtype : {DType::bfloat16, DType::float32}) {
      const KvHead head = make_head({.n = 90, .dv = 5, .key_offset = offset, .dtype = dtype}, 3);
      std::vector<Index> tokens;
      reference::Rows keys;
      long double mu = 0;
      for (Index i = 2; i < 88; i += 1 + i % 2) {
        tokens.push_back(i);
        keys.push_back(reference::rows_of(head.k)[i]);
        mu += square(head, i);
      }
      for (const char* delta : {"0", "1.5", "3.1", "4.5", "100"}) {
        const std::vector<Index> cluster = reference::online_clusters(keys, std::stold(delta));
        const Index clusters = reference::cluster_count(cluster);
        for (const Index t : {1, 3, 8}) {
          for (const Index samples : {1, 20}) {
            const Compressed c = run(
                head, tokens,
                {{"delta", delta}, {"t", std::to_string(t)}, {"samples", std::to_string(samples)}});
            ASSERT_EQ(diag(c, "clusters"), clusters);
            Index slots = 0;
            for (const auto& [token, count] : pair_slots(c, head, mu, samples)) {
              slots += count;
            }
            ASSERT_EQ(slots, samples);
            // Every cluster has t slots of its own keys, each with weight n_i / t.
            std::map<Index, Index> by_cluster;
            const HeldTokens& d = c.denominator->held;
            ASSERT_TRUE(std::is_sorted(d.tokens.begin(), d.tokens.end()));
            for (std::size_t i = 0; i < d.tokens.size(); ++i) {
              const auto place = std::find(tokens.begin(), tokens.end(), d.tokens[i]);
              const Index own = cluster[place - tokens.begin()];
              const auto size = std::count(cluster.begin(), cluster.end(), own);
              by_cluster[own] += slots_of(
                  d.weight(i), static_cast<long double>(size) / static_cast<long double>(t));
            }
            ASSERT_EQ(static_cast<Index>(by_cluster.size()), clusters);
            for (const auto& [own, count] : by_cluster) {
              ASSERT_EQ(count, t);
            }
            const Index key_bytes = 8 * bytes_per_element(dtype);
            ASSERT_EQ(c.payload_bytes,
                      samples * head.pair_bytes() + clusters * (1 + t) * key_bytes);
            ASSERT_EQ(c.aux_bytes, 8 + 4 * clusters);
          }
        }
      }
    }
  }
}

TEST(ClusterGen, ZeroValuesAreNeverDrawn) {
  const KvHead none = line({0, 0, 0});
  const Compressed c =
      run(none, positions(0, 3), {{"delta", "0"}, {"t", "2"}, {"samples", "4"}}, 1);
  EXPECT_TRUE(c.held.tokens.empty());
  EXPECT_EQ(c.denominator->held.tokens, positions(0, 3));
  EXPECT_EQ(c.denominator->held.weights, (std::vector<float>{1, 1, 1}));
  // Slots without a pair are allocated all the same.
  EXPECT_EQ(c.payload_bytes, 4 * none.pair_bytes() + 3 * 3 * 8);
  const KvHead one = line({0, 0, 1e-30, 0});
  const Compressed single =
      run(one, positions(0, 4), {{"delta", "0"}, {"t", "2"}, {"samples", "4"}}, 1);
  EXPECT_EQ(single.held.tokens, (std::vector<Index>{2}));
  EXPECT_NEAR(static_cast<double>(single.held.weights[0]), 1.0, kFloat);
}

TEST(ClusterGen, DistanceEqualToDeltaJoins) {
  const KvHead head = line({1, 1, 1, 1, 1, 1});  // keys 0 .. 5
  const auto clusters = [&](const char* delta) {
    return diag(run(head, positions(0, 6), {{"delta", delta}, {"samples", "1"}}), "clusters");
  };
  EXPECT_EQ(clusters("0"), 6);
  EXPECT_EQ(clusters("0.999"), 6);
  EXPECT_EQ(clusters("1"), 3);
  EXPECT_EQ(clusters("1.999"), 3);
  EXPECT_EQ(clusters("2"), 2);
  EXPECT_EQ(clusters("5"), 1);
}

TEST(ClusterGen, BudgetIsNeverExceededAndDeltaIsTheSmallest) {
  for (const DType dtype : {DType::float16, DType::float32}) {
    const KvHead head = make_head({.n = 100, .dv = 4, .dtype = dtype}, 21);
    const Index pair = head.pair_bytes();
    const Index key = 8 * bytes_per_element(dtype);
    for (const Index m : {1, 2, 5, 50, 90}) {
      const std::vector<Index> tokens = positions(4, 4 + m);
      const Index least = std::min(m * pair, 8 + pair + 9 * key + 4);
      for (Index budget = 0; budget < (m + 3) * pair; budget += 1 + m * pair / 60) {
        if (budget < least) {
          try {
            run(head, tokens, {}, 0, budget);
            FAIL() << m << " " << budget;
          } catch (const Infeasible& e) {
            ASSERT_EQ(e.needed_bytes(), least);
          }
          continue;
        }
        const Compressed c = run(head, tokens, {}, 0, budget);
        ASSERT_LE(bytes_of(c, head), budget);
        if (budget >= m * pair) {  // everything fits: everything is kept
          ASSERT_EQ(c.held.tokens, tokens);
          ASSERT_TRUE(c.held.weights.empty());
          ASSERT_FALSE(c.denominator.has_value());
          continue;
        }
        const Index samples = diag(c, "samples");
        ASSERT_GE(samples, 1);
        const Index k = (budget - 8 - samples * pair) / (9 * key + 4);
        ASSERT_GE(k, 1);
        if (samples > 1) {
          ASSERT_LE(2 * samples * pair, budget);
        }
        const Clusters cover =
            online_clusters(head.k, tokens, smallest_delta(*cpu_rows(head.k, tokens), k));
        ASSERT_EQ(diag(c, "clusters"), static_cast<Index>(cover.representatives.size()));
        ASSERT_LE(diag(c, "clusters"), k);
      }
    }
  }
}

TEST(ClusterGen, NativeParametersAndBudgetsTogether) {
  const KvHead head = line(std::vector<double>(20, 1.0));  // pair 12 bytes, key 8
  const std::vector<Index> tokens = positions(0, 20);
  EXPECT_THROW(run(head, tokens, {}), InputError);
  EXPECT_THROW(run(head, tokens, {{"samples", "3"}}), InputError);
  // 10 clusters of 3 keys and a count: 280 bytes; as much again, or three times, for pairs.
  EXPECT_EQ(diag(run(head, tokens, {{"delta", "1"}, {"t", "2"}}), "samples"), 280 / 12);
  EXPECT_EQ(diag(run(head, tokens, {{"delta", "1"}, {"t", "2"}, {"share", "0.75"}}), "samples"),
            3 * 280 / 12);
  EXPECT_EQ(diag(run(head, tokens, {{"delta", "1"}, {"t", "2"}}, 0, 328), "samples"), 3);
  EXPECT_EQ(needed_bytes([&] { run(head, tokens, {{"delta", "1"}, {"t", "2"}}, 0, 299); }), 300);
  EXPECT_EQ(diag(run(head, tokens, {{"samples", "5"}, {"t", "1"}}, 0, 168), "clusters"), 5);
}

TEST(ClusterGen, OddInputs) {
  KvHead head = make_head({.n = 40}, 2);
  EXPECT_TRUE(run(head, {}, {}, 0, 0).held.tokens.empty());
  EXPECT_EQ(run(head, {7}, {}, 0, head.pair_bytes()).held.tokens, (std::vector<Index>{7}));
  repeat_first_row(head.k);
  const Compressed equal = run(head, positions(0, 40), {}, 0, 20 * head.pair_bytes());
  EXPECT_EQ(diag(equal, "clusters"), 1);
  float sum = 0.0F;
  for (const float w : equal.denominator->held.weights) {
    sum += w;
  }
  EXPECT_FLOAT_EQ(sum, 40.0F);
}

TEST(ClusterGenStream, EqualsCompressOfWhatHasLeft) {
  const KvHead head = make_head({.n = 120}, 6);
  const Given given = {{"delta", "3"}, {"t", "3"}, {"samples", "9"}};
  for (const auto& [sink, recent] : {std::pair<Index, Index>{0, 0},
                                     {0, 1},
                                     {0, 30},
                                     {0, 119},
                                     {0, 120},
                                     {0, 500},
                                     {7, 0},
                                     {16, 30},
                                     {119, 0},
                                     {130, 0},
                                     {60, 60}}) {
    StreamOf stream("clustergen", head, given, {sink, recent}, {}, 0);
    for (Index j = 0; j < 120; ++j) {
      stream.step();
      const Compressed c = stream.view();
      if (stream.left() > 0) {
        ASSERT_TRUE(same(c, run(head, positions(sink, sink + stream.left()), given)));
      } else {
        ASSERT_TRUE(c.held.tokens.empty() && c.denominator->held.tokens.empty());
      }
    }
  }
}

// A budget of all that is no sink holds just that, as it is.
TEST(ClusterGenStream, WithRoomForAllItKeepsAll) {
  const KvHead head = make_head({.n = 150, .nq = 150, .dtype = DType::float16}, 7);
  const Compressed c = StreamOf("clustergen", head, {}, {16, 10}, 124 * head.pair_bytes()).run();
  EXPECT_EQ(c.held.tokens, positions(16, 140));
  EXPECT_FALSE(c.denominator);
}

}  // namespace
}  // namespace kvbench::test_clustergen
