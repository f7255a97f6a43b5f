// balancekv-stream: the offline reference on the same signs, the byte budget at every moment,
// erasures, and that a larger t errs less. The levels alone: test_merge_and_reduce.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "algorithms/contract.hpp"
#include "algorithms/methods.hpp"
#include "compressed.hpp"
#include "core/error.hpp"
#include "make_head.hpp"
#include "reference/merge_and_reduce.hpp"
#include "reference/reference.hpp"

namespace kvbench::test_balancekv_stream {
namespace {

using Given = std::map<std::string, std::string>;

constexpr const char* kName = "balancekv-stream";

std::unique_ptr<StreamCache> open(const KvHead& head, const Given& given,
                                  std::optional<Index> budget = {}, Index recent = 0,
                                  std::uint64_t seed = 0, Index sink = 0) {
  static const Method method = method_balancekv_stream();
  const StreamTask task{head, recent, budget, Rng(seed, {"p", 0, 0}, kName), cpu_backend(), sink};
  return method.open_stream(task, Params(kName, method.info.params, given));
}

void feed(StreamCache& cache, Index j, Index recent = 0, Index sink = 0) {
  cache.append(j, j - recent >= sink ? j - recent : -1);
}

Compressed run(const KvHead& head, const Given& given, std::optional<Index> budget = {},
               Index recent = 0, std::uint64_t seed = 0) {
  const auto cache = open(head, given, budget, recent, seed);
  for (Index j = 0; j < head.n(); ++j) {
    feed(*cache, j, recent);
  }
  return cache->view();
}

Index bytes_of(const Compressed& c, const KvHead& head) {
  return static_cast<Index>(c.held.tokens.size()) * head.pair_bytes() +
         static_cast<Index>(c.denominator->held.tokens.size()) * head.d() *
             bytes_per_element(head.dtype) +
         c.aux_bytes;
}

using Weights = std::map<Index, double>;

Weights weights_of(const HeldTokens& held) {
  Weights out;
  for (std::size_t i = 0; i < held.tokens.size(); ++i) {
    out[held.tokens[i]] = static_cast<double>(held.weight(i));
  }
  return out;
}

// All arrivals so far through the offline reference; the walks are reference::walk on the same
// uniforms.
void add_reference(const KvHead& head, const std::vector<Index>& tokens, const std::string& name,
                   Index t, Index levels, const reference::WalkReference& walk, Weights& out) {
  const reference::Rows k = reference::rows_of(head.k);
  const reference::Rows v = reference::rows_of(head.v);
  const Rng rng(0, {"p", 0, 0}, kName);
  const auto halve = [&](const std::vector<Index>& block, Index level, Index number) {
    std::vector<double> uniforms(block.size());
    rng.stream("walk-" + name + "-" + std::to_string(t) + "-" + std::to_string(level) + "-" +
               std::to_string(number))
        .uniforms(0, uniforms);
    reference::Rows keys, values;
    for (const Index i : block) {
      keys.push_back(k[i]);
      values.push_back(name == "denominator" ? reference::Vec{1} : v[i]);
    }
    const reference::Vec ones(block.size(), 1);
    return reference::smaller_half(block, reference::walk(keys, values, ones, walk, uniforms).sign);
  };
  const auto c = reference::merge_and_reduce(tokens, t, levels, halve);
  for (std::size_t l = 0; l < c.size(); ++l) {
    for (const Index token : c[l]) {
      out[token] = std::ldexp(1.0, static_cast<int>(l));
    }
  }
}

TEST(BalanceKvStream, EqualsTheOfflineReferenceAtEveryStep) {
  HeadShape shape;
  shape.n = shape.nq = 180;
  shape.value_norm = 1.5;
  KvHead head = make_head(shape, 5);
  std::fill_n(head.v.row(20), 8, 0.0F);  // a zero value: in the denominator alone
  const auto check = [&](const Given& given, const reference::WalkReference& walk, Index t,
                         Index levels, Index sink = 0, Index recent = 0) {
    const auto cache = open(head, given, {}, recent, 0, sink);
    std::vector<Index> all;
    std::map<int, std::vector<Index>> buckets;
    for (Index j = 0; j < head.n(); ++j) {
      feed(*cache, j, recent, sink);
      const Index left = j - recent;
      long double square = 0;
      for (Index c = 0; left >= sink && c < 8; ++c) {
        square += static_cast<long double>(head.v.row(left)[c]) * head.v.row(left)[c];
      }
      if (left >= sink) {
        all.push_back(left);
      }
      if (square > 0) {
        buckets[reference::norm_bucket(std::sqrt(square))].push_back(left);
      }
      if (j % 17 != 0 && j + 1 != head.n()) {
        continue;
      }
      const Compressed c = cache->view();
      Weights numerator, denominator;
      for (const auto& [bucket, tokens] : buckets) {
        add_reference(head, tokens, "numerator" + std::to_string(bucket), t, levels, walk,
                      numerator);
      }
      add_reference(head, all, "denominator", t, levels, walk, denominator);
      ASSERT_EQ(weights_of(c.held), numerator) << j;
      ASSERT_EQ(weights_of(c.denominator->held), denominator) << j;
      ASSERT_EQ(diag_number(c, "buckets"), static_cast<double>(buckets.size()));
      ASSERT_EQ(diag_number(c, "weight_sum"), static_cast<double>(all.size()));
    }
  };
  reference::WalkReference walk;
  walk.scale = static_cast<reference::Real>(head.scale);
  walk.step = reference::ReferenceStep::self;
  check({{"t", "8"}, {"step", "self"}, {"fill", "order"}}, walk, 8, 5);
  check({{"t", "8"}, {"step", "self"}, {"fill", "order"}}, walk, 8, 5, 5);
  check({{"t", "8"}, {"step", "self"}, {"fill", "order"}}, walk, 8, 5, 16, 20);
  check({{"t", "8"}, {"step", "self"}, {"fill", "order"}}, walk, 8, 5, 170, 20);
  check({{"t", "6"}, {"T", "2"}, {"step", "self"}, {"fill", "order"}}, walk, 6, 2);
  walk.step = reference::ReferenceStep::theory;
  walk.center = false;
  check({{"T", "4"}, {"step", "theory"}, {"fill", "order"}, {"center", "none"}}, walk, 12, 4);
  walk.step = reference::ReferenceStep::greedy;
  check({{"t", "32"}, {"fill", "order"}, {"center", "none"}}, walk, 32, 3);
}

TEST(BalanceKvStream, MemoryNeverExceedsTheBudgetAndWeightsStayExact) {
  int feasible = 0;
  for (const DType dtype : {DType::float16, DType::float32}) {
    for (const double spread : {0.0, 1.0, 4.0}) {
      HeadShape shape;
      shape.n = shape.nq = 300;
      shape.dv = 4;
      shape.dtype = dtype;
      KvHead head = make_head(shape, 7);
      for (Index i = 0; i < 300; ++i) {  // up to nine more buckets
        const double factor = std::exp2(spread * std::sin(static_cast<double>(i)));
        for (Index c = 0; c < 4; ++c) {
          head.v.row(i)[c] *= static_cast<float>(factor);
        }
      }
      const Index full = head.n() * head.pair_bytes();
      for (const double rho : {0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 2.0}) {
        for (const auto& [sink, recent] :
             {std::pair<Index, Index>{0, 0}, {0, 13}, {16, 0}, {16, 13}}) {
          const auto budget = static_cast<Index>(rho * static_cast<double>(full));
          Index j = 0;
          try {
            const auto cache = open(head, {}, budget, recent, 0, sink);
            for (; j < head.n(); ++j) {
              feed(*cache, j, recent, sink);
              const Compressed c = cache->view();
              const double arrived = static_cast<double>(std::max<Index>(0, j + 1 - recent - sink));
              ASSERT_LE(bytes_of(c, head), budget);
              ASSERT_LE(diag_number(c, "peak"), static_cast<double>(budget));
              ASSERT_EQ(weight_sum(c.held), arrived);
              ASSERT_EQ(weight_sum(c.denominator->held), arrived);
            }
            ++feasible;
          } catch (const Infeasible& e) {
            EXPECT_GT(e.needed_bytes(), budget);
            EXPECT_LE(rho, 0.3) << spread << " " << j;  // eleven buckets of 300 tokens
          }
        }
      }
    }
  }
  EXPECT_GE(feasible, 140);
}

// Plenty of room: nothing is halved, and the estimate is exact.
TEST(BalanceKvStream, WithRoomForAllItKeepsAll) {
  HeadShape shape;
  shape.n = shape.nq = 100;
  const KvHead head = make_head(shape, 2);
  const Compressed c = run(head, {}, Index{1} << 30);
  EXPECT_EQ(c.held.tokens, positions(0, 100));
  EXPECT_EQ(c.denominator->held.tokens, positions(0, 100));
  EXPECT_EQ(weight_sum(c.held), 100.0);
  EXPECT_EQ(c.aux_bytes, 16 + 16 * (1 + static_cast<Index>(diag_number(c, "buckets"))));
  EXPECT_TRUE(std::isinf(diag_number(c, "log10_epsilon_theorem")));
}

std::vector<reference::Weighted> entries(const KvHead& head, const HeldTokens& held) {
  const reference::Rows k = reference::rows_of(head.k);
  const reference::Rows v = reference::rows_of(head.v);
  std::vector<reference::Weighted> out;
  for (std::size_t i = 0; i < held.tokens.size(); ++i) {
    const auto at = static_cast<std::size_t>(held.tokens[i]);
    out.push_back({k[at], v[at], static_cast<reference::Real>(held.weight(i))});
  }
  return out;
}

// Measured epsilon of the theorem, BalanceKV eq. 2, at the last position.
double measured_epsilon(const KvHead& head, const Compressed& c) {
  const reference::Attention truth = reference::attention(head, 0, head.n() - 1);
  const reference::Vec q = reference::rows_of(head.q[0]).back();
  const reference::Estimate e =
      reference::estimate(q, static_cast<reference::Real>(head.scale), entries(head, c.held),
                          entries(head, c.denominator->held));
  reference::Real square = 0;
  for (std::size_t t = 0; t < e.z.size(); ++t) {
    square += (e.z[t] - truth.out[t]) * (e.z[t] - truth.out[t]);
  }
  reference::Real frobenius = 0;
  for (const reference::Vec& v : reference::rows_of(head.v)) {
    frobenius += reference::dot(v, v);
  }
  return static_cast<double>(std::sqrt(square / (reference::dot(truth.p, truth.p) * frobenius)));
}

// Mean over 30 seeds; a factor of four in t is far outside of the mean's spread.
TEST(BalanceKvStream, ErrorFallsWithTheBatchSizeAndIsBelowTheTheorems) {
  HeadShape shape;
  shape.n = shape.nq = 512;
  shape.key_norm = 1.0;
  shape.group = 1;
  const KvHead head = make_head(shape, 9);
  double last = std::numeric_limits<double>::infinity();
  for (const char* t : {"4", "16", "64", "256"}) {
    double sum = 0.0;
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      const Compressed c = run(head, {{"t", t}}, {}, 0, seed);
      const double epsilon = measured_epsilon(head, c);
      sum += epsilon;
      const double theorem = std::pow(10.0, diag_number(c, "log10_epsilon_theorem"));
      EXPECT_LT(epsilon, theorem);
      EXPECT_TRUE(std::isfinite(theorem));
    }
    EXPECT_LT(sum / 30.0, last) << t;
    last = sum / 30.0;
  }
  EXPECT_GT(last, 0.0);
}

TEST(BalanceKvStream, ErasesWhatLiesBelowTheBoundAndOnlyThat) {
  HeadShape shape;
  shape.n = shape.nq = 64;
  KvHead head = make_head(shape, 4);
  std::fill_n(head.v.data(), 64 * 8, 0.0F);
  for (Index i = 0; i < 64; ++i) {
    // |v| = 2^-20 at first, 1 in the middle, then both in turns.
    const bool small = i < 20 || (i >= 40 && i % 2 == 0);
    head.v.row(i)[0] = small ? std::ldexp(1.0F, -20) : 1.0F;
  }
  // r = 0, epsilon = 1: the bound is v_max / 128, and 2^-19 is below it once a 1 has come.
  const auto cache = open(head, {{"t", "64"}, {"epsilon", "1"}, {"r", "0"}});
  for (Index j = 0; j < 20; ++j) {
    feed(*cache, j);
  }
  EXPECT_EQ(cache->view().held.tokens.size(), 20U);
  EXPECT_EQ(diag_number(cache->view(), "erasures"), 0.0);
  feed(*cache, 20);
  EXPECT_EQ(cache->view().held.tokens, (std::vector<Index>{20}));
  EXPECT_EQ(diag_number(cache->view(), "erasures"), 1.0);
  for (Index j = 21; j < 64; ++j) {
    feed(*cache, j);
  }
  EXPECT_EQ(diag_number(cache->view(), "erasures"), 1.0 + 12.0);
  EXPECT_EQ(diag_number(cache->view(), "erased_weight"), 20.0 + 12.0);
  EXPECT_EQ(diag_number(cache->view(), "numerator_weight_sum"), 32.0);
  EXPECT_EQ(diag_number(cache->view(), "weight_sum"), 64.0);
  // exp(-s r^2) lowers the bound: with keys as they are nothing is small enough.
  EXPECT_EQ(diag_number(run(head, {{"t", "64"}, {"epsilon", "1"}, {"r", "10"}}), "erasures"), 0.0);
  // The bucket's upper end counts: 2^-7 = v_max / 128 itself is kept in its bucket [2^-7, 2^-6).
  for (Index i = 0; i < 64; ++i) {
    head.v.row(i)[0] = i % 2 == 0 ? 1.0F : std::ldexp(1.0F, -7);
  }
  EXPECT_EQ(diag_number(run(head, {{"t", "64"}, {"epsilon", "1"}, {"r", "0"}}), "erasures"), 0.0);
  for (Index i = 1; i < 64; i += 2) {
    head.v.row(i)[0] = std::ldexp(1.0F, -8);
  }
  EXPECT_EQ(diag_number(run(head, {{"t", "64"}, {"epsilon", "1"}, {"r", "0"}}), "erasures"), 32.0);
}

TEST(BalanceKvStream, TheBoundsRadiusIsTheLargestNormSeenOfKeysAndOfAnyHeadsQueries) {
  HeadShape shape;
  shape.n = shape.nq = 64;
  KvHead head = make_head(shape, 4);
  std::fill_n(head.k.data(), 64 * 8, 0.0F);
  std::fill_n(head.v.data(), 64 * 8, 0.0F);
  for (Matrix& q : head.q) {
    std::fill_n(q.data(), 64 * 8, 0.0F);
  }
  for (Index i = 0; i < 64; ++i) {
    head.v.row(i)[0] = i % 2 == 0 ? 1.0F : std::ldexp(1.0F, -20);
  }
  const auto erasures = [&] {
    return diag_number(run(head, {{"t", "64"}, {"epsilon", "1"}}), "erasures");
  };
  EXPECT_EQ(erasures(), 32.0);  // r = 0
  // s r^2 = 64 / sqrt(8) = 22.6 lowers the bound by more than 20 ln 2 = 13.9.
  head.q[1].row(0)[3] = 8.0F;
  EXPECT_EQ(erasures(), 0.0);
  head.q[1].row(0)[3] = 0.0F;
  head.k.row(0)[3] = -8.0F;
  EXPECT_EQ(erasures(), 0.0);
  head.k.row(0)[3] = 0.0F;
  head.k.row(9)[3] = 8.0F;  // the four small ones before it are gone
  EXPECT_EQ(erasures(), 4.0);
}

TEST(BalanceKvStream, LooksAtNothingBehindThePosition) {
  HeadShape shape;
  shape.n = shape.nq = 120;
  const KvHead head = make_head(shape, 11);
  KvHead other = make_head(shape, 12);
  for (Index i = 0; i < 80; ++i) {
    std::copy_n(head.k.row(i), 8, other.k.row(i));
    std::copy_n(head.v.row(i), 8, other.v.row(i));
    for (std::size_t g = 0; g < head.q.size(); ++g) {
      std::copy_n(head.q[g].row(i), 8, other.q[g].row(i));
    }
  }
  for (const std::optional<Index> budget : {std::optional<Index>{}, std::optional<Index>{3000}}) {
    const Given given = budget ? Given{} : Given{{"t", "8"}};
    const auto a = open(head, given, budget, 10);
    const auto b = open(other, given, budget, 10);
    for (Index j = 0; j < 80; ++j) {
      feed(*a, j, 10);
      feed(*b, j, 10);
    }
    EXPECT_EQ(a->view().held.tokens, b->view().held.tokens);
    EXPECT_EQ(a->view().denominator->held.tokens, b->view().denominator->held.tokens);
  }
}

TEST(BalanceKvStream, OddInputsGiveDefinedResults) {
  HeadShape shape;
  shape.n = shape.nq = 70;
  std::vector<KvHead> heads;
  heads.push_back(make_head(shape, 1));  // identical keys and values
  for (Index i = 1; i < 70; ++i) {
    std::copy_n(heads[0].k.row(0), 8, heads[0].k.row(i));
    std::copy_n(heads[0].v.row(0), 8, heads[0].v.row(i));
  }
  heads.push_back(make_head(shape, 2));  // zero values: no numerator at all
  std::fill_n(heads[1].v.data(), 70 * 8, 0.0F);
  shape.key_norm = 1000.0;
  shape.value_norm = 1e-30;
  heads.push_back(make_head(shape, 3));
  heads.push_back(make_head({1, 1}, 4));  // one token
  for (const KvHead& head : heads) {
    for (const char* step : {"theory", "fixed", "self", "greedy", "repo"}) {
      const Compressed c = run(head, {{"t", "8"}, {"step", step}});
      EXPECT_EQ(weight_sum(c.denominator->held), static_cast<double>(head.n()));
      EXPECT_TRUE(std::is_sorted(c.held.tokens.begin(), c.held.tokens.end()));
    }
  }
  EXPECT_TRUE(run(heads[1], {{"t", "8"}}).held.tokens.empty());
  EXPECT_EQ(diag_number(run(heads[1], {{"t", "8"}}), "buckets"), 0.0);
}

TEST(BalanceKvStream, SizesAndRefusals) {
  const KvHead head = make_head({}, 1);
  EXPECT_THROW(open(head, {}), InputError);
  EXPECT_THROW(open(head, {{"t", "7"}}), InputError);
  // What a row would refuse is refused before any.
  const MethodInfo info = method_balancekv_stream().info;
  for (const char* t : {"3", "7", "32767"}) {
    EXPECT_THROW(info.facts(Params(kName, info.params, {{"t", t}})), InputError) << t;
  }
  for (const char* t : {"auto", "2", "8", "32768"}) {
    EXPECT_NO_THROW(info.facts(Params(kName, info.params, {{"t", t}}))) << t;
  }
  EXPECT_NO_THROW(info.facts(Params(kName, info.params, {{"T", "3"}})));
  EXPECT_THROW(open(head, {}, 31), Infeasible);
  EXPECT_EQ(run(head, {{"T", "0"}}).held.tokens.size(), 64U);  // nothing is ever halved
  EXPECT_EQ(run(head, {{"t", "2"}, {"T", "1"}}).denominator->held.tokens.size(), 32U);
  const auto same = [&](std::uint64_t a, std::uint64_t b) {
    return run(head, {{"t", "8"}}, {}, 0, a).held.tokens ==
           run(head, {{"t", "8"}}, {}, 0, b).held.tokens;
  };
  EXPECT_TRUE(same(1, 1));
  EXPECT_FALSE(same(1, 2));
}

}  // namespace
}  // namespace kvbench::test_balancekv_stream
