// The streams of exact, local, streamingllm, uniform and random-local against definitions that
// start from nothing at every step, and the law of the reservoirs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "algorithms/contract.hpp"
#include "algorithms/methods.hpp"
#include "core/error.hpp"
#include "make_head.hpp"

namespace kvbench::test_stream_simple {
namespace {

using Given = std::map<std::string, std::string>;

std::unique_ptr<StreamCache> open(const Method& m, const KvHead& head, const Given& given,
                                  std::optional<Index> budget = {}, Index recent = 0,
                                  std::uint64_t seed = 0, Index sink = 0) {
  return m.open_stream(
      {head, recent, budget, Rng(seed, {"p", 0, 0}, m.info.name), cpu_backend(), sink},
      Params(m.info.name, m.info.params, given));
}

KvHead long_head(Index n) {
  HeadShape shape;
  shape.n = shape.nq = n;
  shape.group = 1;
  return make_head(shape, 1);
}

// Calls check(arrivals so far, view) after every step; arrivals: tokens that left the window and
// are no sinks, of which the first is `sink`.
template <class Check>
void live(StreamCache& cache, Index n, Index recent, Check check, Index sink = 0) {
  for (Index j = 0; j < n; ++j) {
    cache.append(j, j - recent >= sink ? j - recent : -1);
    check(std::max<Index>(0, j + 1 - recent - sink), cache.view());
  }
}

TEST(StreamSimple, DeterministicOnesEqualTheirDefinitionAtEveryStep) {
  const KvHead head = long_head(60);
  for (const Index sink : {0, 1, 3, 4, 11, 59, 60, 100}) {
    for (const Index recent : {0, 1, 7, 60, 100}) {
      SCOPED_TRACE(testing::Message() << "sink " << sink << " recent " << recent);
      live(
          *open(method_exact(), head, {}, {}, recent, 0, sink), 60, recent,
          [&](Index m, const Compressed& c) {
            ASSERT_EQ(c.held.tokens, positions(sink, sink + m));
          },
          sink);
      for (const Index kept : {0, 1, 2, 5, 12, 60, 90}) {
        const Given tokens = {{"tokens", std::to_string(kept)}};
        live(
            *open(method_local(), head, tokens, {}, recent, 0, sink), 60, recent,
            [&](Index m, const Compressed& c) {
              ASSERT_EQ(c.held.tokens, positions(sink + std::max<Index>(0, m - kept), sink + m));
            },
            sink);
        live(
            *open(method_streamingllm(), head, tokens, {}, recent, 0, sink), 60, recent,
            [&](Index m, const Compressed& c) {
              const Index own = std::min(std::max<Index>(0, 4 - sink), kept);
              std::vector<Index> expected;
              for (Index i = 0; i < m; ++i) {
                if (i < own || i >= m - (kept - own)) {
                  expected.push_back(sink + i);
                }
              }
              ASSERT_EQ(c.held.tokens, expected);
            },
            sink);
      }
    }
  }
}

TEST(StreamSimple, SizesComeFromBudgetTokensOrT) {
  const KvHead head = long_head(64);
  const Index pair = head.pair_bytes();
  const auto kept = [&](const Method& m, const Given& given, std::optional<Index> budget,
                        Index recent, Index sink = 0) {
    const auto cache = open(m, head, given, budget, recent, 0, sink);
    std::size_t most = 0;
    live(
        *cache, 64, recent,
        [&](Index, const Compressed& c) {
          most = std::max(most, c.held.tokens.size());
          if (budget) {
            ASSERT_LE(static_cast<Index>(c.held.tokens.size()) * pair + c.aux_bytes, *budget);
          }
        },
        sink);
    EXPECT_EQ(most, cache->view().held.tokens.size());
    return most;
  };
  for (const Method& m :
       {method_local(), method_streamingllm(), method_uniform(), method_random_local()}) {
    const Index fixed = m.info.name == "uniform" ? 4 : 0;
    EXPECT_EQ(kept(m, {}, 10 * pair + fixed, 0), 10U) << m.info.name;
    EXPECT_EQ(kept(m, {}, 11 * pair + fixed - 1, 0), 10U);
    EXPECT_EQ(kept(m, {}, fixed, 0), 0U);
    EXPECT_EQ(kept(m, {}, Index{1} << 40, 0), 64U);
    EXPECT_EQ(kept(m, {{"T", "2"}}, {}, 0), 16U);
    EXPECT_EQ(kept(m, {{"T", "2"}}, {}, 16), 12U);
    EXPECT_EQ(kept(m, {{"T", "2"}}, {}, 16, 8), 10U);
    EXPECT_EQ(kept(m, {{"T", "2"}}, {}, 16, 48), 0U);
    EXPECT_EQ(kept(m, {{"T", "0"}}, {}, 0, Index{1} << 40), 0U);
    EXPECT_EQ(kept(m, {}, Index{1} << 40, Index{1} << 40, 3), 0U);
    EXPECT_EQ(kept(m, {}, Index{1} << 40, 10, 3), 51U);
    EXPECT_EQ(kept(m, {{"tokens", "9"}}, {}, 0), 9U);
    EXPECT_EQ(kept(m, {{"tokens", "9"}}, {}, 64), 0U);
    EXPECT_THROW(open(m, head, {}), InputError);
  }
  EXPECT_THROW(open(method_uniform(), head, {}, 3), Infeasible);
}

// Algorithm R again, slot by slot, from the words of the same stream.
std::set<Index> reservoir_reference(const std::vector<Index>& tokens, std::size_t capacity,
                                    RngStream stream) {
  std::vector<Index> slots;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i < capacity) {
      slots.push_back(tokens[i]);
    } else if (capacity > 0) {
      const std::uint64_t r = stream.next_below(i + 1);
      if (r < capacity) {
        slots[r] = tokens[i];
      }
    }
  }
  return {slots.begin(), slots.end()};
}

