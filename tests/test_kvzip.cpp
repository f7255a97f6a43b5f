// kvzip against its definition: scores, shared budgets, and what it refuses.
#include "layer_job.hpp"
#include "refusal.hpp"
#include "selection_checks.hpp"

namespace kvbench::test_kvzip {
namespace {

// Softmax weights in float64 and in long double: a few roundings of exponents below 100.
constexpr long double kTolerance = 1e-11L;

// A gap between the chunks, which no segment is about, and a chunk that begins within the first
// four tokens.
std::vector<SegmentShape> chunks() {
  return {{9, 90, {2, 37}}, {60, 90, {41, 88}}, {1, 90, {88, 90}}};
}

TEST(Kvzip, EqualsReference) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    for (const std::vector<Index>& tokens : {positions(3, 90), gappy(0, 85)}) {
      const KvHead head = make_head({.n = 100, .nq = 20, .d = 12, .group = 3}, seed);
      JobOf job("kvzip", head, tokens, {}, true);
      job.extra = {make_extra("repeat", head, chunks(), 70 + seed)};
      const reference::Rows w = reference::rows_of(*job.o_proj);
      for (const bool plus : {false, true}) {
        const reference::Vec scores = reference::taken(
            reference::kvzip(head, reference_rows(job.extra[0]), plus ? &w : nullptr), tokens);
        expect_best_kept(job, scores, kTolerance, {{"plus", plus ? "true" : "false"}});
      }
    }
  }
}

TEST(Kvzip, TokensThatNoSegmentIsAboutComeLastAndByPosition) {
  const KvHead head = make_head({.n = 40}, 3);
  JobOf job("kvzip", head, positions(5, 35), {});
  job.extra = {make_extra("repeat", head, {{6, 36, {20, 25}}}, 8)};
  EXPECT_EQ(job.kept(7), (std::vector<Index>{5, 6, 20, 21, 22, 23, 24}));
}

TEST(Kvzip, BudgetsOfALayerAndOfAllLayersAreShared) {
  std::vector<KvHead> heads;
  for (unsigned h = 0; h < 4; ++h) {
    heads.push_back(make_head({.n = 60, .nq = 20}, 20 + h));
    heads.back().scale *= 0.4 + h;
  }
  const std::vector<Index> tokens = positions(4, 50);
  for (const char* budget : {"layer", "model"}) {
    SharedJob job("kvzip", heads, 2, tokens, {}, true);
    reference::Rows scores;
    for (std::size_t h = 0; h < 4; ++h) {
      scores.push_back(reference::taken(
          reference::kvzip(heads[h], reference_rows(job.job(h).extra[0]), nullptr), tokens));
    }
    const bool layer = std::string(budget) == "layer";
    for (const Index each : {1, 7, 20}) {
      std::vector<Index> counts;
      std::vector<std::vector<Index>> got;
      if (layer) {  // the replay asks for a layer at a time
        for (std::size_t l = 0; l < 2; ++l) {
          const auto part = reference::pooled_counts({scores[2 * l], scores[2 * l + 1]}, each, 0);
          counts.insert(counts.end(), part.begin(), part.end());
          const std::vector<KvHead> two(heads.begin() + 2 * static_cast<std::ptrdiff_t>(l),
                                        heads.begin() + 2 * static_cast<std::ptrdiff_t>(l) + 2);
          const SharedJob of_layer("kvzip", two, 2, tokens, {}, true);
          const auto kept = of_layer.run(each * heads[0].pair_bytes(), {{"budget", budget}});
          got.insert(got.end(), kept.begin(), kept.end());
        }
      } else {
        counts = reference::pooled_counts(scores, each, 0);
        got = job.run(each * heads[0].pair_bytes(), {{"budget", budget}});
      }
      for (std::size_t h = 0; h < 4; ++h) {
        ASSERT_TRUE(reference::is_top(tokens, scores[h], got[h], counts[h], kTolerance))
            << budget << " " << each << " " << h;
      }
    }
  }
}

TEST(Kvzip, TiesGoToThePositionThenTheHeadThenTheLayer) {
  std::vector<Survey> surveys;
  for (Index layer = 0; layer < 2; ++layer) {
    for (Index head = 0; head < 2; ++head) {
      Survey s{.tokens = 1,
               .data = {0.5, 0.5, 0.5, 10, 11, 12},
               .layer = layer,
               .kv_head = head,
               .middle = 3};
      surveys.push_back(s);
    }
  }
  const auto counts = [&] { return shared_tokens("kvzip", surveys); };
  EXPECT_EQ(counts(), (std::vector<Index>{1, 1, 1, 1}));
  surveys[3].tokens = 0;  // three tokens: head 1 of layer 1 is the last
  EXPECT_EQ(counts(), (std::vector<Index>{1, 1, 1, 0}));
  surveys[2].tokens = 0;  // two: head 0 of both layers
  EXPECT_EQ(counts(), (std::vector<Index>{1, 0, 1, 0}));
}

// What every user of a set refuses: test_methods.cpp.
TEST(Kvzip, SegmentsWithoutTheirAttributesAreRefused) {
  const MethodInfo& info = find_method("kvzip").info;
  std::vector<ExtraSetInfo> sets{{"second", {{}}}, {"text", {{}}}};
  LayerFacts layer{.n = 90, .hidden = 12};
  const auto refuses = [&](const Given& given, const std::string& part) {
    layer.extra = sets;
    testing_replay::expect_refusal(
        [&] { info.resolve(Params("kvzip", info.params, given), layer); }, part);
  };
  refuses({}, "no extra queries 'repeat', has: second, text");
  sets.push_back({"repeat", {{5, 90, Range{0, 90}, false}, {5, {}, Range{0, 90}, false}}});
  refuses({}, "segment 1 of the extra queries 'repeat' has no attribute prefix");
  sets[2].segments[1].prefix = 90;
  refuses({{"plus", "true"}}, "residual_norm");
  sets[2].segments[0].about.reset();
  refuses({}, "attributes first and last");
}

}  // namespace
}  // namespace kvbench::test_kvzip
