// The streams of h2o, cam and tova against step-by-step references, their memory, and causality.
#include "merge_checks.hpp"
#include "reference/eviction.hpp"
#include "stream_of.hpp"

namespace kvbench::test_stream_eviction {
namespace {

KvHead head_of(Index n, unsigned seed) {
  return make_head({.n = n, .nq = n, .dv = 5}, seed);
}

// Sinks none, fewer and more than the window; nearly all tokens; all of them.
constexpr ExactTokens kExact[] = {{0, 0},  {0, 7},  {3, 0},  {3, 7},
                                  {20, 7}, {50, 9}, {60, 7}, {70, 0}};

// Of a stream of 60 tokens with these parameters; without merging.
reference::EvictionReference reference_of(const ExactTokens& exact, Index tokens,
                                          double heavy_ratio) {
  reference::EvictionReference out;
  out.kept = std::clamp<Index>(60 - exact.recent - exact.sink, 0, tokens);
  out.heavy = static_cast<Index>(std::floor(heavy_ratio * static_cast<double>(out.kept)));
  out.window = exact.recent;
  out.sink = exact.sink;
  return out;
}

class StreamEvictionIn : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Both, StreamEvictionIn,
                         testing::Values(Precision::float32, Precision::float64));

TEST_P(StreamEvictionIn, H2oEqualsTheReferenceAtEveryStep) {
  KvHead head = head_of(60, 1);
  head.precision = GetParam();
  for (const ExactTokens& exact : kExact) {
    for (const Given& given : settings("tokens=0,1,2,11,53;heavy_ratio=0,0.5,1;reduce=mean,max")) {
      reference::EvictionReference reference =
          reference_of(exact, index_in(given, "tokens"), std::stod(given.at("heavy_ratio")));
      reference.reduce = reference::kReduces.at(given.at("reduce"));
      StreamOf cache("h2o", head, given, exact);
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

TEST(StreamEviction, CamEqualsTheReferenceAtEveryStep) {
  const KvHead head = head_of(60, 2);
  std::vector<double> draws(60);
  Rng(1, {"p", 0, 0}, "cam").stream("merge").uniforms(0, draws);
  for (const ExactTokens& exact : kExact) {
    for (const Given& given : settings("tokens=1,11,40;merge=1,4,32")) {
      reference::EvictionReference reference = reference_of(exact, index_in(given, "tokens"), 0.5);
      reference.merge = index_in(given, "merge");
      reference.draw = draws;
      StreamOf cache("cam", head, given, exact);
      for (Index j = 0; j < 60; ++j) {
        cache.step();
        reference.step(head, j);
        const Compressed c = cache.view();
        std::map<Index, reference::Merged> outside;
        for (const Index i : reference.outside(j)) {
          outside[i] = reference.held[i];
        }
        ASSERT_NO_FATAL_FAILURE(expect_merged(c, outside, 0)) << j;
        ASSERT_EQ(c.aux_bytes, 4 * static_cast<Index>(reference.score.size()));
      }
    }
  }
}

// TOVA by its definition: the token with the smallest softmax weight of this step goes.
TEST(StreamEviction, TovaEqualsItsDefinitionAtEveryStep) {
  const KvHead head = head_of(60, 8);
  for (const auto& [sink, recent] : kExact) {
    for (const Index kept : {0, 1, 11, 53}) {
      StreamOf cache("tova", head, {{"tokens", std::to_string(kept)}}, {sink, recent});
      std::vector<Index> held;  // sinks too
      for (Index j = 0; j < 60; ++j) {
        cache.step();
        held.push_back(j);
        const reference::Vec weight = reference::reduced(
            reference::weights_within(head, j, held, 0), reference::ReferenceReduce::sum);
        std::vector<std::pair<reference::Real, Index>> outside;
        for (std::size_t i = 0; i < held.size(); ++i) {
          if (held[i] >= sink && held[i] <= j - recent) {
            outside.emplace_back(weight[i], held[i]);
          }
        }
        if (static_cast<Index>(outside.size()) > kept) {
          const auto least = std::ranges::min_element(outside);
          std::erase(held, least->second);
          outside.erase(least);
        }
        std::vector<Index> left;
        for (const auto& [w, i] : outside) {
          left.push_back(i);
        }
        ASSERT_EQ(cache.view().held.tokens, left) << j;
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
