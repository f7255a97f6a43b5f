// cam under prefill, one eviction at a time, against its reference; who is attended and who scores;
// what merging keeps; the attended cache's unscored tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "algorithms/composition.hpp"
#include "algorithms/methods.hpp"
#include "algorithms/nested_methods.hpp"
#include "attention/streams.hpp"
#include "core/float16.hpp"
#include "merge_checks.hpp"
#include "reference/cam.hpp"

namespace kvbench::test_cam {
namespace {

HeadShape shape_of(Index n, DType dtype = DType::float32) {
  const HeadShape shape{.n = n, .nq = n, .dv = 5, .group = 3, .dtype = dtype};
  return shape;
}

reference::CamReference reference_of(const KvHead& head, const std::vector<Index>& tokens,
                                     Range scoring, Index sink) {
  reference::CamReference t;
  t.head = &head;
  t.tokens = tokens;
  for (Index i = 0; i < head.n(); ++i) {
    t.attends.push_back(scoring.contains(i) && i >= head.q_start());
  }
  t.sink = sink;
  t.element = reference::element_of(head.dtype);
  t.draw.resize(head.n());
  Rng(1, {"p", 0, 0}, "cam").stream("merge").uniforms(0, t.draw);
  return t;
}

Compressed run(const JobOf& job, Index sink, const Given& given) {
  Task task = job.task();
  task.sink = sink;
  const Compressed c = method_cam().compress(task, job.params(given));
  check_compressed(c, task);
  return c;
}

void expect_equal(const Compressed& c, const reference::CamReference& expected) {
  std::vector<Index> exact;
  Index row = 0;
  for (const auto& [token, m] : expected.held) {
    if (!m.changed) {
      exact.push_back(token);
      continue;
    }
    ASSERT_LT(row, c.made.k.rows());
    for (std::size_t t = 0; t < m.k.size(); ++t) {
      ASSERT_EQ(static_cast<reference::Real>(c.made.k.row(row)[t]), m.k[t]);
    }
    for (std::size_t t = 0; t < m.v.size(); ++t) {
      const auto x = static_cast<double>(m.v[t]);
      ASSERT_TRUE(std::abs(static_cast<double>(c.made.v.row(row)[t]) - x) <=
                  kStoreTolerance * (1 + std::abs(x)))
          << token;
    }
    ++row;
  }
  ASSERT_EQ(row, c.made.k.rows());
  ASSERT_EQ(c.held.tokens, exact);
  ASSERT_EQ(c.aux_bytes, 0);  // scores are gone when the compression ends
  ASSERT_EQ(c.diag.front().second, std::to_string(expected.merged));
}

TEST(Cam, EqualsTheReference) {
  Index merged = 0;
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    const KvHead head = make_rounded_head(shape_of(70, dtype), 6);
    for (const auto& tokens : {positions(6, 60), gappy(6, 60)}) {
      for (const Range scoring : {Range{0, 70}, Range{20, 40}, Range{65, 70}}) {
        const JobOf job("cam", head, tokens, scoring);
        const auto m = static_cast<Index>(tokens.size());
        for (const Index count : {Index{0}, Index{1}, Index{2}, Index{13}, m - 1, m}) {
          for (const Index merge : {1, 3, 32}) {
            for (const auto& [ratio, reduce] :
                 {std::pair{"0.5", "mean"}, std::pair{"1", "max"}, std::pair{"0", "sum"}}) {
              reference::CamReference slow = reference_of(head, tokens, scoring, 4);
              slow.kept = count;
              slow.heavy = std::string(ratio) == "1"   ? count
                           : std::string(ratio) == "0" ? 0
                                                       : count / 2;
              slow.merge = merge;
              slow.reduce = std::string(reduce) == "max"   ? 'x'
                            : std::string(reduce) == "sum" ? 's'
                                                           : 'm';
              slow.run();
              const Compressed c = run(job, 4,
                                       {{"tokens", std::to_string(count)},
                                        {"merge", std::to_string(merge)},
                                        {"heavy_ratio", ratio},
                                        {"reduce", reduce}});
              ASSERT_NO_FATAL_FAILURE(expect_equal(c, slow)) << count << " " << merge << ratio;
              merged += slow.merged;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(merged, 1000);
}

// prefill=once: by the accumulated attention of all queries.
TEST(Cam, OnceEqualsTheReference) {
  const Range scoring = {70, 100};
  const RngStream stream = Rng(1, {"p", 0, 0}, "cam").stream("merge");
  std::vector<double> draw(110);
  stream.uniforms(0, draw);
  for (const auto& tokens : {positions(10, 90), gappy(10, 90)}) {
    const JobOf job("cam", make_head(merging_shape(110), 6), tokens, scoring);
    const auto m = static_cast<Index>(tokens.size());
    const reference::Vec scores = accumulated(job, scoring);
    for (const Index count : {Index{0}, Index{1}, Index{2}, Index{13}, m - 1, m}) {
      for (const Index merge : {1, 3, 32}) {
        for (const char* ratio : {"0.5", "1"}) {
          const Compressed c = job.run({}, {{"tokens", std::to_string(count)},
                                            {"prefill", "once"},
                                            {"merge", std::to_string(merge)},
                                            {"heavy_ratio", ratio}});
          const Index heavy = std::string(ratio) == "1" ? count : count / 2;
          const std::vector<Index> kept = reference::heavy_and_recent(tokens, scores, count, heavy);
          expect_merged(c, reference::cam(job.head(), tokens, scores, kept, merge, draw));
          ASSERT_EQ(c.aux_bytes, 0);
        }
      }
    }
  }
}

// The trace holds the last queries only: the others add nothing.
TEST(Cam, QueriesThatTheTraceLacksScoreNothing) {
  KvHead head = make_rounded_head(shape_of(50), 7);
  for (Matrix& q : head.q) {
    Matrix last(20, head.d());
    std::copy_n(q.row(30), 20 * head.d(), last.data());
    q = last;
  }
  const JobOf job("cam", head, positions(4, 45), {0, 50});
  reference::CamReference slow = reference_of(head, job.tokens(), {30, 50}, 4);
  slow.kept = 12;
  slow.heavy = 6;
  slow.run();
  expect_equal(run(job, 4, {{"tokens", "12"}}), slow);
}

// What lies behind the middle, and what another method of a composition holds, is never looked at;
// sinks are.
TEST(Cam, AttendsSinksHeldTokensAndItselfAlone) {
  const HeadShape shape = shape_of(60);
  const KvHead head = make_rounded_head(shape, 8);
  const auto tokens = gappy(5, 50);
  const auto result = [&](const KvHead& h) {
    const JobOf job("cam", h, tokens, {0, 60});
    return run(job, 5, {{"tokens", "12"}});
  };
  const Compressed c = result(head);
  KvHead other = head;
  for (Index i = 5; i < 60; ++i) {
    if (!std::binary_search(tokens.begin(), tokens.end(), i)) {
      std::fill_n(other.k.row(i), shape.d, 7.0F);
      std::fill_n(other.v.row(i), shape.dv, 7.0F);
    }
  }
  const Compressed same = result(other);
  EXPECT_EQ(same.held.tokens, c.held.tokens);
  EXPECT_TRUE(same_bits(same.made.v, c.made.v));
  for (Index i = 0; i < 5; ++i) {  // sinks that take the most of some queries and little of others
    for (Index t = 0; t < shape.d; ++t) {
      other.k.row(i)[t] *= 8.0F;
    }
  }
  const Compressed changed = result(other);
  EXPECT_FALSE(changed.held.tokens == c.held.tokens && same_bits(changed.made.v, c.made.v));
}

// With equal scores everywhere every draw succeeds: nothing of the values' sum is lost.
TEST(Cam, KeepsTheSumOfValuesWhenAllMerge) {
  KvHead head = make_rounded_head(shape_of(64), 9);
  std::fill_n(head.k.data(), 64 * head.d(), 0.0F);
  // No protected tokens: of equal scores the latest goes, so the oldest would merge; protected
  // ones make the oldest of the others go, whose score is the largest of all.
  const JobOf job("cam", head, positions(2, 62), {0, 64});
  for (const char* prefill : {"stream", "once"}) {
    const Compressed c =
        run(job, 2, {{"tokens", "10"}, {"heavy_ratio", "0"}, {"prefill", prefill}});
    ASSERT_EQ(c.diag.front().second, "50");
    check_sums_kept(job, c, /*keys=*/false);
  }
}

TEST(Cam, WorksBehindAnotherMethod) {
  const Method a = method_local();
  const Method b = method_cam();
  const JobOf job(b, make_rounded_head(shape_of(80), 10), positions(4, 70), {0, 80});
  const Method both = composed(a, b);
  const Params params("local+cam", params_of(both, {}), {{"cam.merge", "4"}});
  Task task = job.task(20 * job.head().pair_bytes());
  task.sink = 4;
  const Compressed c = both.compress(task, params);
  check_compressed(c, task);
  EXPECT_EQ(static_cast<Index>(c.held.tokens.size()) + c.made.k.rows(), 20);
  EXPECT_GT(c.made.k.rows(), 0);
}

// The tokens behind the middle are no part of the protocol's stream either: a stream without a
// window over the same tokens holds the same.
TEST(Cam, EqualsItsStreamWithoutAWindow) {
  const Method method = method_cam();
  const KvHead head = make_rounded_head(shape_of(90), 11);
  const JobOf job(method, head, positions(0, 90), {0, 90});
  const Given given = {{"tokens", "20"}, {"merge", "5"}};
  const Compressed prefill = run(job, 0, given);
  const auto cache =
      method.open_stream({head, 0, {}, Rng(1, {"p", 0, 0}, "cam")}, job.params(given));
  for (Index j = 0; j < 90; ++j) {
    cache->append(j, j);
  }
  const Compressed stream = cache->view();
  EXPECT_EQ(prefill.held.tokens, stream.held.tokens);
  EXPECT_TRUE(same_bits(prefill.made.v, stream.made.v));
  EXPECT_EQ(prefill.diag, stream.diag);
  EXPECT_EQ(stream.aux_bytes, 4 * 20);
}

// A sink takes its part of every softmax and keeps score 0.
TEST(AttendedTokens, SinksAreAttendedAndEarnNothing) {
  const KvHead head = make_rounded_head(shape_of(12), 12);
  EvictionRules rules;
  AttendedTokens<double> all(head, 12, rules);
  rules.sink = 3;
  AttendedTokens<double> cache(head, 12, rules);
  for (Index i = 0; i < 12; ++i) {
    all.add(i);
    cache.add(i);
  }
  EXPECT_THROW(cache.add(12), std::logic_error);
  for (const Index j : {10, 11}) {
    all.attend(j);
    cache.attend(j);
    for (std::size_t i = 0; i < 12; ++i) {
      const auto [token, slot] = cache.slots()[i];
      const Index other = all.slots()[i].slot;
      EXPECT_EQ(token, static_cast<Index>(i));
      EXPECT_EQ(cache.score(slot), token < 3 ? 0.0 : all.score(other));
      EXPECT_EQ(cache.weight(slot), token < 3 ? 0.0 : all.weight(other));
      EXPECT_GT(all.weight(other), 0.0);
    }
  }
  EXPECT_GE(cache.evict(9).token, 3);
  cache.add(12 - 1);  // into the slot that is free again
  EXPECT_EQ(cache.slots().size(), 12U);
  EXPECT_EQ(cache.score(cache.slots().back().slot), 0.0);
}

}  // namespace
}  // namespace kvbench::test_cam
