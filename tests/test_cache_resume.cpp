// `--export-caches` of runs that are resumed or started anew: the file is that of an undisturbed
// run, jobs whose caches are lost run again, and nobody else's file is touched. Interruptions:
// test_interruptions.cpp.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "cache_runs.hpp"
#include "core/error.hpp"
#include "core/file_lock.hpp"
#include "replay/verify.hpp"
#include "report/run_files.hpp"
#include "stopping_method.hpp"

namespace kvbench::test_cache_resume {
namespace {

namespace fs = std::filesystem;
using namespace testing_caches;
using namespace testing_replay;

Compressed failing(const Task&, const Params&) {
  throw std::runtime_error("on purpose");
}

Compressed needy(const Task&, const Params&) {
  throw Infeasible("needs a byte more", 1);
}

class CacheResumeTest : public CachesTest {
 protected:
  static constexpr int kSeeds = 3;
  static constexpr int kJobs = 8 * kSeeds;

  // Two prompts of two layers of two KV heads, under a method that may stop the run.
  Plan planned(const ReplayOptions& options) {
    method_.info.name = "stopping";
    method_.compress = stopping;
    return plan_of_seeds(options, method_, kSeeds);
  }

  // Runs until the method was called so often; -1: to the end.
  RunResult go(const ReplayOptions& o, int calls = -1) { return run_until(planned(o), calls); }

  ReplayOptions resumed(ReplayOptions o) const {
    o.resume = true;
    o.overwrite = false;
    return o;
  }

  void expect_whole(const ReplayOptions& o, const std::string& what) {
    EXPECT_EQ(untimed(o.out), untimed(at("whole.csv"))) << what;
    EXPECT_TRUE(contents(o.export_caches, planned(o)) == contents(at("whole.h5"), planned(o)))
        << what;
    EXPECT_FALSE(fs::exists(log_path(o.out))) << what;
    EXPECT_FALSE(fs::exists(o.export_caches + ".tmp")) << what;
    EXPECT_FALSE(fs::exists(o.export_caches + ".lock")) << what;
  }

