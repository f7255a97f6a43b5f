// Whole runs in tests: a folder with a tiny trace, rows without their timing columns.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "make_trace.hpp"
#include "refusal.hpp"
#include "replay/planner.hpp"
#include "replay/resources.hpp"
#include "replay/run.hpp"
#include "report/csv.hpp"
#include "report/run_files.hpp"
#include "report/schema.hpp"
#include "report/table_reader.hpp"
#include "report_rows.hpp"

namespace kvbench::testing_replay {

inline const std::atomic<bool> kGoOn = false;  ///< nobody stops what looks at it

/// Rows of a file, timing columns and run_id emptied.
inline std::vector<Fields> untimed(const std::filesystem::path& path) {
  Table table = read_table(path);
  EXPECT_EQ(table.header, schema_header());
  for (Fields& row : table.rows) {
    for (std::size_t i = 0; i < columns().size(); ++i) {
      if (columns()[i].timing || columns()[i].name == "run_id") {
        row[i].clear();
      }
    }
  }
  return table.rows;
}

/// Equal rows; names the first field that differs.
inline void expect_same(const std::vector<Fields>& got, const std::vector<Fields>& expected,
                        const std::string& what = "") {
  EXPECT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    for (std::size_t c = 0; c < columns().size(); ++c) {
      ASSERT_EQ(got[i][c], expected[i][c]) << what << " row " << i << " " << columns()[c].name;
    }
  }
}

inline std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

/// Two prompts of 60 and 37 tokens, layers 0 and 2, in a folder of the test's own.
class ReplayTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing_rows::test_folder();
    trace_ = make_trace(folder_ / "t.h5", small_shape());
  }

  /// Of the fixture's trace: two prompts of two layers. `hidden`: of output projections, 0: none.
  static TraceShape small_shape(Index hidden = 0) {
    TraceShape shape{.tokens = {60, 37}, .layers = {0, 2}, .hidden = hidden};
    return shape;
  }

  /// Small windows, one thread, no algorithm.
  ReplayOptions basic(const std::string& out) const {
    ReplayOptions o;
    o.traces = {trace_};
    o.out = (folder_ / out).string();
    o.sink = 4;
    o.recent = 12;
    o.queries = 8;
    o.threads = 1;
    return o;
  }

  /// The same with two threads and the table of kept tokens.
  ReplayOptions small_run(const std::string& out) const {
    ReplayOptions o = basic(out);
    o.threads = 2;
    o.kept = true;
    return o;
  }

  static RunResult run(const Plan& plan) { return run_plan(plan, "test", kGoOn); }
  static RunResult run(const ReplayOptions& o) { return run(make_plan(o)); }

  /// What a run leaves that is killed when it has written this share of its log.
  static void kill_after(ReplayOptions o, double share) {
    o.keep_log = true;
    run(o);
    for (const Output& table : table_files(o.out)) {
      std::filesystem::remove(table.path);
    }
    const std::filesystem::path log = log_path(o.out);
    const auto size = static_cast<double>(std::filesystem::file_size(log));
    std::filesystem::resize_file(log, static_cast<std::uintmax_t>(share * size));
  }

  std::filesystem::path folder_;
  std::string trace_;
};

/// Small runs of five algorithms.
class RunTest : public ReplayTest {
 protected:
  ReplayOptions options(const std::string& out = "out.csv") const {
    ReplayOptions o = basic(out);
    o.algorithms = {"exact", "uniform", "local", "balancekv:T=1,2;block=8", "oracle"};
    o.budgets = {0.5, 0.1, 0.0};
    o.seeds = "2";
    return o;
  }
};

}  // namespace kvbench::testing_replay
