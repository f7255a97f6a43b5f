// Whole stream runs: the second table goes with the first; and exact streams of
// tests/data/small.h5. Interruptions and shards: test_interruptions.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "replay/stream_job.hpp"
#include "replay_run.hpp"
#include "report/manifest.hpp"
#include "report/table_spec.hpp"
#include "stopping_method.hpp"
#include "stream_caches.hpp"

namespace kvbench::test_stream_run {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;
using testing_rows::read_without_run;

const std::string kSmallTrace = KVBENCH_TEST_DATA_DIR "/small.h5";

class StreamRunTest : public testing_replay::ReplayTest {
 protected:
  ReplayOptions options(const std::string& out = "out.csv") const {
    ReplayOptions o;
    o.traces = {trace_};
    o.out = (folder_ / out).string();
    o.algorithms = {"exact", "uniform", "local", "streamingllm"};
    o.budgets = {0.5, 0.1};
    o.seeds = "2";
    o.protocol = Protocol::stream;
    o.sink = 3;
    o.recent = 12;
    o.queries = 8;
    o.eval_every = 7;
    o.kept = true;
    o.threads = 1;
    return o;
  }

  void expect_files(const fs::path& got, const fs::path& expected, const std::string& what) const {
    EXPECT_EQ(untimed(got), untimed(expected)) << what;
    for (const TableSpec* table : {&steps_table(), &kept_table()}) {
      EXPECT_EQ(read_bytes(table->path(got)), read_bytes(table->path(expected))) << what;
    }
  }
};

TEST_F(StreamRunTest, StepsStandBesideTheirRowsInThePlansOrder) {
  const ReplayOptions o = options();
  const RunResult result = run(o);
  EXPECT_EQ(result.failed, 0);
  EXPECT_GT(result.infeasible, 0);  // 0.1 of 60 tokens are fewer than 3 sinks and a window of 12
  const Table steps = read_table(folder_ / "out.steps.csv");
  EXPECT_EQ(steps.header, steps_table().header());
  EXPECT_EQ(steps.header.size(), 19U);
  std::size_t at = 0;
  for (const Fields& row : read_table(o.out).rows) {
    EXPECT_EQ(row[column_index("sink")], "3");
    if (!has_lines(row[column_index("status")])) {
      EXPECT_EQ(status_kind(row[column_index("status")]), "infeasible");
      continue;
    }
    const Index n = std::stol(row[column_index("n_tokens")]);
    double most = 0.0;
    Index peak = 0;
    for (const Index position : stream_steps(o, n)) {
      const Fields& step = steps.rows.at(at++);
      EXPECT_EQ(steps_table().key(step), main_table().key(row));
      EXPECT_EQ(step[steps.column("step")], std::to_string(position));
      double error = 0.0;
      ASSERT_TRUE(parse_number(step[steps.column("rel_error")], error));
      most = position >= n - 8 ? std::max(most, error) : most;
      peak = std::max<Index>(peak, std::stol(step[steps.column("bytes")]));
    }
    double stated = 0.0;
    ASSERT_TRUE(parse_number(row[column_index("rel_error_max")], stated));
    EXPECT_NEAR(stated, most, 1e-15 + 1e-12 * most);
    EXPECT_EQ(row[column_index("peak_bytes")], std::to_string(peak));
  }
  EXPECT_EQ(at, steps.rows.size());
  EXPECT_EQ(read_manifest(o.out).configuration["eval_every"], 7);
}

TEST_F(StreamRunTest, OtherEntriesDoNotChangeAByteOfTheSteps) {
  run(options("one.csv"));
  ReplayOptions few = options("few.csv");
  few.algorithms = {"uniform"};
  few.heads = {3};
  run(few);
  const auto all = read_without_run(folder_ / "one.steps.csv").rows;
  const std::set<Fields> known(all.begin(), all.end());
  for (const Fields& step : read_without_run(folder_ / "few.steps.csv").rows) {
    EXPECT_EQ(known.count(step), 1U);
  }
}

TEST_F(StreamRunTest, ResumeRefusesChangedStepsAndOtherOptions) {
  ReplayOptions o = options();
  run(o);
  o.resume = true;
  const std::string steps = read_bytes(steps_table().path(o.out));
  const std::size_t last = steps.rfind('\n', steps.size() - 2) + 1;
  write_bytes(steps_table().path(o.out), steps + steps.substr(last));
  EXPECT_NE(refusal([&] { run(o); }).find("out.steps.csv"), std::string::npos);
  o.eval_every = 5;
  EXPECT_NE(refusal([&] { run(o); }).find("options"), std::string::npos);
}

TEST_F(StreamRunTest, AnExistingStepsFileIsLeftAlone) {
  ReplayOptions o = options();
  for (const bool overwrite : {false, true}) {
    write_bytes(folder_ / "out.steps.csv", "precious\n");
    o.overwrite = overwrite;
    EXPECT_NE(refusal([&] { run(o); }).find("out.steps.csv: exists"), std::string::npos);
    EXPECT_EQ(read_bytes(folder_ / "out.steps.csv"), "precious\n");
    EXPECT_FALSE(fs::exists(o.out));
  }
  run(options("fresh.csv"));
  fs::copy_file(folder_ / "fresh.steps.csv", folder_ / "out.steps.csv",
                fs::copy_options::overwrite_existing);
  o.overwrite = false;
  EXPECT_NE(refusal([&] { run(o); }).find("expected --resume"), std::string::npos);
  o.overwrite = true;
  run(o);
  expect_files(o.out, folder_ / "fresh.csv", "overwritten");
  // A prefill has no steps, but those that are there would pass for its own.
  ReplayOptions prefill = options();
  prefill.protocol = Protocol::prefill;
  prefill.eval_every = 0;
  EXPECT_NE(refusal([&] { run(prefill); }).find("exists"), std::string::npos);
  fs::remove(o.out);
  EXPECT_NE(refusal([&] { run(prefill); }).find("out.steps.csv: exists"), std::string::npos);
  prefill.overwrite = true;
  run(prefill);
  EXPECT_FALSE(fs::exists(folder_ / "out.steps.csv"));
}

Compressed counted(const StreamTask& task, const std::vector<Index>& left, Index j) {
  count_call();
  return testing_stream::sampled(task, left, j);
}

TEST_F(StreamRunTest, AStopKeepsWholeJobsAndResumeCompletesThem) {
  const Method method = testing_stream::made_method<counted>();
  const auto planned = [&](const std::string& out, int threads, bool resume) {
    ReplayOptions o = options(out);
    o.threads = threads;
    o.resume = resume;
    return plan_of_seeds(o, method, 5);
  };
  run_until(planned("whole.csv", 1, false));
  for (const int threads : {1, 2}) {
    for (const int views : {1, 40, 200}) {
      const fs::path out = folder_ / fmt::format("cut{}_{}.csv", threads, views);
      EXPECT_TRUE(run_until(planned(out.filename(), threads, false), views).interrupted);
      std::set<std::string> keys;
      for (const Fields& row : read_table(out).rows) {
        keys.insert(main_table().key(row));
      }
      for (const Fields& step : read_table(steps_table().path(out)).rows) {
        EXPECT_EQ(keys.count(steps_table().key(step)), 1U);
      }
      run_until(planned(out.filename(), threads, true));
      expect_files(out, folder_ / "whole.csv", out.string());
    }
  }
}

TEST_F(StreamRunTest, StepsPathsByHand) {
  EXPECT_EQ(steps_table().path("a/out.csv"), "a/out.steps.csv");
  EXPECT_EQ(steps_table().path("a.b/out"), "a.b/out.steps.csv");
  EXPECT_EQ(steps_table().path("out.tsv"), "out.tsv.steps.csv");
}

TEST_F(StreamRunTest, TheMemoryLimitLimitsThreads) {
  ReplayOptions o = options();
  o.threads = 8;
  const MemoryNeed need = memory_need(make_plan(o), make_plan(o).units.front());
  o.memory_limit = need.total(1, 3);
  EXPECT_EQ(usable_threads(make_plan(o)), 3);
  o.memory_limit = need.unit;
  EXPECT_NE(refusal([&] { usable_threads(make_plan(o)); }).find("--memory-limit"),
            std::string::npos);
}

// Two float64 sums of 2048 terms in different orders: far below 1e-12.
TEST_F(StreamRunTest, ExactStreamsOfTheSmallTraceHaveNoError) {
  ReplayOptions o = options();
  o.traces = {kSmallTrace};
  o.algorithms = {"exact"};
  o.recent = 256;
  o.queries = 32;
  o.eval_every = 0;
  o.layers = {0, 3};
  run(o);
  const Table steps = read_table(steps_table().path(o.out));
  EXPECT_EQ(steps.rows.size(), 8U * (64U + 31U));
  for (const Fields& step : steps.rows) {
    double error = 1.0;
    ASSERT_TRUE(parse_number(step[steps.column("rel_error")], error));
    EXPECT_TRUE(error <= 1e-6) << error;  // float32
    EXPECT_EQ(std::stol(step[steps.column("bytes")]),
              (std::stol(step[steps.column("step")]) + 1) * 256);
  }
}

}  // namespace
}  // namespace kvbench::test_stream_run