  Method method_;
};

TEST_F(CacheResumeTest, RowsWhoseCachesAreGoneAreMadeAgain) {
  go(options("whole.csv", "whole.h5"));
  const ReplayOptions o = options();
  go(o);
  fs::remove(o.export_caches);
  go(resumed(o));
  EXPECT_EQ(calls_made, kJobs);
  expect_whole(o, "the file gone");
  // And caches whose rows are gone.
  fs::remove(o.out);
  go(resumed(o));
  EXPECT_EQ(calls_made, kJobs);
  expect_whole(o, "rows gone");
}

TEST_F(CacheResumeTest, VerifyNamesCachesThatWereMadeAgain) {
  ReplayOptions o = options();
  o.algorithms = {"uniform"};
  run(o);
  const ReplayOptions again = evaluation("again.csv", {"c.h5"});
  run(again);
  EXPECT_EQ(verify_sample(again.out, 1, 1, 1, kGoOn).different, 0);
  o.seeds = "1";
  o.overwrite = true;
  run(o);
  expect_refusal([&] { verify_sample(again.out, 1, 1, 1, kGoOn); },
                 "the configuration, with " + o.export_caches + " as now, gives another plan");
}

TEST_F(CacheResumeTest, ACompleteRunIsLeftAsItIs) {
  const ReplayOptions o = options();
  go(o);
  const std::string file = read_bytes(o.export_caches);
  const auto time = fs::last_write_time(o.export_caches);
  go(resumed(o));
  EXPECT_EQ(calls_made, 0);
  EXPECT_TRUE(read_bytes(o.export_caches) == file);
  EXPECT_EQ(fs::last_write_time(o.export_caches), time);
  EXPECT_FALSE(fs::exists(log_path(o.out)));
}

TEST_F(CacheResumeTest, ARunThatFirstExportedNothing) {
  go(options("whole.csv", "whole.h5"));
  go(options("out.csv", ""), 5);
  ReplayOptions o = resumed(options());
  go(o);
  EXPECT_EQ(calls_made, kJobs);
  expect_whole(o, "first without");
}

TEST_F(CacheResumeTest, OverwriteStartsAnew) {
  go(options("whole.csv", "whole.h5"));
  ReplayOptions other = options("other.csv");
  other.sink = 3;
  go(other);
  ReplayOptions o = options();
  expect_refusal([&] { go(o); }, "c.h5: exists, expected --resume");
  o.overwrite = true;
  go(o);
  expect_whole(o, "over another run's");
  go(o, 7);  // stopped
  EXPECT_FALSE(fs::exists(o.export_caches)) << "it would pass for this run's";
  go(resumed(o));
  EXPECT_EQ(calls_made, kJobs - 7);
  expect_whole(o, "over its own");
}

TEST_F(CacheResumeTest, AnotherRunsFileIsRefused) {
  ReplayOptions other = options("other.csv");
  other.sink = 3;
  go(other);
  const std::string file = read_bytes(other.export_caches);
  ReplayOptions o = resumed(options());
  for (const bool started : {false, true}) {
    if (started) {
      go(options("out.csv", ""), 5);
    }
    const std::string rows = started ? read_bytes(o.out) : "";
    expect_refusal([&] { go(o); }, "c.h5: is of another run");
    EXPECT_TRUE(read_bytes(o.export_caches) == file);
    EXPECT_EQ(fs::exists(o.out), started) << "nothing is begun where a run is refused";
    EXPECT_EQ(started ? read_bytes(o.out) : "", rows);
  }
  // A shard of the same plan is another run, too.
  fs::remove(o.export_caches);
  ReplayOptions shard = options("shard.csv");
  shard.shard_index = 1;
  shard.shard_count = 2;
  go(shard);
  expect_refusal([&] { go(o); }, "another run");
}

TEST_F(CacheResumeTest, TwoRunsDoNotWriteOneFile) {
  const ReplayOptions first = options();
  const FileLock lock(first.export_caches);
  expect_refusal([&] { go(options("second.csv")); }, "another run is writing");
  EXPECT_FALSE(fs::exists(log_path(at("second.csv"))));
}

TEST_F(CacheResumeTest, PromptsOfOneNameInTwoTracesAreRefused) {
  ReplayOptions o = options();
  o.traces.push_back(make_trace(folder_ / "u.h5", {.tokens = {40}}));  // p0 again
  expect_refusal([&] { make_plan(o); }, "--export-caches", "t.h5", "u.h5", "prompt p0");
  o.prompts = {"p1"};  // which one trace has
  EXPECT_NO_THROW(make_plan(o));
}

// What failed or could not be is a row again.
TEST_F(CacheResumeTest, FailedAndInfeasibleJobs) {
  Method fails;
  fails.info.name = "fails";
  fails.compress = failing;
  Method needs;
  needs.info.name = "needs";
  needs.compress = needy;
  const auto plan_of = [&](const ReplayOptions& o) {
    Plan plan = planned(o);
    plan.variants.push_back({&fails, Params("fails", {}, {})});
    plan.variants.push_back({&needs, Params("needs", {}, {})});
    plan.entries.push_back({1, 0.25, 0});
    plan.entries.push_back({2, 0.25, 0});
    return plan;
  };
  const ReplayOptions o = options();
  const RunResult was = run_until(plan_of(o));
  EXPECT_EQ(was.failed, 16);
  EXPECT_EQ(was.infeasible, 16);
  run_until(plan_of(resumed(o)));
  EXPECT_EQ(calls_made, 0);
  const ReplayOptions e = evaluation("again.csv", {"c.h5"});
  const RunResult is = run(e);
  EXPECT_EQ(is.failed, 16);
  EXPECT_EQ(is.infeasible, 16);
  const std::vector<Fields> before = untimed(o.out);
  const std::vector<Fields> after = untimed(e.out);
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < after.size(); ++i) {
    const std::string& status = after[i][column_index("status")];
    EXPECT_EQ(main_table().key(after[i]), main_table().key(before[i]));
    if (before[i][column_index("status")] == "failed: on purpose") {
      EXPECT_EQ(status, "failed: the caches of fails hold nothing for this head");
    } else {
      EXPECT_EQ(status, before[i][column_index("status")]);
    }
  }
}

}  // namespace
}  // namespace kvbench::test_cache_resume
