// compactor against its definition over a layer of heads: chunks filled up, z-scores over all
// heads, blending, the tokens that rank highest; what the trace lacks.
#include "layer_job.hpp"
#include "reference/leverage.hpp"
#include "selection_checks.hpp"

namespace kvbench::test_compactor {
namespace {

// z-scores cancel: scores near 0 have no relative accuracy, so all are taken up by kLift.
constexpr reference::Real kLift = 100;
constexpr reference::Real kRounding = 1e-10L;

const Given kDefaults =
    settings("first=8;last=4;chunk=256;sketch=48;blending=auto;reduce=mean").front();

// Of the tokens between the first and the last ones, one row per head.
struct SlowScores {
  std::size_t first = 0, last = 0;
  reference::Rows l, a;
};

SlowScores slow_scores(const SharedJob& layer, std::size_t heads, Range scoring, const Given& s) {
  SlowScores out;
  const std::vector<Index>& tokens = layer.job(0).tokens();
  out.first = std::min<std::size_t>(tokens.size(), index_in(s, "first"));
  out.last = std::min<std::size_t>(tokens.size() - out.first, index_in(s, "last"));
  const std::vector<Index> inner(tokens.begin() + static_cast<std::ptrdiff_t>(out.first),
                                 tokens.end() - static_cast<std::ptrdiff_t>(out.last));
  for (std::size_t h = 0; h < heads; ++h) {
    const JobOf& job = layer.job(h);
    const reference::Rows phi =
        sketch_of(layer.task(h, 0).rng.stream("sketch"), job.head().d(), index_in(s, "sketch"));
    out.l.push_back(reference::leverage(
        reference::unrotated(job.head(), inner, job.rope->cos, job.rope->sin, true), phi, 1e-2L));
    out.a.push_back(reference::chunk_attention(job.head(), inner, scoring.begin, scoring.end,
                                               index_in(s, "chunk"),
                                               reference::kReduces.at(s.at("reduce"))));
  }
  out.l = reference::z_scores(out.l);
  out.a = reference::z_scores(out.a);
  return out;
}

// What ranks highest is far above, falling with the position.
reference::Vec blended(const SlowScores& slow, std::size_t head, std::size_t m,
                       reference::Real blending) {
  reference::Vec out(m);
  for (std::size_t i = 0; i < m; ++i) {
    const bool highest = i < slow.first || i >= m - slow.last;
    out[i] = highest
                 ? 1e6L - static_cast<reference::Real>(i)
                 : kLift + blending * slow.l[head][i - slow.first] + slow.a[head][i - slow.first];
  }
  return out;
}

std::vector<KvHead> heads_of(Index count, Index n, Index nq) {
  HeadShape shape{.n = n, .nq = nq, .dv = 5};
  std::vector<KvHead> out;
  for (Index h = 0; h < count; ++h) {
    shape.key_norm = 2.0 + static_cast<double>(h);  // heads on different scales
    shape.value_norm = 1.0 + 2.0 * static_cast<double>(h);
    out.push_back(make_head(shape, static_cast<unsigned>(30 + h)));
  }
  return out;
}

void expect_equal(const SharedJob& layer, std::size_t heads, Range scoring, const Given& given,
                  const std::vector<Index>& sizes) {
  const std::vector<Index>& tokens = layer.job(0).tokens();
  const Given all = with(kDefaults, given);
  const SlowScores slow = slow_scores(layer, heads, scoring, all);
  for (const Index kept : sizes) {
    const auto got = layer.run(kept * layer.job(0).head().pair_bytes(), all);
    const reference::Real blending =
        all.at("blending") == "auto"
            ? 1 - static_cast<reference::Real>(kept) / static_cast<reference::Real>(tokens.size())
            : std::stold(all.at("blending"));
    for (std::size_t h = 0; h < heads; ++h) {
      ASSERT_TRUE(reference::is_top(tokens, blended(slow, h, tokens.size(), blending), got[h], kept,
                                    kRounding))
          << kept << " head " << h;
    }
  }
}

TEST(Compactor, EqualsTheDefinition) {
  // 76, 52 and 64 - 12 = 52 inner tokens in chunks of 16 and 13: short, exact and single chunks.
  for (const std::vector<Index>& tokens : {positions(8, 96), gappy(8, 104), positions(0, 64)}) {
    for (const Range scoring : {Range{0, 110}, Range{40, 100}}) {
      const Index nq = scoring.begin == 0 ? 110 : 70;
      const SharedJob layer("compactor", heads_of(3, 110, nq), 3, tokens, scoring, true);
      for (const Given& given : settings("chunk=13,16,256;reduce=mean,max,sum")) {
        expect_equal(layer, 3, scoring, given, {0, 1, 8, 12, 13, 30, 50});
      }
    }
  }
}

TEST(Compactor, EveryParameterDoesWhatItSays) {
  const SharedJob layer("compactor", heads_of(2, 90, 90), 2, positions(4, 84), {0, 90}, true);
  for (const Given& given : settings("blending=0,0.35,5;sketch=0,7")) {
    for (const auto& [first, last] :
         {std::pair{"0", "0"}, {"0", "5"}, {"3", "0"}, {"78", "1"}, {"70", "8"}}) {
      expect_equal(layer, 2, {0, 90}, with(given, {{"first", first}, {"last", last}}),
                   {1, 5, 20, 79});
    }
  }
}

// Where no token is between the first and the last ones, the lowest positions stay.
TEST(Compactor, FewTokensGoByPosition) {
  for (const Index m : {1, 5, 8, 10, 12}) {
    const JobOf job("compactor", heads_of(1, 60, 60)[0], positions(10, 10 + m), {0, 60}, true);
    for (Index kept = 0; kept <= m; ++kept) {
      EXPECT_EQ(job.kept(kept), positions(10, 10 + kept));
    }
  }
}

// Logits without the scale reach thousands; equal scores have no deviation.
TEST(Compactor, HugeAndEqualInputsStayFinite) {
  const Method& method = find_method("compactor");
  KvHead huge = heads_of(1, 60, 60)[0];
  for (Matrix* m : {&huge.k, &huge.v, &huge.q[0], &huge.q[1]}) {
    for (Index i = 0; i < m->rows() * m->cols(); ++i) {
      m->data()[i] *= 1e37F;
    }
  }
  KvHead equal = huge;
  std::fill_n(equal.k.data(), 60 * 8, 0.0F);
  std::fill_n(equal.v.data(), 60 * 5, 1.0F);
  for (const KvHead& head : {huge, equal}) {
    const JobOf job(method, head, positions(10, 50), {0, 60}, true);
    const Survey s = method.survey(job.task(1000), job.params());
    for (const double x : s.data) {
      ASSERT_TRUE(std::isfinite(x));
    }
    const std::vector<Share> shares = method.share({&s, 1}, job.params());
    for (const double x : *shares[0].data) {
      ASSERT_TRUE(std::isfinite(x));
    }
    EXPECT_EQ(job.kept(20).size(), 20U);
  }
  // All alike but for the ends, where pooling divides a missing neighbour's 0 by 3 as well: the
  // lowest of the others are kept.
  const JobOf job(method, equal, positions(10, 50), {0, 60}, true);
  EXPECT_EQ(job.kept(14, {{"chunk", "28"}}),
            (std::vector<Index>{10, 11, 12, 13, 14, 15, 16, 17, 19, 20, 46, 47, 48, 49}));
}

}  // namespace
}  // namespace kvbench::test_compactor
