// Whole runs on tiny traces and on tests/data/small.h5: the same rows whatever the threads, the
// order of specs, shards, interruptions and resumptions; nothing written where a run is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "replay_run.hpp"
#include "report/manifest.hpp"
#include "report/merge.hpp"
#include "stopping_method.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;
using testing_replay::calls_left;
using testing_replay::make_trace;
using testing_replay::read_bytes;
using testing_replay::refusal;
using testing_replay::stop_now;
using testing_replay::stopping;
using testing_replay::TraceShape;
using testing_replay::untimed;
using testing_replay::write_bytes;

const std::string kSmallTrace = KVBENCH_TEST_DATA_DIR "/small.h5";
const std::atomic<bool> kGoOn = false;

/// Equal rows; names the first field that differs.
void expect_same(const std::vector<Fields>& got, const std::vector<Fields>& expected,
                 const std::string& what = "") {
  EXPECT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    for (std::size_t c = 0; c < columns().size(); ++c) {
      ASSERT_EQ(got[i][c], expected[i][c]) << what << " row " << i << " " << columns()[c].name;
    }
  }
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

class RunTest : public testing_replay::ReplayTest {
 protected:
  ReplayOptions options(const std::string& out = "out.csv") const {
    ReplayOptions o;
    o.traces = {trace_};
    o.out = (folder_ / out).string();
    o.algorithms = {"exact", "uniform", "local", "balancekv:T=1,2;block=8", "oracle"};
    o.budgets = {0.5, 0.1, 0.0};
    o.seeds = "2";
    o.sink = 4;
    o.recent = 12;
    o.queries = 8;
    o.threads = 1;
    return o;
  }
};

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
  for (Index job = 0; job < plan.jobs(); ++job) {
    const Unit& unit = plan.unit_of(job);
    const Entry& entry = plan.entry_of(job);
    for (const Index head : unit.q_heads) {
      const Fields& row = rows.at(at++);
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

TEST_F(RunTest, ThreadsDoNotChangeARow) {
  run(options("one.csv"));
  for (const int threads : {2, 3}) {
    ReplayOptions o = options("more.csv");
    o.threads = threads;
    o.overwrite = true;
    run(o);
    expect_same(untimed(folder_ / "more.csv"), untimed(folder_ / "one.csv"),
                std::to_string(threads) + " threads");
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
  TraceShape shape;
  shape.tokens = {1, 2, 16, 17, 18, 19};
  shape.nq = 5;
  ReplayOptions o = options();
  o.traces = {make_trace(folder_ / "tiny.h5", shape)};
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
  }
  EXPECT_EQ(result.degenerate, degenerate);
  for (const Fields& row : rows) {
    double error = 0.0;
    if (status_kind(row[column_index("status")]) == "ok") {
      EXPECT_TRUE(parse_number(row[column_index("rel_error")], error) && error >= 0.0 &&
                  error < std::numeric_limits<double>::infinity())
          << row[column_index("algorithm")] << " " << row[column_index("rel_error")];
    }
  }
}

TEST_F(RunTest, ResumeAfterACutAnywhereGivesTheUndisturbedFile) {
  const ReplayOptions whole = options();
  run(whole);
  const std::string text = read_bytes(whole.out);
  const std::string manifest = read_bytes(manifest_path(whole.out));
  const auto expected = untimed(whole.out);
  std::mt19937_64 random(2024);
  std::vector<std::size_t> cuts{
      0, 1, text.find('\n'), text.find('\n') + 1, text.size() - 1, text.size()};
  for (int i = 0; i < 10; ++i) {
    cuts.push_back(random() % text.size());
  }
  for (const std::size_t cut : cuts) {
    write_bytes(whole.out, text.substr(0, cut));
    write_bytes(manifest_path(whole.out), manifest);
    ReplayOptions o = options();
    o.resume = true;
    o.threads = 2;
    const RunResult result = run(o);
    expect_same(untimed(o.out), expected, "cut at byte " + std::to_string(cut));
    EXPECT_EQ(result.rows, static_cast<Index>(expected.size()));
    // Whole lines were kept, but for a job of which only some heads' rows were there.
    const auto lines =
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(cut), '\n');
    EXPECT_LE(result.resumed, std::max<Index>(0, lines - 1)) << cut;
    EXPECT_GE(result.resumed, lines - 2) << cut;
    EXPECT_EQ(read_manifest(o.out).rows_resumed, result.resumed);
    // What was kept is kept to the byte, timings too.
    const std::string after = read_bytes(o.out);
    const auto same = std::mismatch(after.begin(), after.end(), text.begin(), text.end());
    EXPECT_GE(std::count(after.begin(), same.first, '\n'),
              std::min<Index>(result.resumed + 1, lines));
  }
}

TEST_F(RunTest, ResumeOfACompleteFileChangesNoByteOfIt) {
  run(options());
  const std::string text = read_bytes(folder_ / "out.csv");
  ReplayOptions o = options();
  o.resume = true;
  const RunResult result = run(o);
  EXPECT_EQ(result.resumed, result.rows);
  EXPECT_EQ(read_bytes(folder_ / "out.csv"), text);
}

TEST_F(RunTest, ResumeBeginsWhereThereIsNothing) {
  ReplayOptions o = options();
  o.resume = true;
  EXPECT_EQ(run(o).resumed, 0);
  const auto rows = untimed(o.out);
  EXPECT_FALSE(rows.empty());
  // A run that was killed before it wrote its manifest left a header at most.
  const std::string header = csv_line(schema_header());
  for (const std::string& left : {std::string(), header.substr(0, 9), header}) {
    fs::remove(manifest_path(o.out));
    write_bytes(o.out, left);
    EXPECT_EQ(run(o).resumed, 0);
    expect_same(untimed(o.out), rows);
  }
}

TEST_F(RunTest, ResumeRefusesAnotherPlanAndLeavesTheFile) {
  run(options());
  const std::string text = read_bytes(folder_ / "out.csv");
  const std::string manifest = read_bytes(manifest_path(folder_ / "out.csv"));
  const std::vector<std::function<void(ReplayOptions&)>> changes{
      [](auto& o) { o.sink = 5; },
      [](auto& o) { o.seeds = "3"; },
      [](auto& o) { o.budgets.pop_back(); },
      [](auto& o) { o.algorithms.pop_back(); },
      [](auto& o) { o.scores = "all"; },
      [](auto& o) {
        o.shard_index = 1;
        o.shard_count = 2;
      },
  };
  for (const auto& change : changes) {
    ReplayOptions o = options();
    o.resume = true;
    change(o);
    EXPECT_NE(refusal([&] { run(o); }).find("options"), std::string::npos);
  }
  TraceShape other;
  other.tokens = {60, 37};
  other.layers = {0, 2};
  other.seed = 2;
  make_trace(trace_, other);
  ReplayOptions o = options();
  o.resume = true;
  EXPECT_NE(refusal([&] { run(o); }).find("trace"), std::string::npos);
  EXPECT_EQ(read_bytes(folder_ / "out.csv"), text);
  EXPECT_EQ(read_bytes(manifest_path(folder_ / "out.csv")), manifest);
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{"t.h5", "out.csv", "out.csv.json"}));
}

