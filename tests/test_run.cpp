// Whole runs on tiny traces and on tests/data/small.h5: the same rows whatever the order of specs;
// failures and bad values. Interruptions, threads and shards: test_interruptions.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "replay/side_tables.hpp"
#include "replay_run.hpp"
#include "report/manifest.hpp"

namespace kvbench::test_run {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;

const std::string kSmallTrace = KVBENCH_TEST_DATA_DIR "/small.h5";

TEST_F(RunTest, WritesEveryRowOfThePlanInOrder) {
  const ReplayOptions o = options();
  const Plan plan = make_plan(o);
  const RunResult result = run(o);
  const auto rows = untimed(o.out);
  EXPECT_EQ(result.rows, plan.row_range({0, plan.jobs()}).size());
  ASSERT_EQ(static_cast<Index>(rows.size()), result.rows);
  EXPECT_EQ(result.failed, 0);
  EXPECT_EQ(result.resumed, 0);
  EXPECT_FALSE(result.interrupted);
  std::size_t at = 0;
  std::set<std::string> keys;
  for (Index job = 0; job < plan.jobs(); ++job) {
    const Unit& unit = plan.unit_of(job);
    const Entry& entry = plan.entry_of(job);
    for (const Index head : unit.q_heads) {
      const Fields& row = rows.at(at++);
      EXPECT_TRUE(keys.insert(main_table().key(row)).second);
      EXPECT_EQ(row[column_index("prompt")], plan.prompt_meta(unit).id);
      EXPECT_EQ(row[column_index("layer")], std::to_string(plan.layer_meta(unit).layer));
      EXPECT_EQ(row[column_index("q_head")], std::to_string(head));
      EXPECT_EQ(row[column_index("algorithm")], plan.variants[entry.variant].method->info.name);
      EXPECT_EQ(row[column_index("params")], plan.variants[entry.variant].params.canonical());
      EXPECT_EQ(row[column_index("seed")], std::to_string(entry.seed));
      EXPECT_EQ(row[column_index("budget_requested")],
                entry.budget ? number_text(*entry.budget) : "");
    }
  }
  const Manifest manifest = read_manifest(o.out);
  EXPECT_EQ(manifest.rows, result.rows);
  EXPECT_EQ(manifest.failures, 0);
  EXPECT_TRUE(manifest.end.has_value());
  EXPECT_EQ(manifest.command_line, "test");
  ASSERT_TRUE(manifest.plan.has_value());
  EXPECT_EQ(manifest.plan->hash, plan.hash());
  EXPECT_EQ(manifest.traces.size(), 1U);
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{"t.h5", "out.csv", "out.csv.json"}));
}

TEST_F(RunTest, ARowSaysWhatItMeasures) {
  const TraceMeta meta = TraceReader(trace_).meta();
  ASSERT_FALSE(meta.model.empty());
  for (const Precision precision : {Precision::float32, Precision::float64}) {
    for (const Protocol protocol : {Protocol::prefill, Protocol::stream}) {
      ReplayOptions o = options();
      o.overwrite = true;
      o.algorithms = {"exact", "uniform:tokens=1"};
      o.precision = precision;
      o.protocol = protocol;
      o.kept = true;
      run(o);
      for (const Table& table : {read_table(o.out), read_table(kept_table().path(o.out))}) {
        ASSERT_FALSE(table.rows.empty());
        for (const Fields& row : table.rows) {
          EXPECT_EQ(row[table.column("model")], meta.model);
          EXPECT_EQ(row[table.column("dtype")], name(meta.dtype));
          EXPECT_EQ(row[table.column("precision")], name(precision));
        }
      }
    }
  }
}

TEST_F(RunTest, OrderAndRepetitionOfAlgorithmsAndBudgetsDoNotChangeARow) {
  run(options("one.csv"));
  ReplayOptions o = options("other.csv");
  o.algorithms = {"oracle", "balancekv:block=8;T=2",   "uniform", "exact",
                  "oracle", "balancekv:block=8;T=1,2", "local"};
  o.budgets = {0.0, 0.5, 0.5, 0.1};
  run(o);
  expect_same(untimed(folder_ / "other.csv"), untimed(folder_ / "one.csv"));
}

