// kvreviver's stream: budgets of every size, odd inputs, seeds, the paper's bound, refusals.
#include <gtest/gtest.h>

#include <algorithm>

#include "algorithms/contract.hpp"
#include "compressed.hpp"
#include "core/error.hpp"
#include "core/float16.hpp"
#include "make_head.hpp"
#include "reference/reference.hpp"
#include "revive_runs.hpp"

namespace kvbench::test_kvreviver_limits {
namespace {

using namespace testing_revive;

TEST(KvReviver, NeverHoldsMoreThanItsBudgetAndNeedsWhatItSays) {
  for (const DType dtype : {DType::float16, DType::float32}) {
    HeadShape shape;
    shape.n = 150;
    shape.nq = 150;
    shape.d = 16;
    shape.dv = 12;
    shape.dtype = dtype;
    const KvHead head = rounded_head(shape, 51);
    for (const Given& given :
         {Given{}, Given{{"estimate", "mean"}, {"slack", "3"}},
          Given{{"recent_ratio", "0"}, {"candidate_ratio", "0"}, {"vague_ratio", "1"}},
          Given{{"candidate_ratio", "0"}, {"rows", "2"}}, Given{{"recent_ratio", "0"}}}) {
      for (const Index m : {1, 2, 3, 17, 60, 140}) {
        const std::vector<Index> tokens = positions(5, 5 + m);
        const Index full = m * head.pair_bytes();
        for (Index budget = 0; budget <= full + 64; budget += 1 + full / 37) {
          try {
            EXPECT_LE(bytes_of(run(head, tokens, budget, given), head), budget);
          } catch (const Infeasible& e) {
            EXPECT_GT(e.needed_bytes(), budget);
            EXPECT_LE(e.needed_bytes(), full);
            EXPECT_NO_THROW(run(head, tokens, e.needed_bytes(), given));
          }
        }
        const Compressed all = run(head, tokens, full, given);
        EXPECT_EQ(all.held.tokens, tokens);
        EXPECT_EQ(bytes_of(all, head), full);
      }
    }
  }
}

TEST(KvReviver, OddInputsGiveDefinedResults) {
  HeadShape shape;
  shape.n = 90;
  shape.nq = 90;
  std::vector<KvHead> heads;
  heads.push_back(make_head(shape, 1));  // identical tokens
  for (Index i = 1; i < 90; ++i) {
    std::copy_n(heads[0].k.row(0), 8, heads[0].k.row(i));
    std::copy_n(heads[0].v.row(0), 8, heads[0].v.row(i));
  }
  heads.push_back(make_head(shape, 2));  // zero keys: equal attention everywhere
  std::fill_n(heads[1].k.data(), 90 * 8, 0.0F);
  heads.push_back(make_head(shape, 3));  // zero values
  std::fill_n(heads[2].v.data(), 90 * 8, 0.0F);
  shape.key_norm = 1e5;
  shape.value_norm = 1e-30;
  heads.push_back(make_head(shape, 4));
  heads.push_back(make_head(shape, 5));  // sums of keys beyond float32
  for (Index i = 0; i < 90 * 8; ++i) {
    heads[4].k.data()[i] = heads[4].k.data()[i] < 0 ? -3e38F : 3e38F;
    heads[4].v.data()[i] = 3e38F;
  }
  heads.push_back(make_head(shape, 6));  // no queries
  heads[5].q.assign(2, Matrix(0, 8));
  for (const KvHead& head : heads) {
    for (const Index budget_tokens : {0, 30, 60, 1000000}) {
      try {
        const Compressed c = run(head, positions(3, 83), budget_tokens * head.pair_bytes());
        EXPECT_TRUE(all_finite(c.made.k.data(), c.made.k.rows() * 8));
        EXPECT_TRUE(all_finite(c.made.v.data(), c.made.v.rows() * 8));
      } catch (const Infeasible&) {
        EXPECT_LT(budget_tokens, 60);
      }
    }
  }
  // No query: nothing is swapped, Candidate keeps the earliest.
  const Compressed c = run(heads[5], positions(3, 83), 60 * heads[5].pair_bytes());
  EXPECT_EQ(diag_text(c, "swaps"), "0");
  EXPECT_EQ(c.held.tokens.front(), 3);
  EXPECT_EQ(c.held.tokens[5], 8);
}

TEST(KvReviver, ErrorsAreSetBesideThePapersBound) {
  HeadShape shape;  // the paper's model: independent normal elements
  shape.n = 600;
  shape.nq = 600;
  shape.d = 32;
  shape.dv = 32;
  const KvHead head = make_head(shape, 61);
  const Compressed c = run(head, positions(0, 600), 200 * head.pair_bytes());
  EXPECT_GT(std::stod(diag_text(c, "k_error")), 0.0);
  EXPECT_LE(std::stod(diag_text(c, "k_error")), std::stod(diag_text(c, "k_bound")));
  EXPECT_LE(std::stod(diag_text(c, "v_error")), std::stod(diag_text(c, "v_bound")));
  EXPECT_EQ(diag_text(c, "overflows"), "0");
  EXPECT_EQ(c.transient_bytes, std::stoll(diag_text(c, "vague")) * head.pair_bytes());
  EXPECT_EQ(static_cast<Index>(c.held.tokens.size()) + c.made.k.rows(), 600);
}

TEST(KvReviver, SameSeedSameResultAndSeedsMatter) {
  HeadShape shape;
  shape.n = 200;
  shape.nq = 200;
  const KvHead head = make_head(shape, 71);
  const auto keys = [&](std::uint64_t seed) {
    return reference::rows_of(
        run(head, positions(0, 200), 130 * head.pair_bytes(), {}, seed).made.k);
  };
  EXPECT_TRUE(keys(1) == keys(1));
  EXPECT_FALSE(keys(1) == keys(2));
}

TEST(KvReviver, SizesAndRefusals) {
  const KvHead head = make_head({}, 1);
  EXPECT_THROW(run(head, positions(0, 10), {}), InputError);
  EXPECT_THROW(run(head, positions(0, 10), 100000, {{"recent_ratio", "0.6"}}), InputError);
  EXPECT_THROW(run(head, positions(0, 60), {}, {{"tokens", "10"}}), Infeasible);
  const Compressed c = run(head, positions(0, 60), {}, {{"tokens", "55"}});
  EXPECT_LE(bytes_of(c, head), 55 * head.pair_bytes());
  try {
    run(head, positions(0, 10), 100000, {{"layer_budget", "fisher"}});
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("`fisher`"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvbench::test_kvreviver_limits