TEST_F(RunTest, ResumeRefusesRowsWithoutAManifestAndForeignFiles) {
  run(options());
  ReplayOptions o = options();
  o.resume = true;
  fs::remove(manifest_path(o.out));
  refusal([&] { run(o); });
  for (const char* text : {"a,b\n1,2\n", "my notes", "\n"}) {
    write_bytes(o.out, text);
    refusal([&] { run(o); });
    EXPECT_EQ(read_bytes(o.out), text);
  }
}

TEST_F(RunTest, ResumeRefusesARowThatStandsTwice) {
  run(options());
  const std::string text = read_bytes(folder_ / "out.csv");
  const std::size_t last = text.rfind('\n', text.size() - 2) + 1;
  write_bytes(folder_ / "out.csv", text + text.substr(last));
  ReplayOptions o = options();
  o.resume = true;
  EXPECT_NE(refusal([&] { run(o); }).find("twice"), std::string::npos);
}

TEST_F(RunTest, AnExistingOutputIsLeftAlone) {
  write_bytes(folder_ / "out.csv", "precious\n");
  EXPECT_NE(refusal([&] { run(options()); }).find("--overwrite"), std::string::npos);
  EXPECT_EQ(read_bytes(folder_ / "out.csv"), "precious\n");
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{"t.h5", "out.csv"}));
  ReplayOptions o = options();
  o.overwrite = true;
  EXPECT_GT(run(o).rows, 0);
}