TEST_F(RunTest, ARowDoesNotDependOnWhatElseIsReplayed) {
  run(options("all.csv"));
  ReplayOptions o = options("few.csv");
  o.algorithms = {"oracle", "uniform"};
  o.budgets = {0.1};
  o.layers = {2};
  o.heads = {3};
  o.seeds = "1:2";
  run(o);
  const auto all = untimed(folder_ / "all.csv");
  const auto few = untimed(folder_ / "few.csv");
  EXPECT_EQ(few.size(), 4U);
  for (const Fields& row : few) {
    EXPECT_EQ(std::count(all.begin(), all.end(), row), 1) << row[column_index("algorithm")];
  }
}

// What settings keep in a head's score book is that of their own parameters and tokens: of the
// other parameters alone, or of what a composition leaves, rows would differ.
TEST_F(RunTest, SettingsThatShareScoresHaveTheRowsThatTheyHaveAlone) {
  ReplayOptions all = options("all.csv");
  all.traces = {make_trace(folder_ / "tables.h5",
                           {.tokens = {60, 37}, .rope = rope_tables(572, 8), .hidden = 16})};
  all.algorithms = {"attention-matching:ref_queries=4,30;keys=rms,max,h2o",
                    "attention-matching:ridge=0,0.1",
                    "local+attention-matching",
                    "h2o+attention-matching:attention-matching.ref_queries=4",
                    "compactor:blending=0,1;chunk=8,16;first=0,3;reduce=mean,max",
                    "compactor@quant-kivi",
                    "criticalkv:window=4,8;kernel=1,5",
                    "rkv:window=4,8;lambda=0.1,0.3;logits=max,mean"};
  all.budgets = {0.5, 0.25};
  EXPECT_EQ(run(all).failed, 0);
  std::vector<Fields> together = untimed(all.out);
  std::set<std::string> settings;
  for (const Fields& row : together) {
    settings.insert(row[column_index("algorithm")] + ":" + row[column_index("params")]);
  }
  EXPECT_GT(settings.size(), 30U);
  std::vector<Fields> alone;
  for (const std::string& setting : settings) {
    ReplayOptions one = all;
    one.out = (folder_ / "one.csv").string();
    one.overwrite = true;
    one.algorithms = {setting};
    run(one);
    std::ranges::move(untimed(one.out), std::back_inserter(alone));
  }
  std::ranges::sort(alone);
  std::ranges::sort(together);
  expect_same(together, alone);
}

TEST_F(RunTest, SideTablesHaveTheLinesThatADryRunCounts) {
  for (const Protocol protocol : {Protocol::prefill, Protocol::stream}) {
    for (const PerQuery per_query : {PerQuery::bins, PerQuery::all}) {
      ReplayOptions o = options();
      o.algorithms = {"exact", "uniform:tokens=20"};  // no row is infeasible
      o.protocol = protocol;
      o.per_query = protocol == Protocol::prefill ? per_query : PerQuery::none;
      o.kept = true;
      o.shard_index = 2;
      o.shard_count = 3;
      o.overwrite = true;
      run(o);
      const Plan plan = make_plan(o);
      ASSERT_EQ(side_tables(plan).size(), 2U);
      for (const TableSpec* table : side_tables(plan)) {
        EXPECT_EQ(most_lines(plan, table), std::ssize(read_table(table->path(o.out)).rows))
            << table->name();
      }
    }
  }
}

TEST_F(RunTest, SeedsMakeDifferentRows) {
  ReplayOptions o = options();
  o.algorithms = {"uniform"};
  o.budgets = {0.5};
  o.seeds = "4";
  run(o);
  std::set<std::string> errors;
  const auto rows = untimed(o.out);
  for (const Fields& row : rows) {
    errors.insert(row[column_index("rel_error")]);
  }
  EXPECT_EQ(errors.size(), rows.size());
}

