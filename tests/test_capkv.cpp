// capkv against its definition in long double, with and without rotary tables, and by hand.
#include <cmath>

#include "algorithms/methods.hpp"
#include "method_checks.hpp"
#include "reference/capkv.hpp"
#include "replay_run.hpp"

namespace kvbench::test_capkv {
namespace {

using reference::Real;
using reference::ReferenceReduce;
using testing_replay::rope_tables;

// A has a condition of up to 1e6 (some hundred values of norm 30 over 1), which costs float64 as
// many of its 16 digits.
constexpr Real kRounding = 1e-9L;

HeadShape shape_of_head() {
  HeadShape shape;
  shape.n = 110;
  shape.nq = 70;
  shape.d = 10;
  shape.dv = 5;
  shape.group = 3;
  return shape;
}

TEST(CapKv, EqualsReference) {
  const Method method = method_capkv();
  HeadShape shape = shape_of_head();
  const std::map<std::string, ReferenceReduce> reduces = {{"mean", ReferenceReduce::mean},
                                                          {"max", ReferenceReduce::max},
                                                          {"sum", ReferenceReduce::sum}};
  for (const double norm : {0.01, 1.0, 30.0}) {
    shape.value_norm = norm;
    const KvHead head = make_head(shape, 9);
    for (const std::vector<Index>& tokens : {positions(8, 90), gappy(8, 90)}) {
      for (const Range scoring : {Range{40, 100}, Range{45, 46}}) {
        const JobOf job(method, head, tokens, scoring);
        for (const char* tau : {"0", "5", "100"}) {
          for (const auto& [word, reduce] : reduces) {
            const reference::Vec slow =
                reference::capkv(head, tokens, scoring.begin, scoring.end, nullptr, nullptr, true,
                                 0, std::stold(tau), reduce);
            for (const Index kept : {0, 1, 9, 30, 50}) {
              ASSERT_TRUE(reference::is_top(
                  tokens, slow, job.kept(kept, {{"tau", tau}, {"reduce", word}}), kept, kRounding))
                  << norm << " " << tau << " " << word << " " << kept;
            }
          }
        }
      }
    }
  }
}

TEST(CapKv, EqualsReferenceWithTables) {
  const Method method = method_capkv();
  const KvHead head = make_head(shape_of_head(), 12);
  const std::vector<Index> tokens = gappy(8, 90);
  for (const auto& [layout, dim] : {std::pair{RopeLayout::half, Index{10}},
                                    {RopeLayout::interleaved, Index{10}},
                                    {RopeLayout::half, Index{4}}}) {
    const RopeTables tables = rope_tables(110 + 512, dim, layout, 50.0, 1.2);
    for (const Index future : {1, 37, 512}) {
      for (const Index skip : {0, 44}) {
        const JobOf job(method, head, tokens, {40, 60});
        Task task = job.task(20 * head.pair_bytes());
        task.rope = &tables;
        const Given given = {{"n_future", std::to_string(future)},
                             {"n_skip", std::to_string(skip)}};
        const Compressed c = method.compress(task, job.params(given));
        const reference::Vec slow =
            reference::capkv(head, tokens, std::max<Index>(40, skip), 60, &tables.cos, &tables.sin,
                             layout == RopeLayout::half, future, 5);
        ASSERT_TRUE(reference::is_top(tokens, slow, c.held.tokens, 20, kRounding))
            << dim << " " << future << " " << skip;
      }
    }
  }
}

// Values along one axis each: A is diagonal, and a value of length a and weight w alone on its axis
// scores w a^2 / (1 + (w + 1e-6) a^2). Two equal values share an axis and score about half.
TEST(CapKv, RepeatedValuesAddLittle) {
  const Method method = method_capkv();
  KvHead head;
  head.k = Matrix(6, 1);
  head.v = Matrix(6, 4);
  head.q.emplace_back(6, 1);
  for (Index i = 0; i < 6; ++i) {
    head.k.row(i)[0] = 1.0F;
    head.q[0].row(i)[0] = i < 3 ? 1.0F : 2.0F;
  }
  head.v.row(0)[0] = 10.0F;  // 100 / 201
  head.v.row(1)[0] = 10.0F;
  head.v.row(2)[1] = 1.1F;  // 1.21 / 2.21 = .548
  head.v.row(3)[2] = 0.9F;  // .81 / 1.81 = .448
  const JobOf job(method, head, positions(0, 4), {0, 6});
  EXPECT_EQ(job.kept(1, {{"n_skip", "0"}}), (std::vector<Index>{2}));
  EXPECT_EQ(job.kept(3, {{"n_skip", "0"}}), (std::vector<Index>{0, 1, 2}));
  head.k.row(2)[0] = -1.0F;  // weight e^-10
  const JobOf turned(method, head, positions(0, 4), {0, 6});
  EXPECT_EQ(turned.kept(3, {{"n_skip", "0"}}), (std::vector<Index>{0, 1, 3}));
  EXPECT_EQ(turned.kept(1, {{"n_skip", "0"}, {"tau", "0"}}), (std::vector<Index>{2}));
}

// I is below the rounding of the sum, of rank 2 in 4 dimensions: a larger ridge takes its place,
// and repeated values still share what a lone one has.
TEST(CapKv, HugeValuesHaveDefinedScores) {
  const Method method = method_capkv();
  KvHead head;
  head.k = Matrix(6, 1);
  head.v = Matrix(6, 4);
  head.q.emplace_back(6, 1);
  const float repeated[] = {3.0F, 7.0F, 11.0F, 13.0F};
  const float lone[] = {7.0F, -3.0F, 13.0F, -11.0F};
  for (Index c = 0; c < 4; ++c) {
    head.v.row(0)[c] = head.v.row(1)[c] = 1e15F * repeated[c];
    head.v.row(2)[c] = 1e15F * lone[c];
  }
  const JobOf job(method, head, positions(0, 3), {0, 6});
  EXPECT_EQ(job.kept(1), (std::vector<Index>{2}));
}

TEST(CapKv, ReadsAndRefusals) {
  const Method method = method_capkv();
  EXPECT_FALSE(method.info.usual_facts().scoring.empty());
  EXPECT_TRUE(method.info.usual_facts().rope);
  LayerFacts layer;
  layer.scoring = {0, 100};
  EXPECT_EQ(method.info.resolve(Params("capkv", method.info.params, {}), layer).at("rope"), "post");
  const Params tables("capkv", method.info.params, {{"rope", "tables"}});
  EXPECT_NE(testing_replay::refusal([&] {
              method.info.resolve(tables, layer);
            }).find("capkv: rope=tables needs the trace's rotary tables"),
            std::string::npos);
  layer.rope_positions = 611;
  EXPECT_NE(testing_replay::refusal([&] {
              method.info.resolve(tables, layer);
            }).find("capkv: the rotary tables hold 611 positions, expected at least 612"),
            std::string::npos);
}

}  // namespace
}  // namespace kvbench::test_capkv
