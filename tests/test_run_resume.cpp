// What a run finds at its output: its own results are resumed or replaced, all else is left alone.
// Interruptions: test_interruptions.cpp.
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "option_changes.hpp"
#include "replay_run.hpp"
#include "report/manifest.hpp"
#include "report/run_files.hpp"

namespace kvbench::test_run_resume {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;

// A record that was changed before the last one is no torn end.
TEST_F(RunTest, ResumeRefusesADamagedLog) {
  ReplayOptions o = options();
  o.keep_log = true;
  run(o);
  const fs::path log = log_path(o.out);
  std::string records = read_bytes(log);
  records[records.find("uniform")] ^= 1;
  write_bytes(log, records);
  o.resume = true;
  expect_refusal([&] { run(o); }, "was changed after it was written");
  EXPECT_TRUE(read_bytes(log) == records);
}

TEST_F(RunTest, ResumeOfACompleteFileDoesNotWriteIt) {
  ReplayOptions o = options();
  const RunResult first = run(o);
  const std::string text = read_bytes(o.out);
  const auto written = fs::last_write_time(o.out);
  const auto hashes = read_manifest(o.out).sha256;
  o.resume = true;
  const RunResult result = run(o);
  EXPECT_EQ(result.resumed, first.rows);
  EXPECT_EQ(result.rows, first.rows);
  EXPECT_EQ(result.failed, first.failed);
  EXPECT_EQ(result.infeasible, first.infeasible);
  EXPECT_EQ(result.degenerate, first.degenerate);
  EXPECT_EQ(read_bytes(o.out), text);
  EXPECT_EQ(fs::last_write_time(o.out), written);
  EXPECT_EQ(read_manifest(o.out).sha256, hashes);
}

TEST_F(RunTest, ResumeBeginsWhereThereIsNothing) {
  ReplayOptions o = options();
  o.resume = true;
  EXPECT_EQ(run(o).resumed, 0);
  const auto rows = untimed(o.out);
  EXPECT_FALSE(rows.empty());
  // A run that was killed before it wrote its manifest left an empty log at most.
  for (const char* left : {"", "kvbench-jour", "kvbench-journal 1 0123456789ab\n"}) {
    fs::remove(o.out);
    fs::remove(manifest_path(o.out));
    write_bytes(log_path(o.out), left);
    EXPECT_EQ(run(o).resumed, 0);
    expect_same(untimed(o.out), rows);
  }
}

TEST_F(RunTest, ResumeRefusesAnotherPlanAndLeavesTheFile) {
  run(options());
  const std::string text = read_bytes(folder_ / "out.csv");
  const std::string manifest = read_bytes(manifest_path(folder_ / "out.csv"));
  const std::vector<Change> changes{
      set(&ReplayOptions::sink, 5),
      set(&ReplayOptions::seeds, "3"),
      [](auto& o) { o.budgets.pop_back(); },
      [](auto& o) { o.algorithms.pop_back(); },
      set(&ReplayOptions::scores, Scores::all),
      set(&ReplayOptions::kept, true),
      set(&ReplayOptions::precision, Precision::float64),
      shard(1, 2),
  };
  for (const auto& change : changes) {
    ReplayOptions o = options();
    o.resume = true;
    change(o);
    expect_refusal([&] { run(o); }, "options");
  }
  TraceShape other = small_shape();
  other.seed = 2;
  make_trace(trace_, other);
  ReplayOptions o = options();
  o.resume = true;
  expect_refusal([&] { run(o); }, "trace");
  EXPECT_EQ(read_bytes(folder_ / "out.csv"), text);
  EXPECT_EQ(read_bytes(manifest_path(folder_ / "out.csv")), manifest);
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{"t.h5", "out.csv", "out.csv.json"}));
}

