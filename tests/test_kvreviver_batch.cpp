// kvreviver with prefill=batch: against its reference, its bytes, what stands for the vague tokens,
// when a sketch is no fair one, and what is refused before the first row.
#include "algorithms/shared/count_sketch.hpp"
#include "read_rows.hpp"
#include "reference/kvreviver_batch.hpp"
#include "reference/selection.hpp"
#include "refusal.hpp"
#include "stream_of.hpp"

namespace kvbench::test_kvreviver_batch {
namespace {

// Even rows halve two float32 quotients of up to 8 that may cancel: two roundings of 2^-22.
constexpr double kHalves = 5e-7;

constexpr DType kTypes[] = {DType::float32, DType::float16, DType::bfloat16};

HeadShape shape_of(Index n, DType dtype = DType::float32) {
  const HeadShape shape{.n = n, .nq = n, .d = 16, .dv = 11, .dtype = dtype};
  return shape;
}

// `c` with seed 1, as JobOf has it.
reference::BatchReference reference_of(const JobOf& job, Range scoring,
                                       reference::ReviverSizes sizes,
                                       reference::ReferenceReduce reduce, bool mean) {
  reference::BatchReference t;
  t.head = &job.head();
  t.tokens = job.tokens();
  t.scores = reference::taken(
      reference::reduced(reference::attention_sums(job.head(), scoring.begin, scoring.end), reduce),
      t.tokens);
  t.sizes = sizes;
  t.mean = mean;
  const DType dtype = job.head().dtype;
  t.element = reference::element_of(dtype);
  t.largest = dtype == DType::float16   ? 65504.0L
              : dtype == DType::float32 ? 0x1.FFFFFEp127L
                                        : 0x1.FEp127L;
  const RngStream words = Rng(1, {"p", 0, 0}, "kvreviver").stream("sketch");
  for (std::uint64_t w = 0; w < static_cast<std::uint64_t>(4 * sizes.rows); ++w) {
    t.words.push_back(words.word(w));
  }
  t.choose();
  return t;
}

struct Case {
  Given given;
  Index rows = 3;
  bool mean = false;
  reference::ReferenceReduce reduce = reference::ReferenceReduce::mean;
};

TEST(KvReviverBatch, EqualsTheReference) {
  const std::vector<Case> cases = {
      {{}},
      {{{"estimate", "mean"}, {"reduce", "max"}}, 3, true, reference::ReferenceReduce::max},
      {{{"rows", "1"}}, 1},
      {{{"rows", "4"}, {"estimate", "mean"}, {"slack", "500"}}, 4, true},
      {{{"rows", "5"}, {"reduce", "sum"}}, 5, false, reference::ReferenceReduce::sum}};
  Index fair = 0;
  for (const DType dtype : kTypes) {
    for (const auto& tokens : {positions(5, 122), gappy(5, 122)}) {
      for (const Range scoring : {Range{0, 120}, Range{100, 110}}) {
        const JobOf job("kvreviver", make_rounded_head(shape_of(130, dtype), 11), tokens, scoring);
        const Index pair = job.head().pair_bytes();
        for (const Case& one : cases) {
          for (const Index budget : {20 * pair + 7, 40 * pair + 1, 70 * pair}) {
            const auto sizes = reference::reviver_sizes(budget, 0, 0, one.rows, pair, one.mean);
            if (sizes.cells < 1) {
              EXPECT_THROW(job.run(budget, one.given), Infeasible);
              continue;
            }
            reference::BatchReference slow =
                reference_of(job, scoring, sizes, one.reduce, one.mean);
            const Compressed c = job.run(budget, one.given);
            ASSERT_EQ(c.held.tokens, slow.exact);
            const bool halves = one.rows % 2 == 0 && dtype == DType::float32;
            const double tolerance = halves ? kHalves : 0.0;
            ASSERT_NO_FATAL_FAILURE(expect_rows(c.made.k, slow.rebuilt_keys(), tolerance));
            ASSERT_NO_FATAL_FAILURE(expect_rows(c.made.v, slow.rebuilt_values(), tolerance));
            ASSERT_EQ(c.aux_bytes, 4 * sizes.candidates + 32 * one.rows +
                                       (one.mean ? 4 * one.rows * sizes.cells : 0));
            ASSERT_EQ(c.payload_bytes,
                      (sizes.recent + sizes.candidates + one.rows * sizes.cells) * pair);
            ASSERT_LE(middle_bytes_of(c, job.head()), budget);
            ASSERT_EQ(c.transient_bytes, static_cast<Index>(slow.vague.size()) * pair);
            ASSERT_EQ(diag_text(c, "vague"), std::to_string(slow.vague.size()));
            ASSERT_EQ(diag_text(c, "cells"), std::to_string(one.rows * sizes.cells));
            ASSERT_EQ(c.degenerate.empty(), sizes.cells > 1);
            fair += sizes.cells > 1 ? 1 : 0;
          }
        }
      }
    }
  }
  EXPECT_GT(fair, 40);
}

TEST(KvReviverBatch, WithoutASketchEqualsTheReference) {
  const Range scoring = {0, 120};
  for (const DType dtype : kTypes) {
    for (const auto& tokens : {positions(5, 122), gappy(5, 122)}) {
      const JobOf job("kvreviver", make_rounded_head(shape_of(130, dtype), 12), tokens, scoring);
      const Index pair = job.head().pair_bytes();
      for (const Index budget : {20 * pair + 7, 41 * pair + 1, 70 * pair}) {
        for (const bool mean : {false, true}) {
          const auto sizes = reference::plain_sizes(budget, pair, mean);
          reference::BatchReference slow =
              reference_of(job, scoring, sizes, reference::ReferenceReduce::mean, false);
          const Compressed c = job.run(budget, {{"vague", mean ? "mean" : "none"}});
          ASSERT_EQ(c.held.tokens, slow.exact);
          ASSERT_EQ(c.made.k.rows(), mean ? 1 : 0);
          ASSERT_EQ(c.aux_bytes, mean ? 4 : 0);
          ASSERT_LE(middle_bytes_of(c, job.head()), budget);
          ASSERT_EQ(c.transient_bytes, 0);
          ASSERT_EQ(diag_text(c, "vague"), std::to_string(slow.vague.size()));
          ASSERT_TRUE(c.degenerate.empty());
          if (mean) {
            ASSERT_TRUE(reference::rows_of(c.made.k)[0] == slow.mean_of(job.head().k));
            ASSERT_TRUE(reference::rows_of(c.made.v)[0] == slow.mean_of(job.head().v));
            ASSERT_EQ(c.made.weights, (std::vector<float>{static_cast<float>(slow.vague.size())}));
          }
        }
      }
    }
  }
}

// A share that holds no token is no instance of the method; a share of 0 asks for none.
TEST(KvReviverBatch, EveryShareHoldsAToken) {
  const JobOf job("kvreviver", make_rounded_head(shape_of(130), 15), positions(5, 122), {0, 120});
  const Index budget = 60 * job.head().pair_bytes();
  for (const char* ratio : {"recent_ratio", "candidate_ratio"}) {
    for (const char* prefill : {"batch", "stream"}) {
      EXPECT_THROW(job.run(budget, {{ratio, "0.01"}, {"prefill", prefill}}), Infeasible);
      EXPECT_NO_THROW(job.run(budget, {{ratio, "0"}, {"prefill", prefill}}));
    }
  }
  EXPECT_THROW(StreamOf("kvreviver", job.head(), {{"recent_ratio", "0.01"}}, {}, budget),
               Infeasible);
}

// One cell a row holds the sum of all vague tokens, in every protocol.
TEST(KvReviverBatch, OneCellARowIsDegenerate) {
  const JobOf job("kvreviver", make_rounded_head(shape_of(130), 16), positions(0, 130), {0, 130});
  const Index pair = job.head().pair_bytes();
  // Cells a row by budget: 0.1 of what is left over 3 pairs.
  for (const Index tokens : {45, 75}) {
    const Index left = tokens * pair;
    const bool one = tokens == 45;
    const Compressed batch = job.run(left + 96);
    EXPECT_EQ(diag_text(batch, "cells"), one ? "3" : "6");
    EXPECT_EQ(batch.degenerate, one ? "a sketch of one cell a row" : "");
    EXPECT_GT(batch.made.k.rows(), 0);
    const Compressed streamed =
        job.run(left + 96 + 2 * pair, {{"prefill", "stream"}, {"slack", "2"}});
    EXPECT_EQ(diag_text(streamed, "cells"), one ? "3" : "6");
    EXPECT_EQ(streamed.degenerate.empty(), !one);
    StreamOf stream("kvreviver", job.head(), {{"slack", "2"}}, {}, left + 96 + 2 * pair + 4 * 130);
    EXPECT_EQ(stream.run().degenerate.empty(), !one);
  }
}

TEST(KvReviverBatch, SumsBeyondTheTypeStayAtItsEdge) {
  for (const DType dtype : kTypes) {
    KvHead head = make_rounded_head(shape_of(90, dtype), 18);
    const float big = dtype == DType::float16 ? 60000.0F : 3e38F;
    for (Index i = 0; i < 90 * 16; ++i) {
      head.k.data()[i] = round_to(dtype, head.k.data()[i] < 0 ? -big : big);
    }
    for (Index i = 0; i < 90 * 11; ++i) {
      head.v.data()[i] = round_to(dtype, big);
    }
    head.q.assign(2, Matrix(0, 16));  // attention of such keys means nothing
    const JobOf job("kvreviver", head, positions(3, 83), {0, 90});
    const Index budget = 60 * head.pair_bytes();
    reference::BatchReference slow = reference_of(
        job, {90, 90}, reference::reviver_sizes(budget, 0, 0, 3, head.pair_bytes(), false),
        reference::ReferenceReduce::mean, false);
    const Compressed c = job.run(budget);
    ASSERT_EQ(c.held.tokens, slow.exact);  // no query: the earliest and the latest
    ASSERT_TRUE(reference::rows_of(c.made.k) == slow.rebuilt_keys());
    ASSERT_TRUE(reference::rows_of(c.made.v) == slow.rebuilt_values());
    ASSERT_GT(slow.overflows, 0);
    ASSERT_EQ(diag_text(c, "overflows"), std::to_string(slow.overflows));
  }
}

TEST(KvReviverBatch, RefusedBeforeTheFirstRow) {
  const MethodInfo& info = find_method("kvreviver").info;
  const auto check = [&](const Given& given, bool stream, bool fisher) {
    LayerFacts layer{.n = 100, .stream = stream, .has_fisher = fisher};
    const Params params("kvreviver", info.params, given);
    info.facts(params);
    EXPECT_TRUE(info.resolve(params, layer).empty());
  };
  for (const Given& given : {Given{}, Given{{"prefill", "stream"}}}) {
    EXPECT_NO_THROW(check(given, false, false));
    EXPECT_NO_THROW(check(given, true, false));
  }
  EXPECT_NO_THROW(check({{"vague", "mean"}}, false, false));
  EXPECT_NO_THROW(check({{"layer_budget", "fisher"}}, false, true));
  const auto refuses = [&](const Given& given, const char* words, bool stream = false,
                           bool fisher = true) {
    testing_replay::expect_refusal([&] { check(given, stream, fisher); }, words);
  };
  refuses({{"recent_ratio", "0.6"}}, "at most 1, got 1.15");
  refuses({{"vague", "none"}, {"recent_ratio", "0.6"}}, "at most 1");
  refuses({{"vague", "none"}, {"prefill", "stream"}}, "needs prefill=batch");
  refuses({{"vague", "mean"}}, "under prefill only", /*stream=*/true);
  refuses({{"layer_budget", "fisher"}}, "`fisher`", false, /*fisher=*/false);
  refuses({{"layer_budget", "fisher"}}, "under prefill only", /*stream=*/true);
}

// Whole numbers: every sum is exact, so that one rounding and many give the same cells.
TEST(CountSketch, FilledAtOnceEqualsAddedOneByOne) {
  for (const DType dtype : kTypes) {
    std::mt19937_64 generator(20);
    HeadShape shape = shape_of(40, dtype);
    KvHead head = make_head(shape, 20);
    for (Matrix* m : {&head.k, &head.v}) {
      for (Index i = 0; i < m->rows() * m->cols(); ++i) {
        m->data()[i] = static_cast<float>(generator() % 5) - 2.0F;
      }
    }
    const SketchShape cells{3, 4, 16, 11, dtype, CellEstimate::mean};
    const RngStream words = Rng(1, {}, "x").stream("sketch");
    CountSketch one(cells, words), all(cells, words);
    const std::vector<Index> tokens = gappy(0, 40);
    for (const Index i : tokens) {
      one.add(i, head.k.row(i), head.v.row(i));
    }
    all.fill(tokens, head.k, head.v);
    EXPECT_TRUE(same_bits(one.keys(), all.keys()));
    EXPECT_TRUE(same_bits(one.values(), all.values()));
    EXPECT_TRUE(std::equal(one.counts().begin(), one.counts().end(), all.counts().begin()));
    EXPECT_EQ(all.overflows(), 0);
  }
}

}  // namespace
}  // namespace kvbench::test_kvreviver_batch
