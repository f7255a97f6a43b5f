// Layers with a window: what their queries see, what is held, what counts, and what is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>

#include "cache_runs.hpp"
#include "held_sets.hpp"
#include "reference/reference.hpp"
#include "replay/planner.hpp"
#include "replay/verify.hpp"
#include "replay/windows.hpp"
#include "replay_run.hpp"
#include "trace/reader.hpp"

namespace kvbench::test_layer_window {
namespace {

using testing_replay::TraceShape;

constexpr Index kN = 60, kSink = 4, kRecent = 12, kQueries = 8;  // as in basic()

TEST(WindowsOfALayer, ByHand) {
  ReplayOptions o;
  o.sink = 4;
  o.recent = 12;
  o.queries = 8;
  const auto of = [&](Index window) { return windows_of(o, 60, 60, window); };
  // Query 52 is the first evaluated one; a window of 10 reaches back to 43.
  EXPECT_EQ(of(10).sink.size(), 0);
  EXPECT_EQ(of(10).middle, (Range{43, 48}));
  EXPECT_EQ(of(10).recent, (Range{48, 60}));
  EXPECT_EQ(of(10).seen(), 17);
  EXPECT_EQ(of(1).middle.size(), 0);
  EXPECT_EQ(of(1).seen(), 8);  // each its own position: four of the recent window are unseen
  EXPECT_EQ(of(1).recent, (Range{52, 60}));
  EXPECT_EQ(of(5).recent, (Range{48, 60}));
  EXPECT_EQ(of(5).middle.size(), 0);
  EXPECT_EQ(of(50).sink, (Range{3, 4}));  // one of the sinks is seen
  EXPECT_EQ(of(50).middle, (Range{4, 48}));
  EXPECT_EQ(of(53).sink, (Range{0, 4}));
  for (const Index window : {53, 60, 1000}) {
    EXPECT_EQ(of(window).seen(), 60);
  }
  EXPECT_EQ(of(10).scoring, (Range{0, 52}));
}

class LayerWindow : public testing_replay::ReplayTest {
 protected:
  std::string trace_of(std::optional<Index> window, bool sinks) const {
    TraceShape shape{.tokens = {kN},
                     .layers = {0, 3},
                     .rope = testing_replay::rope_tables(kN + 512, 8),
                     .hidden = 5,
                     .window = window};
    if (sinks) {
      shape.sink_logit = {1.0F, -2.0F, 0.0F, 0.5F};
    }
    return make_trace(folder_ / "w.h5", shape);
  }

  ReplayOptions options(const std::string& trace, std::vector<std::string> algorithms) const {
    ReplayOptions o = basic("out.csv");
    o.traces = {trace};
    o.overwrite = true;
    o.algorithms = std::move(algorithms);
    o.budgets = {0.5};
    o.precision = Precision::float64;
    return o;
  }

  static double number(const Table& t, const Fields& row, const char* name) {
    return std::stod(row[t.column(name)]);
  }

