// The count sketch: its hash family, its law (unbiasedness and variance, by statistics over seeds),
// the median, rounding and what taking away leaves.

#include <limits>

#include "algorithms/shared/count_sketch.hpp"
#include "make_head.hpp"
#include "read_rows.hpp"
#include "reference/kvreviver.hpp"

namespace kvbench::test_count_sketch {
namespace {

// Statistical tests refuse at 4.5 standard errors: 7e-6 for one two-sided comparison of a normal
// mean; seeds are fixed, so they pass or fail for good.
constexpr double kSigmas = 4.5;

RngStream stream_of(std::uint64_t seed) {
  return Rng(seed, {"sketch", 0, 0}, "test").stream("sketch");
}

SketchShape shape_of(Index rows, Index cells, Index d, Index dv, DType dtype = DType::float32,
                     CellEstimate estimate = CellEstimate::sum) {
  return {rows, cells, d, dv, dtype, estimate};
}

struct Moments {
  double sum = 0.0, square = 0.0, count = 0.0;
  void add(double x) {
    sum += x;
    square += x * x;
    count += 1.0;
  }
  double mean() const { return sum / count; }
  double error() const {
    return std::sqrt(std::max(0.0, square / count - mean() * mean()) / count);
  }
};

TEST(CountSketch, HashesAreTheDocumentedFamily) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const RngStream words = stream_of(seed);
    for (const Index cells : {1, 2, 7, 100, 12345}) {
      const CountSketch s(shape_of(3, cells, 1, 1), words);
      for (const Index x : {Index{0}, Index{1}, Index{77}, Index{4095}, (Index{1} << 32) - 1}) {
        for (Index r = 0; r < 3; ++r) {
          const auto w = static_cast<std::uint64_t>(4 * r);
          ASSERT_EQ(s.cell(r, x), reference::hash_cell(words.word(w), words.word(w + 1), x, cells));
          ASSERT_LT(s.cell(r, x), cells);
          ASSERT_EQ(s.sign(r, x), static_cast<float>(reference::hash_sign(words.word(w + 2),
                                                                          words.word(w + 3), x)));
        }
      }
    }
  }
}

TEST(CountSketch, HashesArePairwiseIndependent) {
  constexpr Index kCells = 8;
  for (const auto& [x, y] : {std::pair<Index, Index>{3, 4}, {0, 1024}, {17, 40000}}) {
    Moments collide, signs, sign;
    for (std::uint64_t seed = 0; seed < 20000; ++seed) {
      const CountSketch s(shape_of(1, kCells, 1, 1), stream_of(seed));
      collide.add(s.cell(0, x) == s.cell(0, y) ? 1.0 : 0.0);
      sign.add(static_cast<double>(s.sign(0, x)));
      signs.add(static_cast<double>(s.sign(0, x) * s.sign(0, y)));
    }
    EXPECT_LE(std::fabs(collide.mean() - 1.0 / kCells), kSigmas * collide.error());
    EXPECT_LE(std::fabs(signs.mean()), kSigmas * signs.error());
    EXPECT_LE(std::fabs(sign.mean()), kSigmas * sign.error());
  }
}

// One row, any fixed tokens: E[value] = v, Var = sum of the others' v^2 / cells; E[key] = k + sum
// of the others' k / cells (keys carry no sign).
TEST(CountSketch, OneRowIsUnbiasedForValuesAndHasTheVarianceOfItsLaw) {
  constexpr Index kTokens = 30, kCells = 10;
  const KvHead head = make_head({.n = kTokens, .d = 2, .dv = 2}, 5);
  const Index token = 11;
  for (Index t = 0; t < 2; ++t) {
    double squares = 0.0;
    double keys = 0.0;
    for (Index i = 0; i < kTokens; ++i) {
      if (i != token) {
        squares += std::pow(static_cast<double>(head.v.row(i)[t]), 2);
        keys += static_cast<double>(head.k.row(i)[t]);
      }
    }
    Moments value, square, key;
    for (std::uint64_t seed = 0; seed < 6000; ++seed) {
      CountSketch s(shape_of(1, kCells, 2, 2), stream_of(seed));
      for (Index i = 0; i < kTokens; ++i) {
        s.add(i, head.k.row(i), head.v.row(i));
      }
      float k[2], v[2];
      s.key(token, k);
      s.value(token, v);
      const double error = static_cast<double>(v[t]) - static_cast<double>(head.v.row(token)[t]);
      value.add(error);
      square.add(error * error);
      key.add(static_cast<double>(k[t]) - static_cast<double>(head.k.row(token)[t]));
    }
    EXPECT_LE(std::fabs(value.mean()), kSigmas * value.error());
    EXPECT_LE(std::fabs(square.mean() - squares / kCells), kSigmas * square.error());
    EXPECT_LE(std::fabs(key.mean() - keys / kCells), kSigmas * key.error());
  }
}

