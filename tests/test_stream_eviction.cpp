// The streams of h2o, cam and tova against step-by-step references, their memory, and causality.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "reference/eviction.hpp"
#include "reference/reference.hpp"
#include "stream_of.hpp"

namespace kvbench::test_stream_eviction {
namespace {

// Values are merged in float32 storage, one rounding per merge.
constexpr double kStoreTolerance = 1e-5;

KvHead head_of(Index n, unsigned seed) {
  return make_head({.n = n, .nq = n, .dv = 5}, seed);
}

// Sinks none, fewer and more than the window; nearly all tokens; all of them.
constexpr ExactTokens kExact[] = {{0, 0},  {0, 7},  {3, 0},  {3, 7},
                                  {20, 7}, {50, 9}, {60, 7}, {70, 0}};

class StreamEvictionIn : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Both, StreamEvictionIn,
                         testing::Values(Precision::float32, Precision::float64));

TEST_P(StreamEvictionIn, H2oEqualsTheReferenceAtEveryStep) {
  KvHead head = head_of(60, 1);
  head.precision = GetParam();
  for (const auto& [sink, recent] : kExact) {
    for (const Index kept : {0, 1, 2, 11, 53}) {
      for (const double ratio : {0.0, 0.5, 1.0}) {
        for (const char* reduce : {"mean", "max"}) {
          reference::EvictionReference reference;
          reference.kept = std::clamp<Index>(60 - recent - sink, 0, kept);
          reference.heavy =
              static_cast<Index>(std::floor(ratio * static_cast<double>(reference.kept)));
          reference.window = recent;
          reference.sink = sink;
          reference.largest = std::string(reduce) == "max";
          StreamOf cache("h2o", head,
                         {{"tokens", std::to_string(kept)},
                          {"heavy_ratio", std::to_string(ratio)},
                          {"reduce", reduce}},
                         {sink, recent});
          for (Index j = 0; j < 60; ++j) {
            cache.step();
            reference.step(head, j);
            const Compressed c = cache.view();
            ASSERT_EQ(c.held.tokens, reference.outside(j)) << j;
            ASSERT_EQ(c.aux_bytes, 4 * static_cast<Index>(reference.score.size()));
          }
        }
      }
    }
  }
}

TEST(StreamEviction, CamEqualsTheReferenceAtEveryStep) {
  const KvHead head = head_of(60, 2);
  const RngStream draws = Rng(1, {"p", 0, 0}, "cam").stream("merge");
  for (const auto& [sink, recent] : kExact) {
    for (const Index kept : {1, 11, 40}) {
      for (const Index merge : {1, 4, 32}) {
        reference::EvictionReference reference;
        reference.kept = std::clamp<Index>(60 - recent - sink, 0, kept);
        reference.heavy = reference.kept / 2;
        reference.window = recent;
        reference.sink = sink;
        std::map<Index, reference::Vec> values;  // of all tokens, as they stand
        std::map<Index, bool> changed;
        for (Index i = 0; i < 60; ++i) {
          values[i] = reference::rows_of(head.v)[i];
        }
        StreamOf cache("cam", head,
                       {{"tokens", std::to_string(kept)}, {"merge", std::to_string(merge)}},
                       {sink, recent});
        for (Index j = 0; j < 60; ++j) {
          cache.step();
          const auto [evicted, score] = reference.step(head, j);
          std::vector<Index> behind;
          reference::Real sum = 0;
          for (const Index i : reference.outside(j)) {
            if (evicted >= 0 && i > evicted && static_cast<Index>(behind.size()) < merge) {
              behind.push_back(i);
              sum += static_cast<reference::Real>(reference.score[i]);
            }
          }
          const auto width = static_cast<reference::Real>(behind.size());
          if (!behind.empty() &&
              static_cast<reference::Real>(draws.uniform(static_cast<std::uint64_t>(evicted))) <
                  static_cast<reference::Real>(score) / (sum / width)) {
            for (const Index i : behind) {
              for (std::size_t t = 0; t < 5; ++t) {
                values[i][t] += values[evicted][t] / width;
              }
              changed[i] = true;
            }
          }
          const Compressed c = cache.view();
          std::vector<Index> exact;
          Index row = 0;
          for (const Index i : reference.outside(j)) {
            if (!changed[i]) {
              exact.push_back(i);
              continue;
            }
            ASSERT_LT(row, c.made.v.rows());
            ASSERT_TRUE(std::equal(head.k.row(i), head.k.row(i) + 8, c.made.k.row(row)));
            for (std::size_t t = 0; t < 5; ++t) {
              const auto e = static_cast<double>(values[i][t]);
              ASSERT_TRUE(std::abs(static_cast<double>(c.made.v.row(row)[t]) - e) <=
                          kStoreTolerance * (1.0 + std::abs(e)));
            }
            ++row;
          }
          ASSERT_EQ(c.held.tokens, exact) << j;
          ASSERT_EQ(c.made.v.rows(), row);
          ASSERT_EQ(c.aux_bytes, 4 * static_cast<Index>(reference.score.size()));
        }
      }
    }
  }
}

// TOVA by its definition: the token with the smallest softmax weight of this step goes.
TEST(StreamEviction, TovaEqualsItsDefinitionAtEveryStep) {
  const KvHead head = head_of(60, 8);
  const reference::Rows k = reference::rows_of(head.k);
  for (const auto& [sink, recent] : kExact) {
    for (const Index kept : {0, 1, 11, 53}) {
      StreamOf cache("tova", head, {{"tokens", std::to_string(kept)}}, {sink, recent});
      std::vector<Index> held;  // sinks too
      for (Index j = 0; j < 60; ++j) {
        cache.step();
        held.push_back(j);
        std::map<Index, reference::Real> weight;
        for (const Matrix& queries : head.q) {
          const reference::Vec q = reference::rows_of(queries)[j];
          const auto term = [&](Index i) {
            return std::exp(static_cast<reference::Real>(head.scale) * reference::dot(k[i], q));
          };
          reference::Real sum = 0;
          for (const Index i : held) {
            sum += term(i);
          }
          for (const Index i : held) {
            weight[i] += term(i) / sum;
          }
        }
        std::vector<Index> outside;
        for (const Index i : held) {
          if (i >= sink && i <= j - recent) {
            outside.push_back(i);
          }
        }
        if (static_cast<Index>(outside.size()) > kept) {
          const auto least =
              std::min_element(outside.begin(), outside.end(),
                               [&](Index a, Index b) { return weight[a] < weight[b]; });
          held.erase(std::find(held.begin(), held.end(), *least));
          outside.erase(least);
        }
        ASSERT_EQ(cache.view().held.tokens, outside) << j;
        ASSERT_EQ(cache.view().aux_bytes, 0);
      }
    }
  }
}

// Zero queries give equal weights to all: of equal ones the latest goes, so tova keeps the first.
TEST(StreamEviction, OfEqualWeightsTheLatestGoes) {
  KvHead head = head_of(40, 5);
  for (Matrix& q : head.q) {
    std::fill_n(q.data(), 40 * 8, 0.0F);
  }
  for (const Index kept : {0, 1, 10}) {
    const Given given = {{"tokens", std::to_string(kept)}};
    EXPECT_EQ(StreamOf("tova", head, given, {0, 3}).run().held.tokens, positions(0, kept));
  }
}

}  // namespace
}  // namespace kvbench::test_stream_eviction
