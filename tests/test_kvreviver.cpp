// kvreviver's stream, under both protocols, against its slow reference, step by step; what
// swapping conserves.
#include "algorithms/shared/revive_cache.hpp"
#include "read_rows.hpp"
#include "reference/kvreviver.hpp"
#include "stream_of.hpp"

namespace kvbench::test_kvreviver {
namespace {

Compressed run(const KvHead& head, const std::vector<Index>& tokens, Index budget,
               const Given& given = {}, std::uint64_t seed = 0) {
  return JobOf("kvreviver", head, tokens, {0, head.n()})
      .run(budget, with(given, {{"prefill", "stream"}}), seed);
}

// Outputs: float64 against long double over at most 200 tokens of size 1.
constexpr double kOutputTolerance = 1e-12;
// Scores: sums of float32 that may round differently where long double and float64 do; each of at
// most 200 steps adds half an ulp.
constexpr double kScoreTolerance = 1e-5;

// A reference with the same hash words and sizes as the method would take.
reference::ReviverReference reference_of(const KvHead& head, const reference::ReviverSizes& sizes,
                                         const Given& given, std::uint64_t seed) {
  reference::ReviverReference t;
  t.head = &head;
  t.sizes = sizes;
  t.element = reference::element_of(head.dtype);
  const RngStream words = Rng(seed, {"p", 0, 0}, "kvreviver").stream("sketch");
  for (std::uint64_t w = 0; w < static_cast<std::uint64_t>(4 * sizes.rows); ++w) {
    t.words.push_back(words.word(w));
  }
  t.mean = given.contains("estimate") && given.at("estimate") == "mean";
  t.reduce = !given.contains("reduce") ? 'm' : (given.at("reduce") == "max" ? 'x' : 's');
  t.start();
  return t;
}

// z of query head g at j from a view: everything that is not the cache's comes exactly.
reference::Vec output_of(const Compressed& c, const KvHead& head,
                         const std::vector<char>& given_away, Index g, Index j) {
  const reference::Rows k = reference::rows_of(head.k), v = reference::rows_of(head.v);
  std::vector<reference::Weighted> set;
  for (std::size_t i = 0; i <= static_cast<std::size_t>(j); ++i) {
    const bool held =
        std::binary_search(c.held.tokens.begin(), c.held.tokens.end(), static_cast<Index>(i));
    if (held || given_away[i] == 0) {
      set.push_back({k[i], v[i], 1});
    }
  }
  const reference::Rows mk = reference::rows_of(c.made.k), mv = reference::rows_of(c.made.v);
  for (std::size_t i = 0; i < mk.size(); ++i) {
    set.push_back({mk[i], mv[i], 1});
  }
  const reference::Vec q = reference::rows_of(head.q[g])[j - head.q_start()];
  return reference::estimate(q, static_cast<reference::Real>(head.scale), set, set).z;
}

void expect_same_view(const Compressed& c, const reference::ReviverReference& slow) {
  std::vector<Index> exact;
  reference::Rows made_k, made_v;
  for (const char place : {'c', 'v'}) {
    for (const Index i : slow.in(place)) {
      const auto& t = slow.tokens[i];
      if (place == 'c' && !t.estimated) {
        exact.push_back(i);
      } else {
        made_k.push_back(place == 'v' ? slow.rebuilt(i, false) : t.k);
        made_v.push_back(place == 'v' ? slow.rebuilt(i, true) : t.v);
      }
    }
  }
  for (const Index i : slow.in('r')) {
    exact.push_back(i);
  }
  ASSERT_EQ(c.held.tokens, exact);
  const reference::Rows k = reference::rows_of(c.made.k), v = reference::rows_of(c.made.v);
  ASSERT_TRUE(k == made_k);  // every operation on cells is one rounding: equal to the bit
  ASSERT_TRUE(v == made_v);
}

struct Case {
  Given given;
  DType dtype = DType::float32;
  Index group = 2;
};

std::vector<Case> cases() {
  return {{{}, DType::float32, 2},
          {{{"estimate", "mean"}}, DType::float32, 1},
          {{{"reduce", "max"}}, DType::float16, 5},
          {{{"reduce", "sum"}, {"rows", "5"}}, DType::bfloat16, 3},
          {{{"rows", "1"}, {"estimate", "mean"}}, DType::float16, 4},
          {{{"slack", "0"}}, DType::bfloat16, 2}};
}

Index given_or(const Given& given, const char* name, Index fallback) {
  return given.contains(name) ? index_in(given, name) : fallback;
}

KvHead head_of(const Case& one, Index n, Index nq, unsigned seed) {
  return make_rounded_head({.n = n,
                            .nq = nq,
                            .d = 16,
                            .dv = 11,
                            .group = one.group,
                            .key_norm = 5.0,
                            .dtype = one.dtype},
                           seed);
}

TEST(KvReviver, PrefillEqualsReference) {
  Index swaps = 0;
  for (const Case& one : cases()) {
    const KvHead head = head_of(one, 130, 120, 11);  // the first tokens have no query
    std::vector<Index> tokens;
    for (Index i = 5; i < 122; ++i) {
      if (i % 7 != 3) {  // what another method of a composition holds
        tokens.push_back(i);
      }
    }
    for (const Index budget_tokens : {35, 55, 75}) {
      const Index budget = budget_tokens * head.pair_bytes();
      const auto sizes = reference::reviver_sizes(budget, 0, given_or(one.given, "slack", 16),
                                                  given_or(one.given, "rows", 3), head.pair_bytes(),
                                                  one.given.contains("estimate"));
      if (sizes.cells < 1) {
        EXPECT_THROW(run(head, tokens, budget, one.given, 3), Infeasible);
        continue;
      }
      reference::ReviverReference slow = reference_of(head, sizes, one.given, 3);
      for (const Index j : tokens) {
        slow.arrive(j, j >= 10);
        slow.insert(j);
      }
      const Compressed c = run(head, tokens, budget, one.given, 3);
      expect_same_view(c, slow);
      EXPECT_EQ(diag_text(c, "swaps"), std::to_string(slow.swaps));
      EXPECT_LE(middle_bytes_of(c, head), budget);
      // Scores are gone when the compression ends.
      EXPECT_EQ(c.aux_bytes, 4 * static_cast<Index>(slow.in('c').size()) + 32 * sizes.rows +
                                 (slow.mean ? 4 * sizes.rows * sizes.cells : 0));
      swaps += slow.swaps;
      std::vector<char> mine(head.n(), 0);
      for (const Index i : tokens) {
        mine[i] = 1;
      }
      const Index last = head.n() - 1;
      const reference::Vec z = output_of(c, head, mine, 0, last), expected = slow.output(0, last);
      expect_all_near(z, expected, kOutputTolerance);
    }
  }
  EXPECT_GT(swaps, 10);
}

TEST(KvReviver, StreamEqualsReferenceAtEveryStep) {
  Index swaps = 0;
  for (const Case& one : cases()) {
    for (const auto& [sink, recent] :
         {std::pair<Index, Index>{0, 0}, {0, 9}, {1, 0}, {6, 9}, {20, 9}}) {
      const KvHead head = head_of(one, 140, 140, 21);
      const Index budget = 100 * head.pair_bytes();
      const Index rows = given_or(one.given, "rows", 3);
      const bool mean = one.given.contains("estimate");
      const auto sizes = reference::reviver_sizes(
          budget, head.n() - sink, given_or(one.given, "slack", 16), rows, head.pair_bytes(), mean);
      ASSERT_GE(sizes.cells, 1);
      reference::ReviverReference slow = reference_of(head, sizes, one.given, 4);
      slow.sink = sink;
      StreamOf stream("kvreviver", head, one.given, {sink, recent}, budget, 4);
      std::vector<char> mine(head.n(), 0);
      for (Index j = 0; j < head.n(); ++j) {
        const Index leaving = stream.step() - recent;
        slow.arrive(j, true);
        if (leaving >= sink) {
          slow.insert(leaving);
          mine[leaving] = 1;
        }
        const Compressed c = stream.view();
        ASSERT_NO_FATAL_FAILURE(expect_same_view(c, slow)) << j;
        ASSERT_LE(middle_bytes_of(c, head), budget) << j;
        // Scores of all but sinks, positions of candidates, hash words, counts.
        ASSERT_EQ(c.aux_bytes, 4 * std::max<Index>(0, j + 1 - sink) +
                                   4 * static_cast<Index>(slow.in('c').size()) + 32 * rows +
                                   (mean ? 4 * rows * sizes.cells : 0));
        if (j % 20 == 19) {
          const reference::Vec z = output_of(c, head, mine, one.group - 1, j);
          const reference::Vec expected = slow.output(one.group - 1, j);
          expect_all_near(z, expected, kOutputTolerance);
        }
      }
      swaps += slow.swaps;
    }
  }
  EXPECT_GT(swaps, 10);
}

TEST(KvReviver, PlacesAndScoresEqualReferenceAtEveryStep) {
  const HeadShape shape{.n = 160, .nq = 160, .key_norm = 4.0};
  const KvHead head = make_head(shape, 31);
  const reference::ReviverSizes sizes{6, 4, 9, 3, 5};
  const Given none;
  reference::ReviverReference slow = reference_of(head, sizes, none, 5);
  RevivePlan plan;
  plan.recent = 6;
  plan.slack = 4;
  plan.candidates = 9;
  plan.sketch = {3, 5, shape.d, shape.dv, DType::float32, CellEstimate::sum};
  const RngStream words = Rng(5, {"p", 0, 0}, "kvreviver").stream("sketch");
  ReviveCache fast(head, plan, ReviveOptions{}, words);
  for (Index j = 0; j < shape.n; ++j) {
    const bool has_query = j % 11 != 4;
    fast.step({j, j, has_query});
    slow.arrive(j, has_query);
    slow.insert(j);
    ASSERT_EQ(fast.recent(), slow.in('r'));
    ASSERT_EQ(fast.candidates(), slow.in('c'));
    ASSERT_EQ(fast.vague(), slow.in('v'));
    ASSERT_LE(fast.recent().size(), 10U);
    ASSERT_LE(fast.candidates().size(), 9U);
    for (Index i = 0; i <= j; ++i) {
      const float expected = slow.tokens[i].score;
      ASSERT_NEAR(fast.score(i), expected, kScoreTolerance * static_cast<double>(expected));
    }
  }
  EXPECT_EQ(fast.swaps(), slow.swaps);
  EXPECT_GT(fast.swaps(), 5);
}

// In every row, the keys of all cells and of the candidates add up to what was put in, whatever was
// swapped; with whole numbers, exactly. Every token is in one place; counts add up.
TEST(KvReviver, SwappingConservesTotals) {
  const HeadShape shape{.n = 400, .nq = 400, .d = 4, .dv = 4};
  KvHead head = make_head(shape, 41);
  for (Index i = 0; i < shape.n * shape.d; ++i) {
    head.k.data()[i] = std::round(head.k.data()[i]);
  }
  RevivePlan plan;
  plan.recent = 10;
  plan.slack = 5;
  plan.candidates = 20;
  plan.sketch = {3, 7, 4, 4, DType::float32, CellEstimate::sum};
  ReviveCache cache(head, plan, ReviveOptions{}, Rng(1, {"p", 0, 0}, "x").stream("sketch"));
  for (Index j = 0; j < shape.n; ++j) {
    cache.step({j, j, true});
    ASSERT_EQ(static_cast<Index>(cache.recent().size() + cache.candidates().size() +
                                 cache.vague().size()),
              j + 1);
    const Compressed c = cache.view();
    const auto revived = c.made.k.rows() - static_cast<Index>(cache.vague().size());
    for (Index t = 0; t < shape.d; ++t) {
      double in = 0.0;
      double held = 0.0;
      for (Index i = 0; i <= j; ++i) {
        in += static_cast<double>(head.k.row(i)[t]);
      }
      for (const Index i : c.held.tokens) {
        held += static_cast<double>(head.k.row(i)[t]);
      }
      for (Index i = 0; i < revived; ++i) {
        held += static_cast<double>(c.made.k.row(i)[t]);
      }
      for (Index r = 0; r < 3; ++r) {
        double cells = 0.0;
        Index count = 0;
        for (Index b = 0; b < 7; ++b) {
          cells += static_cast<double>(cache.sketch().keys().row(r * 7 + b)[t]);
          count += static_cast<Index>(cache.sketch().counts()[r * 7 + b]);
        }
        ASSERT_EQ(cells + held, in) << j;
        ASSERT_EQ(count, static_cast<Index>(cache.vague().size()));
      }
    }
  }
  EXPECT_GT(cache.swaps(), 20);
}

TEST(KvReviver, ErrorsAreSetBesideThePapersBound) {
  // The paper's model: independent normal elements.
  const KvHead head = make_head({.n = 600, .nq = 600, .d = 32, .dv = 32}, 61);
  const Compressed c = run(head, positions(0, 600), 200 * head.pair_bytes());
  EXPECT_GT(std::stod(diag_text(c, "k_error")), 0.0);
  EXPECT_LE(std::stod(diag_text(c, "k_error")), std::stod(diag_text(c, "k_bound")));
  EXPECT_LE(std::stod(diag_text(c, "v_error")), std::stod(diag_text(c, "v_bound")));
  EXPECT_EQ(diag_text(c, "overflows"), "0");
  EXPECT_EQ(c.transient_bytes, std::stoll(diag_text(c, "vague")) * head.pair_bytes());
  EXPECT_EQ(static_cast<Index>(c.held.tokens.size()) + c.made.k.rows(), 600);
}

TEST(KvReviver, WithoutQueriesNothingIsSwapped) {
  const KvHead head = make_head({.n = 90, .nq = 0}, 6);
  const Compressed c = run(head, positions(3, 83), 60 * head.pair_bytes());
  EXPECT_EQ(diag_text(c, "swaps"), "0");
  EXPECT_EQ(c.held.tokens.front(), 3);  // Candidate keeps the earliest
  EXPECT_EQ(c.held.tokens[5], 8);
}

}  // namespace
}  // namespace kvbench::test_kvreviver
