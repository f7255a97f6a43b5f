// Runs that are stopped, cut anywhere and resumed give the undisturbed file; what is there already
// is left alone.
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/sha256.hpp"
#include "replay_run.hpp"
#include "report/manifest.hpp"
#include "report/run_files.hpp"
#include "stopping_method.hpp"

namespace kvbench::test_run_resume {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;

// The log of a run that was killed after any byte.
TEST_F(RunTest, ResumeAfterACutAnywhereGivesTheUndisturbedFile) {
  ReplayOptions whole = options();
  whole.keep_log = true;
  run(whole);
  const std::string text = read_bytes(whole.out);
  const fs::path log = log_path(whole.out);
  const std::string records = read_bytes(log);
  const auto expected = untimed(whole.out);
  std::mt19937_64 random(2024);
  std::vector<std::size_t> cuts{0, 1, records.find('\n'), records.size() - 1, records.size()};
  for (int i = 0; i < 10; ++i) {
    cuts.push_back(random() % records.size());
  }
  Index before = 0;
  std::ranges::sort(cuts);
  for (const std::size_t cut : cuts) {
    for (const fs::path& table : {fs::path(whole.out), manifest_path(whole.out)}) {
      fs::remove(table);
    }
    write_bytes(log, records.substr(0, cut));
    ReplayOptions o = options();
    o.resume = true;
    o.threads = 2;
    const RunResult result = run(o);
    expect_same(untimed(o.out), expected, "cut at byte " + std::to_string(cut));
    EXPECT_EQ(result.rows, static_cast<Index>(expected.size()));
    EXPECT_GE(result.resumed, before);
    before = result.resumed;
    EXPECT_EQ(read_manifest(o.out).rows_resumed, result.resumed);
    EXPECT_FALSE(fs::exists(log));
    // What was kept is kept to the byte, timings too.
    const std::vector<Fields> rows = read_table(o.out).rows;
    const std::vector<Fields> were = parse_table(text, "text").rows;
    EXPECT_GE(
        std::ranges::count_if(
            rows, [&](const Fields& row) { return std::ranges::find(were, row) != were.end(); }),
        result.resumed);
  }
  EXPECT_EQ(before, static_cast<Index>(expected.size()));
}

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
  EXPECT_NE(refusal([&] { run(o); }).find("was changed after it was written"), std::string::npos);
  EXPECT_TRUE(read_bytes(log) == records);
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
  const std::vector<std::function<void(ReplayOptions&)>> changes{
      [](auto& o) { o.sink = 5; },
      [](auto& o) { o.seeds = "3"; },
      [](auto& o) { o.budgets.pop_back(); },
      [](auto& o) { o.algorithms.pop_back(); },
      [](auto& o) { o.scores = Scores::all; },
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

TEST_F(RunTest, ResumeRefusesATableThatWasChanged) {
  run(options());
  const std::string text = read_bytes(options().out);
  const std::size_t last = text.rfind('\n', text.size() - 2) + 1;
  ReplayOptions o = options();
  o.resume = true;
  for (const std::string& changed : {text + text.substr(last), text.substr(0, last), text + "\n"}) {
    write_bytes(o.out, changed);
    EXPECT_NE(refusal([&] { run(o); }).find("out.csv"), std::string::npos);
    EXPECT_EQ(read_bytes(o.out), changed);
    EXPECT_EQ(names_in(folder_), (std::set<std::string>{"t.h5", "out.csv", "out.csv.json"}));
  }
}

TEST_F(RunTest, AnExistingOutputIsLeftAlone) {
  ReplayOptions o = options();
  run(o);
  const std::string text = read_bytes(o.out);
  EXPECT_NE(refusal([&] { run(o); }).find("--overwrite"), std::string::npos);
  EXPECT_EQ(read_bytes(o.out), text);
  o.overwrite = true;
  EXPECT_GT(run(o).rows, 0);
  // One of somebody else's stays whatever is asked for.
  fs::remove(manifest_path(o.out));
  write_bytes(o.out, "precious\n");
  for (const bool overwrite : {false, true}) {
    o.overwrite = overwrite;
    EXPECT_NE(refusal([&] { run(o); }).find("is not a result table"), std::string::npos);
    EXPECT_EQ(read_bytes(o.out), "precious\n");
    EXPECT_EQ(names_in(folder_), (std::set<std::string>{"t.h5", "out.csv"}));
  }
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
  EXPECT_NE(refusal([&] { run(plain); }).find("out.kept.csv: exists"), std::string::npos);
  fs::rename(folder_ / "away.csv", o.out);
  plain.overwrite = true;
  run(plain);
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{"t.h5", "out.csv", "out.csv.json",
                                                      "out.notes.csv", "out2.csv"}));
  // A side table's name may be another result's.
  fs::copy_file(o.out, folder_ / "out.kept.csv");
  EXPECT_NE(refusal([&] { run(plain); }).find("is not a table OUT.kept.csv"), std::string::npos);
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
    EXPECT_NE(refusal([&] { run(o); }).find("another run"), std::string::npos);
    EXPECT_EQ(read_bytes(folder_ / "out.csv"), text);
  }
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

TEST_F(RunTest, AStopKeepsWholeRowsAndResumeCompletesThem) {
  Method method;
  method.info.name = "stopping";
  method.compress = stopping;
  const auto planned = [&](const std::string& out, int threads, bool resume) {
    ReplayOptions o = options(out);
    o.threads = threads;
    o.resume = resume;
    return plan_of_seeds(o, method, 6);
  };
  const RunResult undisturbed = run_until(planned("whole.csv", 1, false));
  EXPECT_FALSE(undisturbed.interrupted);
  EXPECT_EQ(undisturbed.rows, 8 * 6 * 2);
  const auto expected = untimed(folder_ / "whole.csv");
  for (const int threads : {1, 2}) {
    // The other thread may finish one more call than the one that stops the run: of the 48 calls
    // one at least is left.
    for (const int calls : {1, 5, 6, 29, 48 - threads}) {
      const std::string out = "cut" + std::to_string(threads) + "_" + std::to_string(calls);
      const RunResult first = run_until(planned(out, threads, false), calls);
      EXPECT_TRUE(first.interrupted);
      EXPECT_GE(first.rows, 2 * calls);
      EXPECT_LE(first.rows, 2 * (calls + threads));
      const auto part = untimed(folder_ / out);
      EXPECT_EQ(static_cast<Index>(part.size()), first.rows);
      EXPECT_TRUE(std::all_of(part.begin(), part.end(), [&](const Fields& row) {
        return std::find(expected.begin(), expected.end(), row) != expected.end();
      }));
      EXPECT_EQ(read_manifest(folder_ / out).rows, first.rows);

      const RunResult second = run_until(planned(out, threads, true));
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

}  // namespace
}  // namespace kvbench::test_run_resume
