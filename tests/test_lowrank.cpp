// lowrank against its reference, what its weight is for, ranks and bytes, keys before their
// rotation.
#include "algorithms/shared/size.hpp"
#include "method_checks.hpp"
#include "reference/lowrank.hpp"

namespace kvbench::test_lowrank {
namespace {

constexpr Range kScoring = {60, 84};

HeadShape small(DType dtype = DType::float32) {
  const HeadShape shape{.n = 90, .nq = 90, .dv = 5, .dtype = dtype};
  return shape;
}

// Half a unit in the last place, relative.
double unit(DType dtype) {
  return dtype == DType::float32 ? 0x1p-24 : dtype == DType::float16 ? 0x1p-11 : 0x1p-8;
}

reference::Rows scoring_queries(const KvHead& head, Range scoring) {
  reference::Rows out;
  for (const Matrix& q : head.q) {
    const reference::Rows all = reference::rows_of(q);
    for (Index p = scoring.begin; p < scoring.end; ++p) {
      out.push_back(all[p - head.q_start()]);
    }
  }
  return out;
}

reference::Vec rounded(DType dtype, reference::Vec x) {
  for (reference::Real& e : x) {
    e = static_cast<reference::Real>(round_to(dtype, static_cast<float>(e)));
  }
  return x;
}

// `made` is mean + U C up to the rounding of U and C (each off by `unit` of itself, below the
// smallest normal half by half its spacing), of the result to float32, and of the reference's half
// of its digits.
void expect_factors(const Matrix& made, const reference::Rows& x, const reference::Rows& weight,
                    Index rank, DType dtype) {
  const reference::Vec mean = rounded(dtype, reference::row_mean(x));
  const reference::LowRank f = reference::low_rank(x, mean, weight, static_cast<std::size_t>(rank));
  const double spacing = dtype == DType::float16 ? 0x1p-25 : 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t c = 0; c < mean.size(); ++c) {
      reference::Real sum = mean[c];
      double bound = 1e-7 * (1.0 + std::abs(static_cast<double>(mean[c])));
      for (std::size_t r = 0; r < f.c.size(); ++r) {
        sum += f.u[i][r] * f.c[r][c];
        const auto u = std::abs(static_cast<double>(f.u[i][r]));
        const auto v = std::abs(static_cast<double>(f.c[r][c]));
        bound += 2.1 * unit(dtype) * u * v + 1.1 * spacing * (u + v) + 1e-8 * v;
      }
      const double got = static_cast<double>(made.row(static_cast<Index>(i))[c]);
      ASSERT_TRUE(std::abs(got - static_cast<double>(sum)) <= bound)
          << i << " " << c << " " << got << " " << static_cast<double>(sum) << " " << bound;
    }
  }
}

Given given(Index rank, const char* weight = "none") {
  return {{"rank_k", std::to_string(rank)}, {"weight", weight}};
}

TEST(LowRank, EqualsTheReference) {
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    for (const auto& tokens : {positions(10, 58), gappy(3, 60)}) {
      const JobOf job("lowrank", make_rounded_head(small(dtype), 4), tokens, kScoring);
      for (const Index rank : {1, 3, 5, 8}) {
        for (const char* weight : {"none", "queries"}) {
          const Compressed c = job.run({}, given(rank, weight));
          const bool weighted = std::string(weight) == "queries";
          expect_factors(c.made.k, reference::rows_at(job.head().k, tokens),
                         weighted ? reference::query_factor(scoring_queries(job.head(), kScoring))
                                  : reference::Rows(),
                         rank, dtype);
          expect_factors(c.made.v, reference::rows_at(job.head().v, tokens), {},
                         std::min<Index>(rank, 5), dtype);
          ASSERT_EQ(c.made.positions, tokens);
          ASSERT_EQ(c.quantized, static_cast<Index>(tokens.size()));
          ASSERT_TRUE(c.held.tokens.empty());
        }
      }
    }
  }
}

// Fewer tokens than channels; all equal; one channel of all variance.
TEST(LowRank, ShortAndFlatMatrices) {
  KvHead head = make_head(small(), 6);
  for (const char* weight : {"none", "queries"}) {
    for (const Index m : {1, 2, 5}) {
      const JobOf job("lowrank", head, positions(20, 20 + m), kScoring);
      const Compressed c = job.run({}, given(8, weight));
      EXPECT_EQ(diag_text(c, "rank_k"), std::to_string(m));
      // Full rank: what it gives back is the keys, to float32.
      EXPECT_TRUE(diag_number(c, "k_error") <= 1e-6);
      EXPECT_TRUE(diag_number(c, "v_error") <= 1e-6);
    }
  }
  repeat_first_row(head.k);
  const JobOf equal("lowrank", head, positions(5, 55), kScoring);
  EXPECT_TRUE(diag_number(equal.run({}, given(1)), "k_error") <= 1e-7);
  for (Index i = 0; i < 90; ++i) {
    head.k.row(i)[3] = static_cast<float>(i);
  }
  const JobOf line("lowrank", head, positions(5, 55), kScoring);
  EXPECT_TRUE(diag_number(line.run({}, given(1, "queries")), "k_error") <= 1e-6);
}