// The paper's setting: normal elements, three rows. Values stay unbiased, the median's variance is
// below that of one row and below the paper's bound, for keys and for values.
TEST(CountSketch, MedianOfThreeMeetsThePapersVarianceBound) {
  for (const auto& [tokens, cells] : {std::pair<Index, Index>{60, 20}, {200, 8}, {30, 30}}) {
    Moments value, value_square, key_square, one_row;
    std::mt19937_64 generator(9);
    for (std::uint64_t seed = 0; seed < 1500; ++seed) {
      const Matrix k = normal_matrix(tokens, 1, 2.0, generator);  // sigma_k = 2
      const Matrix v = normal_matrix(tokens, 1, 1.0, generator);
      CountSketch three(shape_of(3, cells, 1, 1), stream_of(seed));
      CountSketch one(shape_of(1, cells, 1, 1), stream_of(seed));
      for (Index i = 0; i < tokens; ++i) {
        three.add(i, k.row(i), v.row(i));
        one.add(i, k.row(i), v.row(i));
      }
      const auto token = static_cast<Index>(seed % static_cast<std::uint64_t>(tokens));
      float x = 0.0F;
      three.value(token, &x);
      const double ve = static_cast<double>(x - *v.row(token));
      value.add(ve);
      value_square.add(ve * ve);
      one.value(token, &x);
      one_row.add(std::pow(static_cast<double>(x - *v.row(token)), 2));
      three.key(token, &x);
      key_square.add(std::pow(static_cast<double>(x - *k.row(token)), 2));
    }
    EXPECT_LE(std::fabs(value.mean()), kSigmas * value.error());
    EXPECT_LE(value_square.mean() + kSigmas * value_square.error(),
              sketch_variance_bound(tokens, 3 * cells, 1.0));
    EXPECT_LE(key_square.mean() + kSigmas * key_square.error(),
              sketch_variance_bound(tokens, 3 * cells, 4.0));
    EXPECT_LT(value_square.mean() + kSigmas * value_square.error(), one_row.mean());
  }
  EXPECT_DOUBLE_EQ(sketch_variance_bound(6, 3, 2.0), std::acos(-1.0) * 4.0);
}

TEST(CountSketch, MedianOfAnyNumberOfRowsEqualsReference) {
  // Even rows halve two float32 numbers of up to 8 that may cancel: two roundings of 2^-22.
  constexpr double kHalves = 5e-7;
  // Not a multiple of any vector.
  const HeadShape hs{.n = 25, .d = 19, .dv = 5};
  const KvHead head = make_head(hs, 3);
  for (const CellEstimate estimate : {CellEstimate::sum, CellEstimate::mean}) {
    for (const Index rows : {1, 2, 3, 4, 5, 8, 15}) {
      const RngStream words = stream_of(static_cast<std::uint64_t>(rows));
      CountSketch s(shape_of(rows, 6, hs.d, hs.dv, DType::float32, estimate), words);
      reference::ReviverReference slow;
      slow.head = &head;
      slow.sizes.rows = rows;
      slow.sizes.cells = 6;
      slow.mean = estimate == CellEstimate::mean;
      for (std::uint64_t w = 0; w < 60; ++w) {
        slow.words.push_back(words.word(w));
      }
      slow.start();
      for (Index i = 0; i < hs.n; ++i) {
        s.add(i, head.k.row(i), head.v.row(i));
        slow.put(i, slow.tokens[i].k, slow.tokens[i].v, 1);
      }
      std::vector<float> k(19), v(5);
      for (Index i = 0; i < hs.n; ++i) {
        s.key(i, k.data());
        s.value(i, v.data());
        const reference::Vec tk = slow.rebuilt(i, false), tv = slow.rebuilt(i, true);
        expect_all_near(k, tk, kHalves);
        expect_all_near(v, tv, kHalves);
      }
    }
  }
}