TEST_F(RunTest, TwoRunsDoNotWriteOneFile) {
  run(options());
  const std::string text = read_bytes(folder_ / "out.csv");
  const FileLock lock(folder_ / "out.csv");
  for (const bool resume : {true, false}) {
    ReplayOptions o = options();
    o.resume = resume;
    o.overwrite = !resume;
    EXPECT_NE(refusal([&] { run(o); }).find("another run"), std::string::npos);
    EXPECT_EQ(read_bytes(folder_ / "out.csv"), text);
  }
}

TEST_F(RunTest, ABadValueIsFoundBeforeAnythingIsWritten) {
  const float mark = 1234.5678F;
  TraceShape shape;
  shape.layers = {0, 1};
  shape.dtype = DType::float32;
  shape.mark = mark;
  const std::string bad = make_trace(folder_ / "bad.h5", shape);
  testing_replay::poison(bad, mark);
  ReplayOptions o = options();
  o.traces = {trace_, bad};
  const std::string message = refusal([&] { run(o); });
  EXPECT_NE(message.find("bad.h5"), std::string::npos) << message;
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{"t.h5", "bad.h5"}));
  // Heads that are not replayed are not read: the bad one is in layer 1.
  o.layers = {0};
  EXPECT_GT(run(o).rows, 0);
}

TEST_F(RunTest, ShardsMergeToTheUndividedFile) {
  run(options("whole.csv"));
  for (const Index count : {3, 7}) {
    MergeOptions merge;
    merge.output = folder_ / ("merged" + std::to_string(count) + ".csv");
    merge.command_line = "merge";
    for (Index i = count; i >= 1; --i) {
      ReplayOptions o = options("shard" + std::to_string(i) + ".csv");
      o.overwrite = true;
      o.shard_index = i;
      o.shard_count = count;
      o.threads = static_cast<int>(i % 2 + 1);
      run(o);
      merge.shards.emplace_back(o.out);
    }
    merge_shards(merge);
    expect_same(untimed(merge.output), untimed(folder_ / "whole.csv"));
    const Manifest merged = read_manifest(merge.output);
    const Manifest whole = read_manifest(folder_ / "whole.csv");
    EXPECT_EQ(merged.rows, whole.rows);
    EXPECT_EQ(merged.plan->hash, whole.plan->hash);
  }
}

// ----------------------------------------------------------------------------------- interruption

Compressed hopeless(const Task&, const Params&) {
  throw std::runtime_error("on purpose");
}

TEST_F(RunTest, AStopKeepsWholeRowsAndResumeCompletesThem) {
  Method method;
  method.info.name = "stopping";
  method.compress = stopping;
  const auto planned = [&](const std::string& out, int threads, bool resume) {
    ReplayOptions o = options(out);
    o.algorithms = {"exact"};
    o.threads = threads;
    o.resume = resume;
    Plan plan = make_plan(o);
    plan.variants = {{&method, Params("stopping", {}, {})}};
    plan.entries.clear();
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      plan.entries.push_back({0, std::nullopt, seed});
    }
    return plan;
  };
  stop_now = false;
  calls_left = -1;
  const RunResult undisturbed = run_plan(planned("whole.csv", 1, false), "test", stop_now);
  EXPECT_FALSE(undisturbed.interrupted);
  EXPECT_EQ(undisturbed.rows, 8 * 6 * 2);
  const auto expected = untimed(folder_ / "whole.csv");
  for (const int threads : {1, 2}) {
    // The other thread may finish one more call than the one that stops the run: of the 48 calls
    // one at least is left.
    for (const int calls : {1, 5, 6, 29, 48 - threads}) {
      const std::string out = "cut" + std::to_string(threads) + "_" + std::to_string(calls);
      stop_now = false;
      calls_left = calls;
      const RunResult first = run_plan(planned(out, threads, false), "test", stop_now);
      EXPECT_TRUE(first.interrupted);
      EXPECT_GE(first.rows, 2 * calls);
      EXPECT_LE(first.rows, 2 * (calls + threads));
      const auto part = untimed(folder_ / out);
      EXPECT_EQ(static_cast<Index>(part.size()), first.rows);
      EXPECT_TRUE(std::all_of(part.begin(), part.end(), [&](const Fields& row) {
        return std::find(expected.begin(), expected.end(), row) != expected.end();
      }));
      EXPECT_EQ(read_manifest(folder_ / out).rows, first.rows);

      stop_now = false;
      calls_left = -1;
      const RunResult second = run_plan(planned(out, threads, true), "test", stop_now);
      EXPECT_FALSE(second.interrupted);
      EXPECT_EQ(second.resumed, first.rows);
      expect_same(untimed(folder_ / out), expected);
    }
  }
}