TEST_F(RunTest, EveryMethodSurvivesTinyPrompts) {
  ReplayOptions o = options();
  o.traces = {make_trace(folder_ / "tiny.h5", {.tokens = {1, 2, 16, 17, 18, 19}, .nq = 5})};
  o.algorithms = {"all"};
  o.budgets = {1.0, 0.5, 0.01, 0.0};
  const RunResult result = run(o);
  EXPECT_EQ(result.failed, 0);
  const auto rows = untimed(o.out);
  Index degenerate = 0;
  for (const Fields& row : rows) {
    const std::string& status = row[column_index("status")];
    const bool empty = std::stoi(row[column_index("n_tokens")]) <= 16;  // sink and recent
    const bool scores = row[column_index("scoring_queries")] == "0";    // the trace has no others
    EXPECT_TRUE(!empty || status == "degenerate: empty middle") << status;
    EXPECT_TRUE(empty || status_kind(status) == (scores ? "degenerate" : "ok") ||
                status_kind(status) == "infeasible")
        << row[column_index("algorithm")] << " " << status;
    degenerate += status_kind(status) == "degenerate" ? 1 : 0;
    double error = 0.0;
    if (status_kind(status) == "ok") {
      EXPECT_TRUE(parse_number(row[column_index("rel_error")], error) && error >= 0.0 &&
                  error < std::numeric_limits<double>::infinity())
          << row[column_index("algorithm")] << " " << row[column_index("rel_error")];
    }
  }
  EXPECT_EQ(result.degenerate, degenerate);
}

TEST_F(RunTest, ABadValueIsFoundBeforeAnythingIsWritten) {
  const float mark = 1234.5678F;
  const std::string bad =
      make_trace(folder_ / "bad.h5", {.layers = {0, 1}, .dtype = DType::float32, .mark = mark});
  poison(bad, mark);
  ReplayOptions o = options();
  o.traces = {trace_, bad};
  expect_refusal([&] { run(o); }, "bad.h5");
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{"t.h5", "bad.h5"}));
  // Also a head that is not replayed and shares a budget with one that is. The bad one is in
  // layer 1.
  o.traces = {bad};
  o.layers = {1};
  o.heads = {0};
  o.algorithms = {"adakv"};
  expect_refusal([&] { run(o); }, "bad.h5");
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{"t.h5", "bad.h5"}));
  // Others are not read.
  o.algorithms = {"uniform"};
  EXPECT_GT(run(o).rows, 0);
}

TEST_F(RunTest, ValuesBeyondFloat32AreRefusedBeforeTheFirstRow) {
  const std::string wide =
      make_trace(folder_ / "wide.h5",
                 {.layers = {0, 1}, .dtype = DType::float32, .mark = 3e20F});  // in the last layer
  ReplayOptions o = options();
  o.traces = {trace_, wide};
  expect_refusal([&] { run(o); }, "wide.h5: prompt p0 layer 1 KV head 1: keys up to ",
                 "expected --precision float64");
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{"t.h5", "wide.h5"}));
  // What the message asks for works, with every method.
  o.precision = Precision::float64;
  o.algorithms = {"all"};
  o.budgets = {0.25};
  const RunResult result = run(o);
  EXPECT_EQ(result.failed, 0);
  EXPECT_GT(result.rows, 100);
}

Compressed hopeless(const Task&, const Params&) {
  throw std::runtime_error("on purpose");
}

TEST_F(RunTest, FailuresAreCountedAndTheRestGoesOn) {
  Method method;
  method.info.name = "hopeless";
  method.compress = hopeless;
  Plan plan = make_plan(options());
  plan.variants.push_back({&method, Params("hopeless", {}, {})});
  plan.entries.push_back({plan.variants.size() - 1, std::nullopt, 0});
  const RunResult result = run(plan);
  EXPECT_EQ(result.failed, 2 * 2 * 4);  // prompts, layers, heads
  EXPECT_EQ(result.rows, plan.row_range({0, plan.jobs()}).size());
  EXPECT_EQ(read_manifest(folder_ / "out.csv").failures, result.failed);
}

