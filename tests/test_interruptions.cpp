// Any interruption of a run and any partition of it give the undivided tables and caches: a run
// that is stopped after any call or whose log lost any bytes or records is resumed, and logs that
// hold any parts of it are merged.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cache_runs.hpp"
#include "report/journal.hpp"
#include "report/manifest.hpp"
#include "report/merge.hpp"
#include "report/run_files.hpp"
#include "stopping_method.hpp"

namespace kvbench::test_interruptions {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;
using testing_caches::contents;

// A weighted sample, which has a weight to store.
Compressed weighted(const Task& task, const Params& params) {
  Compressed c = stopping(task, params);
  c.held.common = 2.0F;
  c.aux_bytes = 4;
  return c;
}

class Interruptions : public testing_caches::CachesTest {
 protected:
  // Two prompts of two layers of two KV heads, each with three seeds and two query heads.
  static constexpr int kJobs = 8 * 3;
  static constexpr Index kRowsOfJob = 2;

  void SetUp() override {
    CachesTest::SetUp();
    TraceShape shape;
    shape.tokens = {60, 37};
    shape.layers = {0, 2};
    shape.hidden = 12;
    trace_ = make_trace(trace_, shape);
    method_.info.name = "weighted";
    method_.compress = weighted;
    ReplayOptions o = run_options("whole");
    o.keep_log = true;
    EXPECT_EQ(go(o).rows, kRowsOfJob * kJobs);
    EXPECT_EQ(contents(o.export_caches, planned(o)).size(), std::size_t{kJobs});
    records_ = Journal(log_path(o.out), Journal::Damage::refuse).numbers();
    std::erase_if(records_, [](Index number) { return number < 0; });
  }

  ReplayOptions run_options(const std::string& name) const {
    ReplayOptions o = options(name + ".csv", name + ".h5");
    o.kept = true;
    o.per_query = PerQuery::bins;
    return o;
  }

  Plan planned(const ReplayOptions& o) const { return plan_of_seeds(o, method_, 3); }

  // Runs until the method was called so often; -1: to the end.
  RunResult go(const ReplayOptions& o, int calls = -1) const {
    return run_until(planned(o), calls);
  }

  RunResult resume(ReplayOptions o) const {
    o.resume = true;
    return go(o);
  }

  void remove_results(const ReplayOptions& o) const {
    for (const Output& file : run_files(o.out)) {
      fs::remove(file.path);
    }
    fs::remove(o.export_caches);
  }

  // A log with the manifest and these records of the undivided run.
  void write_log(const fs::path& path, const std::vector<Index>& numbers) const {
    const Journal from(log_path(at("whole.csv")), Journal::Damage::refuse);
    Journal to(path, from.identity(), false);
    to.append(-1, from.read(-1));
    for (const Index number : numbers) {
      to.append(number, from.read(number));
    }
  }

  void expect_whole_tables(const fs::path& csv) const {
    expect_same(untimed(csv), untimed(at("whole.csv")));
    for (const TableSpec* side : {&kept_table(), &queries_table(), &layers_table()}) {
      EXPECT_EQ(read_bytes(side->path(csv)), read_bytes(side->path(at("whole.csv"))));
    }
  }

  void expect_whole(const ReplayOptions& o) const {
    expect_whole_tables(o.out);
    EXPECT_TRUE(contents(o.export_caches, planned(o)) == contents(at("whole.h5"), planned(o)));
    for (const std::string& name : names_in(folder_)) {
      EXPECT_TRUE(!name.starts_with("part.") ||
                  !(name.ends_with(".log") || name.ends_with(".tmp") || name.ends_with(".lock")))
          << name;
    }
  }

