// Any interruption of a run and any partition of it give the undivided tables and caches: a run
// that is stopped after any call or whose log lost any bytes or records is resumed, logs that hold
// any parts of it and shards are merged, on any number of threads.
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
  // Two prompts of two layers of two KV heads, each with two query heads and four entries.
  static constexpr int kJobs = 8 * 4;
  static constexpr int kCalls = kJobs - 4;
  static constexpr Index kRows = 2 * kJobs;

  void SetUp() override {
    CachesTest::SetUp();
    trace_ = make_trace(trace_, small_shape(12));
    method_.info.name = "weighted";
    method_.compress = weighted;
    unfit_.info.name = "unfit";
    unfit_.compress = unfit;
    ReplayOptions o = run_options("whole");
    o.keep_log = true;
    EXPECT_EQ(go(o).rows, kRows);
    EXPECT_EQ(calls_made, kCalls);
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

  Plan planned(const ReplayOptions& o) const {
    Plan plan = plan_of_seeds(o, method_, 3);
    plan.variants.push_back({&unfit_, Params("unfit", {}, {})});
    plan.entries.push_back({1, std::nullopt, 0});
    return plan;
  }

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
    Journal to(path, from.identity(), false, Journal::Damage::refuse);
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
      const std::string end = fs::path(name).extension();
      EXPECT_TRUE(!name.starts_with("part.") || end == ".csv" || end == ".json" || end == ".h5")
          << name;
    }
  }

  Method method_;
  Method unfit_;
  std::vector<Index> records_;  // of the undivided run
};

TEST_F(Interruptions, StoppedAfterAnyCall) {
  const ReplayOptions whole = run_options("whole");
  const std::vector<Fields> expected = untimed(whole.out);
  for (const int threads : {1, 2}) {
    // The other thread may finish one more call than the one that stops the run.
    for (int calls = 1; calls <= kCalls - threads; calls += threads == 1 ? 1 : 5) {
      SCOPED_TRACE(std::to_string(threads) + " threads, " + std::to_string(calls) + " calls");
      ReplayOptions o = run_options("part");
      o.threads = threads;
      remove_results(o);
      const RunResult first = go(o, calls);
      const int made = calls_made;
      EXPECT_TRUE(first.interrupted);
      EXPECT_GE(first.rows, 2 * made);
      EXPECT_LT(first.rows, kRows);
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
      EXPECT_EQ(calls_made, kCalls - made);
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
  int calls = kCalls;
  for (const std::size_t cut : cuts) {
    SCOPED_TRACE("cut at byte " + std::to_string(cut));
    ReplayOptions o = run_options("part");
    o.threads = 2;
    remove_results(o);
    write_bytes(log_path(o.out), log.substr(0, cut));
    const RunResult result = resume(o);
    EXPECT_GE(result.resumed, before);
    EXPECT_LE(calls_made, calls);
    before = result.resumed;
    calls = calls_made;
    // What was kept is kept to the byte, timings too.
    const auto kept = std::ranges::count_if(read_table(o.out).rows, [&](const Fields& row) {
      return std::ranges::find(rows, row) != rows.end();
    });
    EXPECT_GE(kept, result.resumed);
    expect_whole(o);
  }
  EXPECT_EQ(before, kRows);
  EXPECT_EQ(calls, 0);
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
    EXPECT_EQ(merge_runs(merge).rows, kRows);
    expect_whole_tables(merge.output);
  }
}

// ------------------------------------------------------------------ every protocol and side table

class RunsOfEveryKind : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    trace_ = make_trace(trace_, small_shape(12));
    whole_ = options("whole.csv");
  }

  ReplayOptions named(const std::string& name) const {
    ReplayOptions o = whole_;
    o.out = (folder_ / name).string();
    return o;
  }

  void expect_whole(const fs::path& csv) const {
    expect_same(untimed(csv), untimed(whole_.out));
    for (const TableSpec* side : all_side_tables()) {
      EXPECT_EQ(read_bytes(side->path(csv)), read_bytes(side->path(whole_.out))) << side->name();
    }
    const Manifest got = read_manifest(csv);
    const Manifest whole = read_manifest(whole_.out);
    EXPECT_EQ(got.rows, whole.rows);
    EXPECT_EQ(got.plan->hash, whole.plan->hash);
  }

  // Threads, kills and shards change nothing of the run `whole_`.
  void check() {
    run(whole_);
    for (const int threads : {2, 3}) {
      ReplayOptions o = named("threads" + std::to_string(threads) + ".csv");
      o.threads = threads;
      run(o);
      expect_whole(o.out);
    }
    Index before = 0;
    for (const double share : {0.0, 0.2, 0.5, 0.8, 0.99, 1.0}) {
      SCOPED_TRACE("killed at " + std::to_string(share));
      ReplayOptions o = named("killed.csv");
      o.overwrite = true;
      kill_after(o, share);
      o.overwrite = false;
      o.resume = true;
      o.threads = 2;
      const Index resumed = run(o).resumed;
      EXPECT_GE(resumed, before);
      before = resumed;
      expect_whole(o.out);
    }
    EXPECT_EQ(before, read_manifest(whole_.out).rows);
    for (const Index count : {3, 7}) {
      SCOPED_TRACE(std::to_string(count) + " shards");
      MergeOptions merge;
      merge.output = folder_ / ("merged" + std::to_string(count) + ".csv");
      for (Index i = count; i >= 1; --i) {
        ReplayOptions o = named("shard" + std::to_string(count) + "_" + std::to_string(i) + ".csv");
        o.shard_index = i;
        o.shard_count = count;
        o.threads = static_cast<int>(i % 2 + 1);
        run(o);
        merge.inputs.emplace_back(o.out);
      }
      merge_runs(merge);
      expect_whole(merge.output);
    }
  }

  ReplayOptions whole_;
};

TEST_F(RunsOfEveryKind, PrefillWithItsSideTables) {
  whole_.kept = true;
  whole_.per_query = PerQuery::bins;
  check();
}

TEST_F(RunsOfEveryKind, PrefillWithEveryQuery) {
  whole_.algorithms = {"exact", "h2o"};
  whole_.per_query = PerQuery::all;
  check();
}

TEST_F(RunsOfEveryKind, StreamWithItsSteps) {
  whole_.protocol = Protocol::stream;
  whole_.algorithms = {"exact", "uniform", "local", "streamingllm"};
  whole_.eval_every = 7;
  whole_.kept = true;
  check();
}

TEST_F(RunsOfEveryKind, Retrieval) {
  whole_.protocol = Protocol::retrieval;
  whole_.algorithms = {"all", "quest:union=group", "h2o+pq", "quest@quant-kivi"};
  whole_.budgets = {0.25};
  check();
}

}  // namespace
}  // namespace kvbench::test_interruptions
