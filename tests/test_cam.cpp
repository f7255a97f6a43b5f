// cam under prefill, one eviction at a time, against its reference; who is attended and who scores;
// what merging keeps; the attended cache's unscored tokens.
#include "attention/streams.hpp"
#include "merge_checks.hpp"
#include "reference/eviction.hpp"
#include "stream_of.hpp"

namespace kvbench::test_cam {
namespace {

HeadShape shape_of(Index n, DType dtype = DType::float32) {
  const HeadShape shape{.n = n, .nq = n, .dv = 5, .group = 3, .dtype = dtype};
  return shape;
}

// Seed 1 and 4 sinks, as jobs have them here.
void expect_reference(const JobOf& job, Range scoring, const Given& given) {
  reference::EvictionReference slow;
  slow.kept = index_in(given, "tokens");
  slow.heavy =
      static_cast<Index>(std::stod(given.at("heavy_ratio")) * static_cast<double>(slow.kept));
  slow.sink = job.sink;
  slow.merge = index_in(given, "merge");
  slow.reduce = reference::kReduces.at(given.at("reduce"));
  slow.element = reference::element_of(job.head().dtype);
  slow.draw.resize(job.head().n());
  Rng(1, {"p", 0, 0}, "cam").stream("merge").uniforms(0, slow.draw);
  for (const Index j : job.tokens()) {
    slow.step(job.head(), j, scoring.contains(j));
  }
  const Compressed c = job.run({}, given);
  ASSERT_NO_FATAL_FAILURE(expect_merged(c, slow.held, 0));
  ASSERT_EQ(c.aux_bytes, 0);  // scores are gone when the compression ends
  ASSERT_EQ(diag_text(c, "merged"), std::to_string(slow.merged));
}

TEST(Cam, EqualsTheReference) {
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    const KvHead head = make_rounded_head(shape_of(70, dtype), 6);
    for (const auto& tokens : {positions(6, 60), gappy(6, 60)}) {
      for (const Range scoring : {Range{0, 70}, Range{20, 40}, Range{65, 70}}) {
        JobOf job("cam", head, tokens, scoring);
        job.sink = 4;
        const auto m = static_cast<Index>(tokens.size());
        for (const Index count : {Index{0}, Index{1}, Index{2}, Index{13}, m - 1, m}) {
          for (Given given : settings("merge=1,3,32;heavy_ratio=0,0.5,1")) {
            given["tokens"] = std::to_string(count);
            given["reduce"] = given["heavy_ratio"] == "0"   ? "sum"
                              : given["heavy_ratio"] == "1" ? "max"
                                                            : "mean";
            ASSERT_NO_FATAL_FAILURE(expect_reference(job, scoring, given)) << count;
          }
        }
      }
    }
  }
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
      for (Given given : settings("prefill=once;merge=1,3,32;heavy_ratio=0.5,1")) {
        given["tokens"] = std::to_string(count);
        const Compressed c = job.run({}, given);
        const Index heavy = given["heavy_ratio"] == "1" ? count : count / 2;
        const std::vector<Index> kept = reference::heavy_and_recent(tokens, scores, count, heavy);
        expect_merged(
            c, reference::cam(job.head(), tokens, scores, kept, index_in(given, "merge"), draw));
        ASSERT_EQ(c.aux_bytes, 0);
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
  JobOf job("cam", head, positions(4, 45), {0, 50});
  job.sink = 4;
  expect_reference(job, {30, 50},
                   settings("tokens=12;merge=32;heavy_ratio=0.5;reduce=mean").front());
}

// What lies behind the middle, and what another method of a composition holds, is never looked at;
// sinks are.
TEST(Cam, AttendsSinksHeldTokensAndItselfAlone) {
  const HeadShape shape = shape_of(60);
  const KvHead head = make_rounded_head(shape, 8);
  const auto tokens = gappy(5, 50);
  const auto result = [&](const KvHead& h) {
    JobOf job("cam", h, tokens, {0, 60});
    job.sink = 5;
    return job.run({}, {{"tokens", "12"}});
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
  JobOf job("cam", head, positions(2, 62), {0, 64});
  job.sink = 2;
  for (const char* prefill : {"stream", "once"}) {
    const Compressed c =
        job.run({}, {{"tokens", "10"}, {"heavy_ratio", "0"}, {"prefill", prefill}});
    ASSERT_EQ(c.diag.front().second, "50");
    for (Index t = 0; t < head.dv(); ++t) {
      double whole = 0.0;
      double left = 0.0;
      for (const Index i : job.tokens()) {
        whole += static_cast<double>(head.v.row(i)[t]);
      }
      for (const Index i : c.held.tokens) {
        left += static_cast<double>(head.v.row(i)[t]);
      }
      for (Index r = 0; r < c.made.v.rows(); ++r) {
        left += static_cast<double>(c.made.v.row(r)[t]);
      }
      EXPECT_NEAR(left, whole, 1e-4);  // some tens of float32 terms of size 1, merged in turn
    }
  }
}

// The tokens behind the middle are no part of the protocol's stream either: a stream without a
// window over the same tokens holds the same.
TEST(Cam, EqualsItsStreamWithoutAWindow) {
  const KvHead head = make_rounded_head(shape_of(90), 11);
  const Given given = {{"tokens", "20"}, {"merge", "5"}};
  const Compressed prefill = JobOf("cam", head, positions(0, 90), {0, 90}).run({}, given);
  const Compressed stream = StreamOf("cam", head, given).run();
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
