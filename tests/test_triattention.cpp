// triattention against its definition with every cosine written out, and by hand.
#include "reference/window_scores.hpp"
#include "selection_checks.hpp"

namespace kvbench::test_triattention {
namespace {

using testing_replay::rope_tables;

// The farthest offset times the error of a frequency from 2^16 positions in float32.
constexpr reference::Real kRounding = 1e-5L;

// The evaluated queries begin at `start`.
struct TriJob : JobOf {
  TriJob(const KvHead& head, const RopeTables& tables, const std::vector<Index>& tokens,
         Range scoring, Index start)
      : JobOf("triattention", head, tokens, scoring) {
    rope = tables;
    evaluated = {start, head.n()};
  }
};

TEST(TriAttention, EqualsReference) {
  constexpr double kTheta = 50.0;
  constexpr double kAmplitude = 1.2;
  constexpr Index kStart = 100;
  const KvHead head = make_head({.n = 110, .nq = 70, .d = 10, .dv = 5, .group = 3}, 12);
  for (const auto& [layout, dim] : kRopeLayouts) {
    const RopeTables tables = rope_tables(65537, dim, layout, kTheta, kAmplitude);
    reference::Vec w;
    for (Index t = 0; t < dim / 2; ++t) {
      w.push_back(std::pow(static_cast<long double>(kTheta),
                           -2.0L * static_cast<long double>(t) / static_cast<long double>(dim)));
    }
    for (const std::vector<Index>& tokens : token_lists(8, 90)) {
      for (const Range scoring : {Range{40, 100}, Range{45, 46}, Range{40, 110}}) {
        const TriJob job(head, tables, tokens, scoring, kStart);
        for (const Given& given :
             settings("aggregate=mean,max;reduce=mean,max;max_offset=1,100,65536")) {
          const reference::Vec slow = reference::triattention(
              head, tokens, scoring.begin, scoring.end, tables.cos, tables.sin,
              layout == RopeLayout::half, w, kAmplitude, kStart, index_in(given, "max_offset"),
              given.at("aggregate") == "max", reference::kReduces.at(given.at("reduce")));
          expect_best_kept(job, slow, kRounding, given);
        }
      }
    }
  }
}

// Equal keys and queries before the rotation: the distance alone decides.
TEST(TriAttention, EqualKeysRankByTheCosineOfTheirDistance) {
  const RopeTables tables = rope_tables(60, 2);  // one radian a position
  KvHead head = make_head({.n = 60, .nq = 60, .d = 2, .group = 1}, 3);
  for (Index i = 0; i < 60; ++i) {
    const std::vector<double> one = {1.0, 0.0};
    rotate(tables, i, one, {head.k.row(i), 2});
    rotate(tables, i, one, {head.q[0].row(i), 2});
  }
  std::vector<Index> order = positions(5, 50);
  std::ranges::sort(order, std::greater(), [](Index p) {
    return std::cos(static_cast<double>(52 - p + 1)) + std::cos(static_cast<double>(52 - p + 2));
  });
  order.resize(9);
  std::ranges::sort(order);
  EXPECT_EQ(TriJob(head, tables, positions(5, 50), {0, 52}, 52).kept(9, {{"max_offset", "3"}}),
            order);
}

// Opposite queries expect nothing of a direction: the norm of the key remains.
TEST(TriAttention, QueriesWithoutAMeanRankByNorm) {
  const RopeTables tables = rope_tables(40, 2);
  KvHead head = make_head({.n = 40, .nq = 40, .d = 2, .group = 2}, 4);
  for (Matrix& q : head.q) {
    for (Index j = 0; j < 40; ++j) {
      rotate(tables, j, std::vector<double>{j % 2 == 0 ? 3.0 : -3.0, j % 2 == 0 ? 1.0 : -1.0},
             {q.row(j), 2});
    }
  }
  for (Index i = 0; i < 40; ++i) {
    head.k.row(i)[0] = static_cast<float>(i * 7 % 30);
    head.k.row(i)[1] = 0.0F;
  }
  EXPECT_EQ(TriJob(head, tables, positions(5, 35), {0, 38}, 38).kept(3),
            (std::vector<Index>{17, 21, 34}));
}

TEST(TriAttention, ChannelsThatDoNotTurnTakeNoPart) {
  const RopeTables tables = rope_tables(64, 4);
  KvHead head = make_head({}, 5);
  const auto kept = [&] { return TriJob(head, tables, positions(5, 50), {0, 60}, 60).kept(9); };
  const std::vector<Index> before = kept();
  for (Index i = 0; i < 64; ++i) {
    head.k.row(i)[4 + i % 4] = 1e6F;
    head.q[0].row(i)[7] = -1e6F;
  }
  EXPECT_EQ(kept(), before);
}

TEST(TriAttention, WithoutQueriesTheLowestPositionsStay) {
  const JobOf job("triattention", make_head({}, 2), positions(5, 50), {60, 60}, true);
  EXPECT_EQ(job.kept(4), positions(5, 9));
}

}  // namespace
}  // namespace kvbench::test_triattention