TEST_F(RunTest, AStopBeforeTheFirstRowWritesNothing) {
  stop_now = true;
  const RunResult result = run_plan(make_plan(options()), "test", stop_now);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.rows, 0);
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{"t.h5"}));
}

TEST_F(RunTest, FailuresAreCountedAndTheRestGoesOn) {
  Method method;
  method.info.name = "hopeless";
  method.compress = hopeless;
  Plan plan = make_plan(options());
  plan.variants.push_back({&method, Params("hopeless", {}, {})});
  plan.entries.push_back({plan.variants.size() - 1, std::nullopt, 0});
  const RunResult result = run_plan(plan, "test", kGoOn);
  EXPECT_EQ(result.failed, 2 * 2 * 4);  // prompts, layers, heads
  EXPECT_EQ(result.rows, plan.row_range({0, plan.jobs()}).size());
  EXPECT_EQ(read_manifest(folder_ / "out.csv").failures, result.failed);
}

// ------------------------------------------------------------------------------------ the machine

TEST_F(RunTest, AMemoryLimitLowersThreadsOrRefuses) {
  ReplayOptions o = options();
  o.threads = 4;
  EXPECT_EQ(usable_threads(make_plan(o)), 4);
  o.memory_limit = 1ULL << 40U;
  EXPECT_EQ(usable_threads(make_plan(o)), 4);
  // The least limit that still fits one thread.
  std::uint64_t low = 0;
  std::uint64_t high = o.memory_limit;
  while (high - low > 1) {
    o.memory_limit = low + (high - low) / 2;
    try {
      usable_threads(make_plan(o));
      high = o.memory_limit;
    } catch (const InputError&) {
      low = o.memory_limit;
    }
  }
  o.memory_limit = high;
  EXPECT_EQ(usable_threads(make_plan(o)), 1);
  o.memory_limit = high - 1;
  const std::string message = refusal([&] { run(o); });
  EXPECT_NE(message.find("--memory-limit"), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(high)), std::string::npos) << message;
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
    double error = 0.0;
    ASSERT_TRUE(parse_number(row[column_index("rel_error")], error));
    EXPECT_TRUE(error <= tolerance) << row[column_index("rel_error")];
    ASSERT_TRUE(parse_number(row[column_index("rel_error_max")], error));
    EXPECT_TRUE(error <= tolerance) << row[column_index("rel_error_max")];
    ASSERT_TRUE(parse_number(row[column_index("log_z_error")], error));
    EXPECT_TRUE(error <= tolerance) << row[column_index("log_z_error")];
    ASSERT_TRUE(parse_number(row[column_index("mass_kept")], error));
    EXPECT_TRUE(std::abs(error - 1.0) <= tolerance) << row[column_index("mass_kept")];
    EXPECT_EQ(row[column_index("ratio")], "1");
    EXPECT_EQ(row[column_index("status")], "ok");
  }
}

TEST_F(RunTest, ThreadsAndResumeDoNotChangeARowOfTheSmallTrace) {
  ASSERT_TRUE(fs::exists(kSmallTrace)) << kSmallTrace;
  ReplayOptions o;
  o.traces = {kSmallTrace};
  o.out = (folder_ / "one.csv").string();
  o.algorithms = {"all"};
  o.budgets = {0.3};
  o.layers = {3};
  o.heads = {1, 2};
  o.threads = 1;
  const RunResult result = run(o);
  EXPECT_EQ(result.failed, 0);
  const auto expected = untimed(o.out);
  o.threads = 2;
  o.out = (folder_ / "two.csv").string();
  run(o);
  expect_same(untimed(o.out), expected);
  const std::string text = read_bytes(o.out);
  write_bytes(o.out, text.substr(0, text.size() / 2));
  o.resume = true;
  EXPECT_GT(run(o).resumed, 0);
  expect_same(untimed(o.out), expected);
}

}  // namespace
}  // namespace kvbench
