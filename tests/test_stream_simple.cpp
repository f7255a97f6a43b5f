// The streams of exact, local, streamingllm, uniform and random-local against definitions that
// start from nothing at every step, and the law of the reservoirs.

#include <set>

#include "stream_of.hpp"

namespace kvbench::test_stream_simple {
namespace {

KvHead long_head(Index n) {
  return make_head({.n = n, .nq = n, .group = 1}, 1);
}

// Calls check(tokens that have left the window and are no sinks, view) after every step.
template <class Check>
void live(StreamOf stream, Index n, Check check) {
  for (Index j = 0; j < n; ++j) {
    stream.step();
    check(stream.left(), stream.view());
  }
}

TEST(StreamSimple, DeterministicOnesEqualTheirDefinitionAtEveryStep) {
  const KvHead head = long_head(60);
  for (const Index sink : {0, 1, 3, 4, 11, 59, 60, 100}) {
    for (const Index recent : {0, 1, 7, 60, 100}) {
      SCOPED_TRACE(testing::Message() << "sink " << sink << " recent " << recent);
      live({"exact", head, {}, {sink, recent}}, 60, [&](Index m, const Compressed& c) {
        ASSERT_EQ(c.held.tokens, positions(sink, sink + m));
      });
      for (const Index kept : {0, 1, 2, 5, 12, 60, 90}) {
        const Given tokens = {{"tokens", std::to_string(kept)}};
        live({"local", head, tokens, {sink, recent}}, 60, [&](Index m, const Compressed& c) {
          ASSERT_EQ(c.held.tokens, positions(sink + std::max<Index>(0, m - kept), sink + m));
        });
        live({"streamingllm", head, tokens, {sink, recent}}, 60, [&](Index m, const Compressed& c) {
          const Index own = std::min(std::max<Index>(0, 4 - sink), kept);
          std::vector<Index> expected;
          for (Index i = 0; i < m; ++i) {
            if (i < own || i >= m - (kept - own)) {
              expected.push_back(sink + i);
            }
          }
          ASSERT_EQ(c.held.tokens, expected);
        });
      }
    }
  }
}

// T halves what leaves the window and is no sink; budgets: test_streams.cpp.
TEST(StreamSimple, SizesComeFromTokensOrT) {
  const KvHead head = long_head(64);
  for (const char* name : {"local", "streamingllm", "uniform", "random-local"}) {
    const auto kept = [&](const Given& given, ExactTokens exact) {
      return StreamOf(name, head, given, exact).run().held.tokens.size();
    };
    EXPECT_EQ(kept({{"T", "2"}}, {0, 0}), 16U) << name;
    EXPECT_EQ(kept({{"T", "2"}}, {0, 16}), 12U);
    EXPECT_EQ(kept({{"T", "2"}}, {8, 16}), 10U);
    EXPECT_EQ(kept({{"T", "2"}}, {48, 16}), 0U);
    EXPECT_EQ(kept({{"T", "0"}}, {Index{1} << 40, 0}), 0U);
    EXPECT_EQ(kept({{"tokens", "9"}}, {0, 0}), 9U);
    EXPECT_EQ(kept({{"tokens", "9"}}, {0, 64}), 0U);
  }
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
  for (const ExactTokens& exact : {ExactTokens{0, 0}, {0, 9}, {5, 0}, {5, 9}, {16, 60}}) {
    const Index sink = exact.sink;
    for (const Index kept : {0, 1, 2, 7, 30, 80}) {
      SCOPED_TRACE(testing::Message() << sink << " " << exact.recent << ", kept " << kept);
      const Given tokens = {{"tokens", std::to_string(kept)}};
      const Index capacity = std::min<Index>(kept, 80 - exact.recent - sink);
      const auto reservoir = [&](const char* name, Index end, Index size) {
        return reservoir_reference(positions(sink, end), static_cast<std::size_t>(size),
                                   Rng(3, {"p", 0, 0}, name).stream("sample"));
      };
      live({"uniform", head, tokens, exact, {}, 3}, 80, [&](Index m, const Compressed& c) {
        const std::set<Index> expected = reservoir("uniform", sink + m, capacity);
        ASSERT_EQ(c.held.tokens, std::vector<Index>(expected.begin(), expected.end()));
        if (!expected.empty()) {  // the weights stand for the tokens that are no sinks
          ASSERT_FLOAT_EQ(c.held.common * static_cast<float>(expected.size()),
                          static_cast<float>(m));
        }
        ASSERT_EQ(c.aux_bytes, expected.empty() ? 0 : 4);
      });
      live({"random-local", head, tokens, exact, {}, 3}, 80, [&](Index m, const Compressed& c) {
        const Index local = std::min(m, capacity - capacity / 2);
        std::set<Index> expected = reservoir("random-local", sink + m - local, capacity / 2);
        for (Index i = m - local; i < m; ++i) {
          expected.insert(sink + i);
        }
        ASSERT_EQ(c.held.tokens, std::vector<Index>(expected.begin(), expected.end()));
        ASSERT_EQ(c.held.common, 1.0F);
      });
    }
  }
}

// Inclusion counts over 400 seeds: 10 of 40 without replacement, mean 100, variance 75; the
// standardised squares times 39/40 are chi-square with 39 degrees: 72.1 at level 0.001.
TEST(StreamSimple, EveryTokenIsEquallyLikelyInTheReservoir) {
  const KvHead head = long_head(40);
  std::vector<double> seen(40, 0.0);
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    StreamOf stream("uniform", head, {{"tokens", "10"}}, {}, {}, seed);
    for (const Index i : stream.run().held.tokens) {
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