  Method method_;
  std::vector<Index> records_;  // of the undivided run
};

TEST_F(Interruptions, StoppedAfterAnyCall) {
  const ReplayOptions whole = run_options("whole");
  const std::vector<Fields> expected = untimed(whole.out);
  for (const int threads : {1, 2}) {
    // The other thread may finish one more call than the one that stops the run.
    for (int calls = 1; calls <= kJobs - threads; calls += threads == 1 ? 1 : 5) {
      SCOPED_TRACE(std::to_string(threads) + " threads, " + std::to_string(calls) + " calls");
      ReplayOptions o = run_options("part");
      o.threads = threads;
      remove_results(o);
      const RunResult first = go(o, calls);
      const int made = calls_made;
      EXPECT_TRUE(first.interrupted);
      EXPECT_EQ(first.rows, kRowsOfJob * made);
      EXPECT_EQ(read_manifest(o.out).rows, first.rows);
      const std::vector<Fields> part = untimed(o.out);
      EXPECT_EQ(std::ssize(part), first.rows);
      EXPECT_TRUE(std::ranges::all_of(part, [&](const Fields& row) {
        return std::ranges::find(expected, row) != expected.end();
      }));
      EXPECT_FALSE(fs::exists(o.export_caches)) << "it would pass for a whole one";
      const RunResult second = resume(o);
      EXPECT_FALSE(second.interrupted);
      EXPECT_EQ(second.resumed, first.rows);
      EXPECT_EQ(calls_made, kJobs - made);
      EXPECT_EQ(read_manifest(o.out).rows_resumed, second.resumed);
      expect_whole(o);
    }
  }
}

TEST_F(Interruptions, StoppedBeforeTheFirstRowNothingIsWritten) {
  const std::set<std::string> before = names_in(folder_);
  stop_now = true;
  const RunResult result = run_plan(planned(run_options("part")), "test", stop_now);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.rows, 0);
  EXPECT_EQ(names_in(folder_), before);
}

TEST_F(Interruptions, ALogCutAnywhere) {
  const std::string log = read_bytes(log_path(at("whole.csv")));
  const std::vector<Fields> rows = read_table(at("whole.csv")).rows;
  std::mt19937_64 random(2024);
  std::vector<std::size_t> cuts{0, 1, log.find('\n'), log.size() - 1, log.size()};
  for (int i = 0; i < 15; ++i) {
    cuts.push_back(random() % log.size());
  }
  std::ranges::sort(cuts);
  Index before = 0;
  for (const std::size_t cut : cuts) {
    SCOPED_TRACE("cut at byte " + std::to_string(cut));
    ReplayOptions o = run_options("part");
    o.threads = 2;
    remove_results(o);
    write_bytes(log_path(o.out), log.substr(0, cut));
    const RunResult result = resume(o);
    EXPECT_EQ(calls_made, kJobs - result.resumed / kRowsOfJob);
    EXPECT_GE(result.resumed, before);
    before = result.resumed;
    // What was kept is kept to the byte, timings too.
    const auto kept = std::ranges::count_if(read_table(o.out).rows, [&](const Fields& row) {
      return std::ranges::find(rows, row) != rows.end();
    });
    EXPECT_GE(kept, result.resumed);
    expect_whole(o);
  }
  EXPECT_EQ(before, std::ssize(rows));
}

TEST_F(Interruptions, AnyRecordsInAnyOrder) {
  std::mt19937 random(5);
  std::set<Index> resumed;
  for (int trial = 0; trial < 30; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    std::vector<Index> some;
    std::ranges::copy_if(records_, std::back_inserter(some),
                         [&](Index) { return random() % 100 >= static_cast<unsigned>(3 * trial); });
    std::ranges::shuffle(some, random);
    const ReplayOptions o = run_options("part");
    remove_results(o);
    write_log(log_path(o.out), some);
    resumed.insert(resume(o).resumed);
    expect_whole(o);
  }
  EXPECT_GT(resumed.size(), 5U);
}

TEST_F(Interruptions, AnyPartitionIsMerged) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 10; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    std::vector<std::vector<Index>> parts(1 + random() % 4);
    std::map<Index, std::size_t> part_of;
    for (const Index number : records_) {  // the line of a layer is with its job
      const auto [known, fresh] = part_of.try_emplace(number / 2, random() % parts.size());
      parts[known->second].push_back(number);
    }
    MergeOptions merge;
    merge.output = at("merged.csv");
    merge.overwrite = true;
    for (std::vector<Index>& part : parts) {
      std::ranges::shuffle(part, random);
      merge.inputs.push_back(at("part" + std::to_string(merge.inputs.size()) + ".log"));
      write_log(merge.inputs.back(), part);
    }
    EXPECT_EQ(merge_runs(merge).rows, kRowsOfJob * kJobs);
    expect_whole_tables(merge.output);
  }
}

}  // namespace
}  // namespace kvbench::test_interruptions