  // The row's rel_error by its definition: tokens `held` beside what sinks and recent leave.
  static double error(const KvHead& head, Index g, const std::vector<Index>& held) {
    const auto sets_at = [&](Index j) {
      HeldSets out;
      for (Index i = 0; i <= j; ++i) {
        const bool is_held =
            i < kSink || i >= kN - kRecent || std::ranges::find(held, i) != held.end();
        if (is_held && i > j - head.window) {
          out.numerator.push_back(
              {reference::rows_of(head.k)[i], reference::rows_of(head.v)[i], 1.0L});
        }
      }
      out.denominator = out.numerator;
      if (!head.sink_logit.empty()) {  // a token without value whose key is chosen for its logit
        reference::Vec key = reference::rows_of(head.q[g])[j];
        const reference::Real factor = static_cast<reference::Real>(head.sink_logit[g]) /
                                       (head.scale * reference::dot(key, key));
        for (reference::Real& x : key) {
          x *= factor;
        }
        out.denominator.push_back({key, reference::Vec(head.dv(), 0.0L), 1.0L});
      }
      return out;
    };
    return slow_errors(head, g, kQueries, sets_at).rel_error;
  }
};

// Every way that entries reach the estimate: held rows, weighted ones, made ones with positions,
// and both behind an `@` and a `+`.
TEST_F(LayerWindow, WhatIsHeldIsSeenWithinTheWindow) {
  for (const bool sinks : {false, true}) {
    for (const Index window : {1, 5, 13, 30, 50, 53, 60, 500}) {
      SCOPED_TRACE(window);
      const std::string trace = trace_of(window, sinks);
      const KvHead head = TraceReader(trace).read_head(0, 1, 0);
      ReplayOptions o =
          options(trace, {"exact", "local", "uniform", "think:ratio=0", "lowrank:rank_k=8;rank_v=6",
                          "local@think:ratio=0", "local+uniform"});
      o.layers = {3};
      run(o);
      const Table t = read_table(o.out);
      const Windows w = windows_of(o, kN, kN, window);
      const Index pair = (8 + 6) * 2;
      Index checked = 0;
      for (const Fields& row : t.rows) {
        const std::string algorithm = row[t.column("algorithm")];
        const double rel_error = number(t, row, "rel_error");
        SCOPED_TRACE(algorithm);
        EXPECT_EQ(number(t, row, "full_bytes"), static_cast<double>(w.seen() * pair));
        ASSERT_TRUE(std::isfinite(rel_error));
        ASSERT_LE(number(t, row, "mass_kept"), 1.0);
        if (algorithm == "exact" || algorithm == "think") {
          EXPECT_LE(rel_error, 1e-12);  // all channels of all tokens
          EXPECT_EQ(number(t, row, "tokens_kept"), static_cast<double>(w.seen()));
        }
        if (algorithm == "exact") {
          EXPECT_NEAR(number(t, row, "mass_kept"), 1.0, 1e-12);
          EXPECT_EQ(number(t, row, "ratio"), 1.0);
        }
        if (algorithm == "lowrank") {
          EXPECT_LE(rel_error, 2e-2);  // of full rank: float16 factors
        }
        if (algorithm == "local" && number(t, row, "kv_head") == 0.0) {
          const Index kept = w.middle.size() / 2;
          std::vector<Index> held;
          for (Index i = w.middle.end - kept; i < w.middle.end; ++i) {
            held.push_back(i);
          }
          EXPECT_EQ(number(t, row, "tokens_kept"),
                    static_cast<double>(w.sink.size() + kept + w.recent.size()));
          EXPECT_NEAR(rel_error, error(head, static_cast<Index>(number(t, row, "q_head")), held),
                      1e-9);
          ++checked;
        }
      }
      EXPECT_EQ(checked, 2);
    }
  }
}

// Columns KV heads, q_heads, tokens and middle of --dry-run.
TEST_F(LayerWindow, ADryRunStatesTheMiddleThatIsSeen) {
  const std::string program = KVBENCH_PROGRAM;
  if (program.empty()) {
    GTEST_SKIP() << "built without the program";
  }
  const std::string text = (folder_ / "text").string();
  const std::string command = fmt::format(
      "'{}' replay '{}' --dry-run --algorithm local --budget 0.5 --sink {} --recent {} "
      "--queries {} > '{}'",
      program, trace_of(20, false), kSink, kRecent, kQueries, text);
  ASSERT_EQ(std::system(command.c_str()), 0);  // NOLINT(cert-env33-c,concurrency-mt-unsafe)
  const std::string said = testing_replay::read_bytes(text);
  // Query 52, the first evaluated, sees tokens from 33 on; recent ones begin at 48.
  for (const auto& [layer, middle] : {std::pair{0, 44}, {3, 15}}) {
    const std::size_t at = said.find(fmt::format("; layers {};", layer));
    ASSERT_NE(at, std::string::npos) << said;
    std::istringstream line(said.substr(said.rfind('\n', at) + 1));
    Index heads = 0, q_heads = 0, tokens = 0, stated = 0;
    line >> heads >> q_heads >> tokens >> stated;
    EXPECT_EQ(heads, 2) << said;
    EXPECT_EQ(tokens, kN) << said;
    EXPECT_EQ(stated, middle) << said;
  }
}

// What scores saw lies within their windows too: h2o by the definition of its sums.
TEST_F(LayerWindow, ScoresAreOfTheWindow) {
  for (const Index window : {20, 40}) {
    const std::string trace = trace_of(window, true);
    const KvHead head = TraceReader(trace).read_head(0, 1, 0);
    ReplayOptions o = options(trace, {"h2o:heavy_ratio=1"});
    o.layers = {3};
    run(o);
    const Windows w = windows_of(o, kN, kN, window);
    std::vector<double> score(kN, 0.0);
    for (Index g = 0; g < 2; ++g) {
      for (Index j = 0; j < kN - kQueries; ++j) {
        const reference::Attention a = reference::attention(head, g, j);
        for (Index i = 0; i < kN; ++i) {
          score[i] += static_cast<double>(a.p[i]);
        }
      }
    }
    const std::vector<double> middle(score.begin() + w.middle.begin, score.begin() + w.middle.end);
    std::vector<Index> held = reference::top(middle, w.middle.size() / 2);
    for (Index& i : held) {
      i += w.middle.begin;
    }
    const Table t = read_table(o.out);
    for (const Fields& row : t.rows) {
      if (number(t, row, "kv_head") == 0.0) {
        EXPECT_NEAR(number(t, row, "rel_error"),
                    error(head, static_cast<Index>(number(t, row, "q_head")), held), 1e-9);
      }
    }
  }
}

// A window of all changes nothing but what is refused.
TEST_F(LayerWindow, OfAllTokensIsNone) {
  const std::vector<std::string> methods{
      "h2o",   "snapkv",     "balancekv", "quant-kivi", "rkv:buffer=4",
      "adakv", "clustergen", "local",     "think",      "h2o@quant-rotated:rotation=orthogonal"};
  ReplayOptions o = options(trace_of(kN, false), methods);
  run(o);
  const auto with = testing_replay::untimed(o.out);
  o = options(trace_of({}, false), methods);
  run(o);
  testing_replay::expect_same(testing_replay::untimed(o.out), with);
}

TEST_F(LayerWindow, WhatMakesTokensIsRefusedByName) {
  const std::string trace = trace_of(20, false);
  for (const std::string method :
       {"attention-matching", "kmeans", "count-merge", "d2o", "cam", "value-merge", "wildcat",
        "kvreviver", "h2o+kmeans", "attention-matching@quant-kivi"}) {
    ReplayOptions o = options(trace, {method});
    testing_replay::expect_refusal([&] { run(o); }, "layer 3", "window of 20 tokens");
    o.layers = {0};
    EXPECT_NO_THROW(run(o)) << method;
  }
  ReplayOptions o = options(trace, {"h2o"});
  o.protocol = Protocol::stream;
  EXPECT_THROW(run(o), InputError);
  o.layers = {0};
  EXPECT_NO_THROW(run(o));
}

// Tokens in fewer bits have no position in a caches file: `counted` has those of h2o, and exact's
// are all of the middle.
TEST_F(LayerWindow, CachesOfQuantizedTokensAreEvaluated) {
  for (const Index window : {20, 40}) {
    ReplayOptions o =
        options(trace_of(window, true), {"h2o@quant-kivi", "exact@quant-kivi", "snapkv"});
    o.export_caches = (folder_ / "c.h5").string();
    ASSERT_EQ(run(o).failed, 0);
    ReplayOptions evaluation = o;
    evaluation.out = (folder_ / "evaluated.csv").string();
    evaluation.algorithms.clear();
    evaluation.budgets.clear();
    evaluation.export_caches.clear();
    evaluation.caches = {o.export_caches};
    ASSERT_EQ(run(evaluation).failed, 0);
    testing_caches::expect_same_tables(evaluation.out, o.out);
    const auto measured = testing_replay::untimed(o.out);
    EXPECT_EQ(std::ranges::count_if(measured,
                                    [](const Fields& row) {
                                      return row[column_index("layer")] == "3" &&
                                             row[column_index("status")] == "ok" &&
                                             row[column_index("algorithm")].find('@') !=
                                                 std::string::npos;
                                    }),
              8);
  }
}

// Methods of a set stay where they fit; elsewhere their rows say why not.
TEST_F(LayerWindow, MethodsOfASetAreInfeasibleWhereTheyDoNotFit) {
  ReplayOptions o = options(trace_of(20, false), {"@merging"});
  ReplayOptions two = o;  // traces of the same layers
  two.traces.push_back((folder_ / "copy.h5").string());
  std::filesystem::copy_file(o.traces[0], two.traces[1]);
  for (const ReplayOptions& each : {o, two}) {
    const Plan plan = make_plan(each);
    EXPECT_TRUE(std::ranges::any_of(plan.notes, [](const std::string& line) {
      return line.starts_with("note: 1 of 2 layers have a window: rows of ") &&
             line.find(" kmeans,") != std::string::npos;
    }));
  }
  EXPECT_EQ(run(o).failed, 0);
  std::vector<Fields> global;
  for (const Fields& row : testing_replay::untimed(o.out)) {
    const bool windowed = row[column_index("layer")] == "3";
    const std::string& status = row[column_index("status")];
    EXPECT_TRUE(!windowed || status.starts_with("infeasible: ")) << status;
    EXPECT_EQ(status.find("window of 20 tokens") != std::string::npos, windowed);
    if (!windowed) {
      global.push_back(row);
    }
  }
  EXPECT_GT(global.size(), 4U);
  EXPECT_EQ(verify_sample(o.out, 1000, 0, 1, testing_replay::kGoOn, {}).different, 0);
  o.layers = {kGlobalLayers};
  run(o);
  EXPECT_EQ(testing_replay::untimed(o.out), global);
}

TEST_F(LayerWindow, LayersByKind) {
  ReplayOptions o = options(trace_of(20, false), {"h2o", "@merging"});
  o.layers = {kGlobalLayers};
  EXPECT_EQ(make_plan(o).options.layers, std::vector<Index>{0});
  o.layers = {kWindowedLayers};
  const Plan windowed = make_plan(o);
  EXPECT_EQ(windowed.options.layers, std::vector<Index>{3});
  EXPECT_EQ(windowed.variants.size(), 1U);  // none of @merging runs in any layer
  o.traces = {trace_of({}, false)};
  EXPECT_THROW(make_plan(o), InputError);
  o.layers = {kGlobalLayers};
  EXPECT_EQ(make_plan(o).options.layers, (std::vector<Index>{0, 3}));
}

}  // namespace
}  // namespace kvbench::test_layer_window
