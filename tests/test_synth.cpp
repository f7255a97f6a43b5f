// Synthetic traces: reproducible, in range, and the planted structure is there at the strength
// that the options state.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/error.hpp"
#include "files.hpp"
#include "refusal.hpp"
#include "trace/reader.hpp"
#include "trace/synth.hpp"
#include "trace_files.hpp"

namespace kvbench::test_synth {
namespace {

using testing_replay::read_bytes;
using testing_traces::temporary_path;

double dot(const float* a, const float* b, Index size) {
  return std::inner_product(a, a + size, b, 0.0);
}

double norm(const float* a, Index size) {
  return std::sqrt(dot(a, a, size));
}

// Nothing planted, keys at their cluster centres, exact storage.
SynthOptions plain() {
  SynthOptions o;
  o.layers = 1;
  o.q_heads = 1;
  o.kv_heads = 1;
  o.n = 512;
  o.dtype = DType::float32;
  o.cluster_radius = 0;
  o.query_noise = 0;
  o.topic_strength = 0;
  o.recency = 0;
  o.sinks = 0;
  o.heavy_fraction = 0;
  o.needle_strength = 0;
  return o;
}

KvHead make(const SynthOptions& o) {
  const std::string path = temporary_path("t.h5");
  synth(o, path);
  return TraceReader(path).read_head(0, 0, 0);
}

double logit(const KvHead& head, Index query_row, Index token) {
  return head.scale * dot(head.q[0].row(query_row), head.k.row(token), head.d());
}

// float32 keys and queries of norm ~10 to 100: products are good to about 1e-5.
constexpr double kLogitError = 1e-3;

TEST(Synth, SameOptionsGiveTheSameFile) {
  SynthOptions o;
  o.n = 300;
  o.needle_strength = 5;
  synth(o, temporary_path("a.h5"));
  synth(o, temporary_path("b.h5"));
  EXPECT_EQ(read_bytes(temporary_path("a.h5")), read_bytes(temporary_path("b.h5")));
  o.seed = 1;
  synth(o, temporary_path("b.h5"));
  EXPECT_NE(read_bytes(temporary_path("a.h5")), read_bytes(temporary_path("b.h5")));
}

TEST(Synth, ShapesAreAsAsked) {
  SynthOptions o;
  o.prompts = 2;
  o.layers = 3;
  o.q_heads = 6;
  o.kv_heads = 3;
  o.n = 70;
  o.nq = 20;
  o.d = 16;
  o.dv = 5;
  o.dtype = DType::bfloat16;
  o.scale = 0.5;
  const std::string path = temporary_path("t.h5");
  synth(o, path);
  const TraceReader reader(path);
  ASSERT_EQ(reader.meta().prompts.size(), 2U);
  EXPECT_EQ(reader.meta().dtype, DType::bfloat16);
  for (const PromptMeta& p : reader.meta().prompts) {
    ASSERT_EQ(p.layers.size(), 3U);
    for (const LayerMeta& l : p.layers) {
      EXPECT_EQ(std::tuple(l.q_heads, l.kv_heads, l.n, l.nq, l.d, l.dv, l.scale),
                std::tuple(6, 3, 70, 20, 16, 5, 0.5));
    }
  }
  const KvHead a = reader.read_head(0, 0, 0);
  const KvHead b = reader.read_head(1, 2, 2);
  EXPECT_NE(a.k.row(30)[0], b.k.row(30)[0]);
}

TEST(Synth, KeysSitInTheirClusters) {
  SynthOptions o = plain();
  o.clusters = 4;
  const KvHead head = make(o);
  std::vector<const float*> distinct;
  Index changes = 0;
  for (Index i = 0; i < head.n(); ++i) {
    EXPECT_NEAR(norm(head.k.row(i), head.d()), o.key_norm, 1e-4);
    const bool known = std::any_of(distinct.begin(), distinct.end(), [&](const float* c) {
      return std::equal(c, c + head.d(), head.k.row(i));
    });
    if (!known) {
      distinct.push_back(head.k.row(i));
    }
    changes += i > 0 && !std::equal(head.k.row(i), head.k.row(i) + head.d(), head.k.row(i - 1));
  }
  EXPECT_EQ(distinct.size(), 4U);
  // 512 / 32 changes are drawn, and three in four land in another cluster.
  EXPECT_GT(changes, 3);
  EXPECT_LT(changes, 30);
}

TEST(Synth, TopicStrengthPullsToTheOwnCluster) {
  SynthOptions o = plain();
  o.topic_strength = 3;
  const KvHead head = make(o);
  for (Index i = 0; i < head.n(); ++i) {
    EXPECT_NEAR(logit(head, i, i), 3, kLogitError);
  }
}

TEST(Synth, QueryNoiseHasTheStatedDeviation) {
  SynthOptions o = plain();
  o.query_noise = 2;
  const KvHead head = make(o);
  double sum = 0;
  for (Index i = 0; i < head.n(); ++i) {
    sum += std::pow(logit(head, i, 0), 2);
  }
  // 512 draws: the deviation's own error is 2 / sqrt(1024), about 0.06.
  EXPECT_NEAR(std::sqrt(sum / static_cast<double>(head.n())), 2, 0.3);
}

TEST(Synth, SinksAttractEveryQueryAndWeighLittle) {
  SynthOptions o = plain();
  o.sinks = 4;
  o.sink_strength = 7;
  const KvHead head = make(o);
  for (Index r = 0; r < head.nq(); r += 37) {
    for (Index i = 0; i < 4; ++i) {
      EXPECT_NEAR(logit(head, r, i), 7, kLogitError);
    }
    EXPECT_NEAR(logit(head, r, 100), 0, kLogitError);
  }
  EXPECT_NEAR(norm(head.k.row(0), head.d()), o.sink_norm * o.key_norm, 1e-4);
  EXPECT_NEAR(norm(head.v.row(0), head.dv()), o.sink_value * o.value_norm, 1e-5);
  EXPECT_NEAR(norm(head.v.row(9), head.dv()), o.value_norm, 1e-5);
}

TEST(Synth, HeavyHittersAreTheStatedFraction) {
  SynthOptions o = plain();
  o.n = 4000;
  o.nq = 1;
  o.heavy_fraction = 0.1;
  o.heavy_strength = 5;
  const KvHead head = make(o);
  Index heavy = 0;
  for (Index i = 0; i < head.n(); ++i) {
    const double s = logit(head, 0, i);
    EXPECT_TRUE(std::abs(s) < kLogitError || std::abs(s - 5) < kLogitError) << s;
    heavy += s > 2.5 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(heavy), 400, 5 * std::sqrt(400.0));
}

TEST(Synth, OnlyTheLastQueriesSeeTheNeedle) {
  SynthOptions o = plain();
  o.needle_strength = 9;
  o.needle_position = 0.25;
  o.needle_queries = 10;
  const KvHead head = make(o);
  EXPECT_NEAR(logit(head, 511, 128), 9, kLogitError);
  EXPECT_NEAR(logit(head, 502, 128), 9, kLogitError);
  EXPECT_NEAR(logit(head, 501, 128), 0, kLogitError);
  EXPECT_NEAR(logit(head, 511, 129), 0, kLogitError);
}

TEST(Synth, RecencyFallsWithDistance) {
  SynthOptions o = plain();
  o.recency = 6;
  o.recency_window = 20;
  const KvHead head = make(o);
  EXPECT_NEAR(logit(head, 511, 511), 6, kLogitError);
  EXPECT_GT(logit(head, 511, 506), 5);
  double far = 0;
  for (Index i = 0; i < 300; ++i) {
    far += logit(head, 511, i) / 300;
  }
  EXPECT_NEAR(far, 0, 1);
}

TEST(Synth, ValueNormsSpreadLogUniformly) {
  SynthOptions o = plain();
  o.n = 4000;
  o.nq = 1;
  o.value_decades = 4;
  const KvHead head = make(o);
  std::vector<double> logs;
  for (Index i = 0; i < head.n(); ++i) {
    logs.push_back(std::log10(norm(head.v.row(i), head.dv()) / o.value_norm));
  }
  std::sort(logs.begin(), logs.end());
  EXPECT_GE(logs.front(), -2.001);
  EXPECT_LE(logs.back(), 2.001);
  EXPECT_NEAR(logs[1000], -1, 0.15);
  EXPECT_NEAR(logs[2000], 0, 0.15);
  EXPECT_NEAR(logs[3000], 1, 0.15);
}

TEST(Synth, OffsetMovesAllKeysAlike) {
  SynthOptions o = plain();
  const KvHead before = make(o);
  o.key_offset = 50;
  const KvHead after = make(o);
  Matrix shift(1, before.d());
  for (Index j = 0; j < before.d(); ++j) {
    shift.row(0)[j] = after.k.row(0)[j] - before.k.row(0)[j];
  }
  EXPECT_NEAR(norm(shift.row(0), before.d()), 50, 1e-3);
  for (Index i = 0; i < before.n(); i += 50) {
    for (Index j = 0; j < before.d(); ++j) {
      EXPECT_NEAR(after.k.row(i)[j] - before.k.row(i)[j], shift.row(0)[j], 1e-4);
    }
  }
}

TEST(Synth, RefusesOptionsOutOfRange) {
  SynthOptions o;
  check(o);
  o.needle_strength = 1;  // otherwise needle_queries has no range
  const auto refused = [&]<class T>(const char* name, T& member, SynthRange range, const char*) {
    const T good = member;
    std::vector<double> beyond{range.low - (range.open_low ? 0 : 1),
                               range.high + (range.open_high ? 0 : 1)};
    if constexpr (!std::is_integral_v<T>) {
      beyond.push_back(NAN);
    }
    for (const double bad : beyond) {
      member = static_cast<T>(bad);
      testing_replay::expect_refusal([&] { check(o); }, fmt::format("synth: {} must be", name));
    }
    member = good;
  };
  each_shape(o, refused);
  each_plant(o, refused);
  check(o);
  const auto line = [](const std::function<void(SynthOptions&)>& change) {
    SynthOptions bad;
    change(bad);
    return testing_replay::refusal([&] { check(bad); });
  };
  EXPECT_EQ(line([](auto& x) { x.q_heads = 3; }),
            "synth: q_heads must be a multiple of kv_heads = 2, got 3");
  EXPECT_EQ(line([](auto& x) { x.nq = 2049; }), "synth: nq must be in [0, 2048], got 2049");
  EXPECT_EQ(line([](auto& x) { x.scale = 0; }), "synth: scale must be in (0, 1000000], got 0");
}

TEST(Synth, RefusesValuesBeyondTheType) {
  SynthOptions o;
  o.n = 16;
  o.key_norm = 1e6;
  const std::string path = temporary_path("t.h5");
  EXPECT_THROW(synth(o, path), InputError);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

}  // namespace
}  // namespace kvbench::test_synth