// A signal may come while the tables are written, or when they are whole.
TEST_F(RunTest, WhatASignalCallsLivesUntilTheTablesAreWritten) {
  const ReplayOptions o = options();
  std::function<void()> publish;
  const AtEnd at_end = [&](std::function<void()> next) {
    if (!next) {
      ASSERT_TRUE(fs::exists(o.out));
      const std::string table = read_bytes(o.out);
      publish();
      EXPECT_EQ(read_bytes(o.out), table);
      EXPECT_TRUE(read_manifest(o.out).sha256.has_value());
    }
    publish = std::move(next);
  };
  EXPECT_GT(run_plan(make_plan(o), "test", kGoOn, at_end).rows, 0);
  EXPECT_FALSE(publish);
}

TEST_F(RunTest, WhatASignalCallsLeavesTheTablesOfAnInterruptedRun) {
  const ReplayOptions o = options();
  std::atomic<bool> stop = false;
  std::function<void()> publish;
  const AtEnd at_end = [&](std::function<void()> next) {
    if (next) {
      stop = true;
      std::ofstream(trace_, std::ios::app) << ' ';
    } else {
      publish();
    }
    publish = std::move(next);
  };
  const RunResult result = run_plan(make_plan(o), "test", stop, at_end);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.changed_traces, std::vector<std::string>{trace_});
  EXPECT_TRUE(read_manifest(o.out).traces[0].changed);
}

// ------------------------------------------------------------------------------------ the machine

TEST_F(RunTest, AMemoryLimitLowersThreadsOrRefuses) {
  ReplayOptions o = options();
  o.threads = 4;
  EXPECT_EQ(usable_threads(make_plan(o)), 4);
  o.memory_limit = 1ULL << 40U;
  EXPECT_EQ(usable_threads(make_plan(o)), 4);
  // The refusal names the least limit that still fits one thread.
  o.memory_limit = 1;
  const std::string least = "--memory-limit: got 1 bytes, expected at least ";
  const std::string message = refusal([&] { run(o); });
  ASSERT_TRUE(message.starts_with(least)) << message;
  o.memory_limit = std::stoull(message.substr(least.size()));
  EXPECT_EQ(usable_threads(make_plan(o)), 1);
  --o.memory_limit;
  expect_refusal([&] { run(o); }, "--memory-limit");
  EXPECT_FALSE(fs::exists(o.out));
}

// ------------------------------------------------------------------------------- the small trace

TEST_F(RunTest, ExactHasNoErrorOnTheSmallTrace) {
  ASSERT_TRUE(fs::exists(kSmallTrace)) << kSmallTrace;
  ReplayOptions o;
  o.traces = {kSmallTrace};
  o.out = (folder_ / "exact.csv").string();
  o.algorithms = {"exact"};
  o.threads = 2;
  const RunResult result = run(o);
  EXPECT_EQ(result.rows, 4 * 4);
  EXPECT_EQ(result.failed + result.infeasible + result.degenerate, 0);
  const double tolerance = 1e-6;  // well above float64 rounding, below any float32 shortcut
  for (const Fields& row : untimed(o.out)) {
    for (const char* column : {"rel_error", "rel_error_max", "log_z_error"}) {
      EXPECT_LE(std::stod(row[column_index(column)]), tolerance) << column;
    }
    EXPECT_NEAR(std::stod(row[column_index("mass_kept")]), 1.0, tolerance);
    EXPECT_EQ(row[column_index("ratio")], "1");
    EXPECT_EQ(row[column_index("status")], "ok");
  }
}

}  // namespace
}  // namespace kvbench::test_run