TEST(CountSketch, WithoutCollisionsTokensComeBackToTheBit) {
  const HeadShape hs{.n = 6, .dtype = DType::float16};
  KvHead head = make_rounded_head(hs, 4);
  int exact = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (const CellEstimate estimate : {CellEstimate::sum, CellEstimate::mean}) {
      CountSketch s(shape_of(3, 64, 8, 8, hs.dtype, estimate), stream_of(seed));
      for (Index i = 0; i < hs.n; ++i) {
        s.add(i, head.k.row(i), head.v.row(i));
      }
      for (Index i = 0; i < hs.n; ++i) {
        int alone = 0;
        for (Index r = 0; r < 3; ++r) {
          alone += s.counts()[r * 64 + s.cell(r, i)] == 1 ? 1 : 0;
        }
        if (alone < 2) {
          continue;  // two rows that agree are the median
        }
        ++exact;
        float k[8], v[8];
        s.key(i, k);
        s.value(i, v);
        for (Index t = 0; t < 8; ++t) {
          ASSERT_EQ(k[t], head.k.row(i)[t]);
          ASSERT_EQ(v[t], head.v.row(i)[t]);
        }
      }
    }
  }
  EXPECT_GT(exact, 400);
}

TEST(CountSketch, TakingAwayWhatWasAddedLeavesZeros) {
  CountSketch s(shape_of(3, 4, 2, 3), stream_of(1));
  for (Index i = 0; i < 40; ++i) {  // whole numbers: every sum is exact
    const float x[3] = {static_cast<float>(i), 3.0F, -static_cast<float>(i * i)};
    s.add(i, x, x);
  }
  for (Index i = 39; i >= 0; --i) {
    const float x[3] = {static_cast<float>(i), 3.0F, -static_cast<float>(i * i)};
    s.subtract(i, x, x);
  }
  for (Index i = 0; i < 12 * 2; ++i) {
    EXPECT_EQ(s.keys().data()[i], 0.0F);
  }
  for (Index i = 0; i < 12 * 3; ++i) {
    EXPECT_EQ(s.values().data()[i], 0.0F);
  }
  for (const std::uint32_t c : s.counts()) {
    EXPECT_EQ(c, 0U);
  }
}

TEST(CountSketch, CellsAreElementsOfTheTypeAndStayFinite) {
  for (const DType type : {DType::float16, DType::bfloat16, DType::float32}) {
    CountSketch s(shape_of(3, 1, 1, 1, type), stream_of(2));
    const float huge = type == DType::float16 ? 60000.0F : 3e38F;
    const float fine = round_to(type, 1.001F);
    for (Index i = 0; i < 3; ++i) {
      s.add(i, &huge, &fine);
      for (Index c = 0; c < 3; ++c) {
        EXPECT_EQ(*s.keys().row(c), round_to(type, *s.keys().row(c)));
        EXPECT_TRUE(std::isfinite(*s.keys().row(c)));
        EXPECT_EQ(*s.values().row(c), round_to(type, *s.values().row(c)));
      }
    }
    EXPECT_EQ(s.overflows(), 6);  // the second and the third token, in three rows
    float out = 0.0F;
    s.key(0, &out);
    EXPECT_TRUE(std::isfinite(out));
  }
}

TEST(CountSketch, BytesAreWhatIsAllocated) {
  const SketchShape a = shape_of(3, 10, 8, 4, DType::float16);
  EXPECT_EQ(a.payload_bytes(), 3 * 10 * 12 * 2);
  EXPECT_EQ(a.aux_bytes(), 96);
  EXPECT_EQ(shape_of(3, 10, 8, 4, DType::float32, CellEstimate::mean).aux_bytes(), 96 + 120);
  EXPECT_EQ(shape_of(3, 0, 8, 4).aux_bytes() + shape_of(3, 0, 8, 4).payload_bytes(), 0);
}

}  // namespace
}  // namespace kvbench::test_count_sketch
