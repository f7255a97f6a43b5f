// triattention against its definition with every cosine written out, and by hand.
#include <cmath>

#include "algorithms/methods.hpp"
#include "core/rope.hpp"
#include "method_checks.hpp"
#include "reference/window_scores.hpp"
#include "refusal.hpp"

namespace kvbench::test_triattention {
namespace {

using testing_replay::rope_tables;

// The farthest offset times the error of a frequency from 2^16 positions in float32.
constexpr reference::Real kRounding = 1e-5L;

std::vector<Index> kept(const JobOf& job, const RopeTables& tables, Index start, Index count,
                        const Given& given = {}) {
  Task task = job.task(count * job.head().pair_bytes());
  task.rope = &tables;
  task.evaluated = {start, job.head().n()};
  return method_triattention().compress(task, job.params(given)).held.tokens;
}

TEST(TriAttention, EqualsReference) {
  const Method method = method_triattention();
  constexpr double kTheta = 50.0;
  constexpr double kAmplitude = 1.2;
  constexpr Index kStart = 100;
  const std::map<std::string, reference::ReferenceReduce> reduces = {
      {"mean", reference::ReferenceReduce::mean}, {"max", reference::ReferenceReduce::max}};
  const KvHead head = make_head({.n = 110, .nq = 70, .d = 10, .dv = 5, .group = 3}, 12);
  for (const auto& [layout, dim] : {std::pair{RopeLayout::half, Index{10}},
                                    {RopeLayout::interleaved, Index{10}},
                                    {RopeLayout::half, Index{4}},
                                    {RopeLayout::interleaved, Index{6}}}) {
    const RopeTables tables = rope_tables(65537, dim, layout, kTheta, kAmplitude);
    reference::Vec w;
    for (Index t = 0; t < dim / 2; ++t) {
      w.push_back(std::pow(static_cast<long double>(kTheta),
                           -2.0L * static_cast<long double>(t) / static_cast<long double>(dim)));
    }
    for (const std::vector<Index>& tokens : {positions(8, 90), gappy(8, 90)}) {
      for (const Range scoring : {Range{40, 100}, Range{45, 46}, Range{40, 110}}) {
        const JobOf job(method, head, tokens, scoring);
        for (const char* aggregate : {"mean", "max"}) {
          for (const auto& [word, reduce] : reduces) {
            for (const Index far : {1, 100, 65536}) {
              const reference::Vec slow =
                  reference::triattention(head, tokens, scoring.begin, scoring.end, tables.cos,
                                          tables.sin, layout == RopeLayout::half, w, kAmplitude,
                                          kStart, far, std::string(aggregate) == "max", reduce);
              for (const Index count : {1, 20, 50}) {
                ASSERT_TRUE(reference::is_top(tokens, slow,
                                              kept(job, tables, kStart, count,
                                                   {{"aggregate", aggregate},
                                                    {"reduce", word},
                                                    {"max_offset", std::to_string(far)}}),
                                              count, kRounding))
                    << dim << " " << aggregate << " " << word << " " << far << " " << count;
              }
            }
          }
        }
      }
    }
  }
}

// Equal keys and queries before the rotation: the distance alone decides.
TEST(TriAttention, EqualKeysRankByTheCosineOfTheirDistance) {
  const Method method = method_triattention();
  const RopeTables tables = rope_tables(60, 2);  // one radian a position
  KvHead head = make_head({.n = 60, .nq = 60, .d = 2, .group = 1}, 3);
  for (Index i = 0; i < 60; ++i) {
    const std::vector<double> one = {1.0, 0.0};
    rotate(tables, i, one, {head.k.row(i), 2});
    rotate(tables, i, one, {head.q[0].row(i), 2});
  }
  const JobOf job(method, head, positions(5, 50), {0, 52});
  std::vector<Index> order = positions(5, 50);
  std::ranges::sort(order, std::greater(), [](Index p) {
    return std::cos(static_cast<double>(52 - p + 1)) + std::cos(static_cast<double>(52 - p + 2));
  });
  order.resize(9);
  std::ranges::sort(order);
  EXPECT_EQ(kept(job, tables, 52, 9, {{"max_offset", "3"}}), order);
}

// Opposite queries expect nothing of a direction: the norm of the key remains.
TEST(TriAttention, QueriesWithoutAMeanRankByNorm) {
  const Method method = method_triattention();
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
  const JobOf job(method, head, positions(5, 35), {0, 38});
  EXPECT_EQ(kept(job, tables, 38, 3), (std::vector<Index>{17, 21, 34}));
}

TEST(TriAttention, ChannelsThatDoNotTurnTakeNoPart) {
  const Method method = method_triattention();
  const RopeTables tables = rope_tables(64, 4);
  KvHead head = make_head({}, 5);
  const std::vector<Index> before =
      kept(JobOf(method, head, positions(5, 50), {0, 60}), tables, 60, 9);
  for (Index i = 0; i < 64; ++i) {
    head.k.row(i)[4 + i % 4] = 1e6F;
    head.q[0].row(i)[7] = -1e6F;
  }
  EXPECT_EQ(kept(JobOf(method, head, positions(5, 50), {0, 60}), tables, 60, 9), before);
}

TEST(TriAttention, WithoutQueriesTheLowestPositionsStay) {
  const Method method = method_triattention();
  const JobOf job(method, make_head({}, 2), positions(5, 50), {60, 60}, true);
  EXPECT_EQ(job.kept(4), positions(5, 9));
}

TEST(TriAttention, WithoutTablesItIsRefused) {
  const Method method = method_triattention();
  LayerFacts layer;
  layer.n = 64;
  layer.rope_positions = 63;
  EXPECT_NE(testing_replay::refusal([&] {
              method.info.resolve(Params("triattention", method.info.params, {}), layer);
            }).find("triattention: the rotary tables hold 63 positions"),
            std::string::npos);
  EXPECT_THROW(JobOf(method, make_head({}, 1), positions(5, 50), {0, 60}).kept(3), InputError);
}

TEST(TriAttention, ReadsRotaryTables) {
  EXPECT_TRUE(method_triattention().info.usual_facts().rope);
}

}  // namespace
}  // namespace kvbench::test_triattention