TEST(StreamSimple, ReservoirsEqualTheirReferenceAtEveryStep) {
  const KvHead head = long_head(80);
  for (const auto& window : {std::pair<Index, Index>{0, 0}, {0, 9}, {5, 0}, {5, 9}, {16, 60}}) {
    const Index sink = window.first;
    const Index recent = window.second;
    for (const Index kept : {0, 1, 2, 7, 30, 80}) {
      SCOPED_TRACE(testing::Message() << sink << " sinks, recent " << recent << ", kept " << kept);
      const Given tokens = {{"tokens", std::to_string(kept)}};
      const Index capacity = std::min<Index>(kept, 80 - recent - sink);
      const Rng rng(3, {"p", 0, 0}, "uniform");
      live(
          *open(method_uniform(), head, tokens, {}, recent, 3, sink), 80, recent,
          [&](Index m, const Compressed& c) {
            const std::set<Index> expected =
                reservoir_reference(positions(sink, sink + m), static_cast<std::size_t>(capacity),
                                    rng.stream("sample"));
            ASSERT_EQ(c.held.tokens, std::vector<Index>(expected.begin(), expected.end()));
            if (!expected.empty()) {  // the weights stand for the tokens that are no sinks
              ASSERT_FLOAT_EQ(c.held.common * static_cast<float>(expected.size()),
                              static_cast<float>(m));
            }
            ASSERT_EQ(c.aux_bytes, expected.empty() ? 0 : 4);
          },
          sink);
      const Rng other(3, {"p", 0, 0}, "random-local");
      live(
          *open(method_random_local(), head, tokens, {}, recent, 3, sink), 80, recent,
          [&](Index m, const Compressed& c) {
            const Index local = std::min(m, capacity - capacity / 2);
            std::set<Index> expected =
                reservoir_reference(positions(sink, sink + m - local),
                                    static_cast<std::size_t>(capacity / 2), other.stream("sample"));
            for (Index i = m - local; i < m; ++i) {
              expected.insert(sink + i);
            }
            ASSERT_EQ(c.held.tokens, std::vector<Index>(expected.begin(), expected.end()));
            ASSERT_EQ(c.held.common, 1.0F);
          },
          sink);
    }
  }
}

// Inclusion counts over 400 seeds: 10 of 40 without replacement, mean 100, variance 75; the
// standardised squares times 39/40 are chi-square with 39 degrees: 72.1 at level 0.001.
TEST(StreamSimple, EveryTokenIsEquallyLikelyInTheReservoir) {
  const KvHead head = long_head(40);
  std::vector<double> seen(40, 0.0);
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const auto cache = open(method_uniform(), head, {{"tokens", "10"}}, {}, 0, seed);
    live(*cache, 40, 0, [](Index, const Compressed&) {});
    for (const Index i : cache->view().held.tokens) {
      seen[i] += 1.0;
    }
  }
  double chi = 0.0;
  for (const double c : seen) {
    chi += (c - 100.0) * (c - 100.0) / 75.0;
  }
  EXPECT_LT(chi * 39.0 / 40.0, 72.1);
}

}  // namespace
}  // namespace kvbench::test_stream_simple