double logit_error(const JobOf& job, const Compressed& c) {
  double sum = 0.0;
  for (const Matrix& q : job.head().q) {
    for (Index p = kScoring.begin; p < kScoring.end; ++p) {
      for (Index i = 0; i < c.made.k.rows(); ++i) {
        const float* query = q.row(p - job.head().q_start());
        const double e = slow_logit(job.head(), c.made.k.row(i), query) -
                         slow_logit(job.head(), job.head().k.row(job.tokens()[i]), query);
        sum += e * e;
      }
    }
  }
  return sum;
}

// Of all factors of a rank the weighted ones keep the scoring queries' logits best.
TEST(LowRank, TheWeightIsForTheLogits) {
  KvHead head = make_head(small(), 9);
  for (Matrix& q : head.q) {
    for (Index i = 0; i < q.rows(); ++i) {
      q.row(i)[0] *= 10.0F;
      q.row(i)[5] *= 0.1F;
    }
  }
  const JobOf job("lowrank", head, positions(10, 58), kScoring);
  for (const Index rank : {1, 2, 4, 6}) {
    const Compressed plain = job.run({}, given(rank));
    const Compressed weighted = job.run({}, given(rank, "queries"));
    EXPECT_LT(logit_error(job, weighted), 0.9 * logit_error(job, plain)) << rank;
    EXPECT_GT(diag_number(weighted, "k_error"), diag_number(plain, "k_error")) << rank;
    EXPECT_TRUE(same_bits(weighted.made.v, plain.made.v));
  }
  // No query weighs nothing.
  const JobOf blind("lowrank", head, positions(10, 58), {84, 84});
  EXPECT_TRUE(same_bits(blind.run({}, given(3, "queries")).made.k, blind.run({}, given(3)).made.k));
}

TEST(LowRank, BytesAndRanks) {
  // 50 tokens, d = 8, dv = 5, two bytes: rank 3 is (58 * 3 + 8 + 55 * 3 + 5) * 2 bytes.
  const JobOf job("lowrank", make_rounded_head(small(DType::float16), 4), positions(5, 55),
                  kScoring);
  const Index three = (58 * 3 + 8 + 55 * 3 + 5) * 2;
  const Compressed c = job.run(three);
  EXPECT_EQ(diag_text(c, "rank_k"), "3");
  EXPECT_EQ(diag_text(c, "rank_v"), "3");
  EXPECT_EQ(c.payload_bytes, three);
  EXPECT_EQ(c.aux_bytes, 0);
  EXPECT_EQ(diag_text(job.run(three - 1), "rank_k"), "2");
  // Values stop at their five channels, keys go on.
  const Index six = (58 * 6 + 8 + 55 * 5 + 5) * 2;
  EXPECT_EQ(job.run(six).payload_bytes, six);
  EXPECT_EQ(diag_text(job.run(six), "rank_v"), "5");
  EXPECT_EQ(diag_text(job.run(Index{1} << 30), "rank_k"), "8");
  const Index least = (58 + 8 + 55 + 5) * 2;
  EXPECT_EQ(needed_bytes([&] { job.run(least - 1); }), least);
  EXPECT_EQ(job.run(least).payload_bytes, least);
  // Apart; one for both.
  const Compressed apart = job.run({}, {{"rank_k", "2"}, {"rank_v", "4"}});
  EXPECT_EQ(apart.payload_bytes, (58 * 2 + 8 + 55 * 4 + 5) * 2);
  EXPECT_EQ(diag_text(job.run({}, {{"rank_v", "4"}}), "rank_k"), "4");
  EXPECT_THROW(job.run({}), InputError);
  const JobOf empty("lowrank", make_head(small(), 4), {}, kScoring);
  EXPECT_EQ(empty.run(0).made.k.rows(), 0);
}

// A row of 8 channels, rotated.
void turn(const RopeTables& tables, Index p, const float* from, float* to) {
  rotate(tables, p, std::vector<double>(from, from + 8), {to, 8});
}

// With keys=pre and the rotated head it is, rotated, what it is with keys=post and the head before.
TEST(LowRank, KeysBeforeTheirRotation) {
  const KvHead bare = make_head(small(), 12);
  const RopeTables tables = testing_replay::rope_tables(90, 6, RopeLayout::half, 100.0);
  KvHead head = bare;
  for (Index i = 0; i < 90; ++i) {
    turn(tables, i, bare.k.row(i), head.k.row(i));
    for (std::size_t g = 0; g < head.q.size(); ++g) {
      turn(tables, i, bare.q[g].row(i), head.q[g].row(i));
    }
  }
  const std::vector<Index> tokens = gappy(4, 59);
  JobOf job("lowrank", head, tokens, kScoring);
  job.rope = tables;
  const JobOf plain("lowrank", bare, tokens, kScoring);
  for (const char* weight : {"none", "queries"}) {
    for (const Index rank : {2, 5}) {
      Given pre = given(rank, weight);
      pre["keys"] = "pre";
      const Compressed c = job.run({}, pre);
      const Compressed e = plain.run({}, given(rank, weight));
      std::vector<float> turned(8);
      for (Index i = 0; i < c.made.k.rows(); ++i) {
        turn(tables, tokens[i], e.made.k.row(i), turned.data());
        for (Index t = 0; t < 8; ++t) {
          // Keys are some units; rotated and back they carry float32's rounding, and so do factors.
          ASSERT_TRUE(std::abs(c.made.k.row(i)[t] - turned[t]) <= 1e-5F) << weight << i << " " << t;
        }
      }
      EXPECT_TRUE(same_bits(c.made.v, e.made.v));
    }
  }
}

}  // namespace
}  // namespace kvbench::test_lowrank
