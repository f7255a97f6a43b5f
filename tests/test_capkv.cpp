// capkv against its definition in long double, with and without rotary tables, and by hand.
#include "reference/capkv.hpp"
#include "selection_checks.hpp"

namespace kvbench::test_capkv {
namespace {

using testing_replay::rope_tables;

// A has a condition of up to 1e6 (some hundred values of norm 30 over 1), which costs float64 as
// many of its 16 digits.
constexpr reference::Real kRounding = 1e-9L;

constexpr HeadShape kShape{.n = 110, .nq = 70, .d = 10, .dv = 5, .group = 3};

TEST(CapKv, EqualsReference) {
  HeadShape shape = kShape;
  for (const double norm : {0.01, 1.0, 30.0}) {
    shape.value_norm = norm;
    const KvHead head = make_head(shape, 9);
    for (const std::vector<Index>& tokens : token_lists(8, 90)) {
      for (const Range scoring : {Range{40, 100}, Range{45, 46}}) {
        const JobOf job("capkv", head, tokens, scoring);
        for (const Given& given : settings("tau=0,5,100;reduce=mean,max,sum")) {
          const reference::Vec slow = reference::capkv(
              head, tokens, scoring.begin, scoring.end, nullptr, nullptr, true, 0,
              std::stold(given.at("tau")), reference::kReduces.at(given.at("reduce")));
          expect_best_kept(job, slow, kRounding, given);
        }
      }
    }
  }
}

TEST(CapKv, EqualsReferenceWithTables) {
  const KvHead head = make_head(kShape, 12);
  const std::vector<Index> tokens = gappy(8, 90);
  for (const auto& [layout, dim] : kRopeLayouts) {
    const RopeTables tables = rope_tables(110 + 512, dim, layout, 50.0, 1.2);
    for (const Given& given : settings("n_future=1,37,512;n_skip=0,44")) {
      JobOf job("capkv", head, tokens, {40, 60});
      job.rope = tables;
      const reference::Vec slow = reference::capkv(
          head, tokens, std::max<Index>(40, index_in(given, "n_skip")), 60, &tables.cos,
          &tables.sin, layout == RopeLayout::half, index_in(given, "n_future"), 5);
      expect_best_kept(job, slow, kRounding, given);
    }
  }
}

// Values along one axis each: A is diagonal, and a value of length a and weight w alone on its axis
// scores w a^2 / (1 + (w + 1e-6) a^2). Two equal values share an axis and score about half.
TEST(CapKv, RepeatedValuesAddLittle) {
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
  const JobOf job("capkv", head, positions(0, 4), {0, 6});
  EXPECT_EQ(job.kept(1, {{"n_skip", "0"}}), (std::vector<Index>{2}));
  EXPECT_EQ(job.kept(3, {{"n_skip", "0"}}), (std::vector<Index>{0, 1, 2}));
  head.k.row(2)[0] = -1.0F;  // weight e^-10
  const JobOf turned("capkv", head, positions(0, 4), {0, 6});
  EXPECT_EQ(turned.kept(3, {{"n_skip", "0"}}), (std::vector<Index>{0, 1, 3}));
  EXPECT_EQ(turned.kept(1, {{"n_skip", "0"}, {"tau", "0"}}), (std::vector<Index>{2}));
}

// I is below the rounding of the sum, of rank 2 in 4 dimensions: a larger ridge takes its place,
// and repeated values still share what a lone one has.
TEST(CapKv, HugeValuesHaveDefinedScores) {
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
  const JobOf job("capkv", head, positions(0, 3), {0, 6});
  EXPECT_EQ(job.kept(1), (std::vector<Index>{2}));
}

}  // namespace
}  // namespace kvbench::test_capkv