TEST_F(RunTest, ResumeRefusesChangedAndForeignTablesAndLeavesThem) {
  run(options());
  ReplayOptions o = options();
  o.resume = true;
  const auto expect_left = [&](const std::string& text) {
    write_bytes(o.out, text);
    const std::set<std::string> before = names_in(folder_);
    expect_refusal([&] { run(o); }, "out.csv");
    EXPECT_EQ(read_bytes(o.out), text);
    EXPECT_EQ(names_in(folder_), before);
  };
  const std::string text = read_bytes(o.out);
  expect_left(text + "\n");
  fs::remove(manifest_path(o.out));
  for (const std::string& foreign : {text, std::string("a,b\n1,2\n"), std::string("my notes")}) {
    expect_left(foreign);
  }
}

TEST_F(RunTest, AnExistingOutputIsLeftAlone) {
  ReplayOptions o = options();
  run(o);
  const std::string text = read_bytes(o.out);
  expect_refusal([&] { run(o); }, "--overwrite");
  EXPECT_EQ(read_bytes(o.out), text);
  o.overwrite = true;
  EXPECT_GT(run(o).rows, 0);
}

// Tables of an earlier run that this one does not write would pass for this one's.
TEST_F(RunTest, OverwriteRemovesAllOfAnEarlierRunAndNothingElse) {
  ReplayOptions o = options();
  o.kept = true;
  o.per_query = PerQuery::bins;
  run(o);
  write_bytes(folder_ / "out.kept.csv.tmp", "schema,tr");
  write_bytes(folder_ / "out.layers.csv.part", "kvbench-journal 1 of a run that was killed\n");
  write_bytes(folder_ / "out.notes.csv", "precious");
  write_bytes(folder_ / "out2.csv", "precious");
  ASSERT_TRUE(fs::exists(folder_ / "out.queries.csv"));
  ReplayOptions plain = options();
  fs::rename(o.out, folder_ / "away.csv");
  expect_refusal([&] { run(plain); }, "out.kept.csv: exists");
  fs::rename(folder_ / "away.csv", o.out);
  plain.overwrite = true;
  run(plain);
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{"t.h5", "out.csv", "out.csv.json",
                                                      "out.notes.csv", "out2.csv"}));
  // A side table's name may be another result's.
  fs::copy_file(o.out, folder_ / "out.kept.csv");
  expect_refusal([&] { run(plain); }, "is not a table OUT.kept.csv");
  EXPECT_EQ(read_bytes(folder_ / "out.kept.csv"), read_bytes(o.out));
}

TEST_F(RunTest, TwoRunsDoNotWriteOneFile) {
  run(options());
  const std::string text = read_bytes(folder_ / "out.csv");
  const FileLock lock(folder_ / "out.csv");
  for (const bool resume : {true, false}) {
    ReplayOptions o = options();
    o.resume = resume;
    o.overwrite = !resume;
    expect_refusal([&] { run(o); }, "another run");
    EXPECT_EQ(read_bytes(folder_ / "out.csv"), text);
  }
}

// Between the first check and the lock another run may have ended.
TEST_F(RunTest, ARunThatEndedMeanwhileIsNotReplaced) {
  const Plan plan = make_plan(options());
  ResultStore::check(plan);
  run(options());
  const std::string text = read_bytes(folder_ / "out.csv");
  const Manifest now = read_manifest(folder_ / "out.csv");
  expect_refusal([&] { const ResultStore store(plan, now); }, "out.csv: exists");
  EXPECT_EQ(read_bytes(folder_ / "out.csv"), text);
}

// A second run could take the lock between the removal of the old files and the first new one.
TEST_F(RunTest, OverwriteTakesTheLockOnce) {
  ReplayOptions o = options();
  run(o);
  o.overwrite = true;
  const int watch = ::inotify_init1(IN_NONBLOCK);
  ASSERT_GE(::inotify_add_watch(watch, folder_.c_str(), IN_CREATE), 0);
  run(o);
  std::vector<char> events(std::size_t{1} << 16);
  const ssize_t bytes = ::read(watch, events.data(), events.size());
  ::close(watch);
  int locks = 0;
  for (ssize_t at = 0; at < bytes;) {
    const auto* event = reinterpret_cast<const inotify_event*>(events.data() + at);
    locks += std::string(event->name) == "out.csv.lock" ? 1 : 0;
    at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
  }
  EXPECT_EQ(locks, 1);
}

}  // namespace
}  // namespace kvbench::test_run_resume
