// OUT.layers.csv through interruption, kills, resuming, overwriting, shards and merging: always the
// file of an undisturbed run.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "forged.hpp"
#include "replay_run.hpp"
#include "report/manifest.hpp"
#include "report/merge.hpp"
#include "report/run_files.hpp"
#include "report/table_spec.hpp"
#include "stopping_method.hpp"
#include "trace_files.hpp"

namespace kvbench::test_layer_runs {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;
using testing_traces::alter;

class LayerRunsTest : public testing_replay::ReplayTest {
 protected:
  void SetUp() override {
    ReplayTest::SetUp();
    trace_ = make_trace(folder_ / "w.h5", shape());
    stopping_.info.name = "stopping";
    stopping_.compress = stopping;
    unfit_.info.name = "unfit";
    unfit_.compress = unfit;
  }

  static TraceShape shape(std::uint64_t seed = 1) {
    const TraceShape out{
        .tokens = {40, 33}, .layers = {0, 2}, .seed = seed, .hidden = 5, .residual_norm = true};
    return out;
  }

  ReplayOptions options(const std::string& out) const {
    ReplayOptions o = basic(out);
    o.algorithms = {"exact"};
    o.sink = 2;
    o.recent = 8;
    o.queries = 5;
    return o;
  }

  // 8 units of 3 entries: 24 jobs, 20 calls of `stopping`.
  Plan planned(const ReplayOptions& o) const {
    Plan plan = make_plan(o);
    plan.variants = {{&stopping_, Params("stopping", {}, {})}, {&unfit_, Params("unfit", {}, {})}};
    plan.entries = {{0, std::nullopt, 0}, {1, std::nullopt, 0}, {0, std::nullopt, 1}};
    return plan;
  }
  RunResult go(const ReplayOptions& o, int stop_after = -1) const {
    return run_until(planned(o), stop_after);
  }

  static fs::path layers_of(const ReplayOptions& o) { return layers_table().path(o.out); }
  static fs::path part_of(const ReplayOptions& o) { return layers_of(o).string() + ".part"; }

  void expect_whole(const ReplayOptions& got, const ReplayOptions& whole,
                    const std::string& what) const {
    EXPECT_EQ(untimed(got.out), untimed(whole.out)) << what;
    EXPECT_EQ(read_bytes(layers_of(got)), read_bytes(layers_of(whole))) << what;
    EXPECT_FALSE(fs::exists(part_of(got))) << what;
  }

  Method stopping_;
  Method unfit_;
};

// What a kill leaves: each file up to some byte. Records may be there without the journal's part,
// parts without records, lines without either.
TEST_F(LayerRunsTest, FilesCutAnywhereAreCompleted) {
  const ReplayOptions whole = options("whole.csv");
  go(whole);
  std::mt19937_64 random(3);
  ReplayOptions o = options("cut.csv");
  for (int round = 0; round < 40; ++round) {
    o.resume = false;
    o.overwrite = true;
    go(o, static_cast<int>(1 + random() % 19));
    for (const fs::path& file : {log_path(o.out), part_of(o)}) {
      const std::string text = read_bytes(file);
      const std::uint64_t how = random() % 4;
      if (how == 0) {
        write_bytes(file, text.substr(0, random() % (text.size() + 1)));
      } else if (how == 1 && file == part_of(o)) {
        fs::remove(file);
      }
    }
    for (const fs::path& table : {fs::path(o.out), layers_of(o), manifest_path(o.out)}) {
      fs::remove(table);
    }
    o.resume = true;
    o.overwrite = false;
    go(o);
    expect_whole(o, whole, "round " + std::to_string(round));
  }
  go(o);
  EXPECT_EQ(calls_made, 0);
  expect_whole(o, whole, "nothing lost");
}

TEST_F(LayerRunsTest, AJournalOfAnotherTraceIsNotUsed) {
  ReplayOptions o = options("out.csv");
  go(o, 3);
  const std::string part = read_bytes(part_of(o));
  make_trace(trace_, shape(99));
  const ReplayOptions whole = options("whole.csv");
  go(whole);
  // As a run leaves it that was killed before its first record.
  for (const fs::path& made : {manifest_path(o.out), layers_of(o), fs::path(o.out)}) {
    fs::remove(made);
  }
  write_bytes(log_path(o.out), "");
  write_bytes(part_of(o), part);
  o.resume = true;
  go(o);
  expect_whole(o, whole, "another trace");
}

TEST_F(LayerRunsTest, ShardsHoldWholeLayersAndMergeToTheUndividedFile) {
  // One layer of four has no projection and may be cut; the others may not.
  alter(trace_, "/prompts/p0/layers/2", [](hid_t layer) {
    EXPECT_GE(H5Ldelete(layer, "o_proj", H5P_DEFAULT), 0);
    EXPECT_GE(H5Adelete(layer, "members"), 0);
  });
  const ReplayOptions whole = options("whole.csv");
  go(whole);
  EXPECT_EQ(read_table(layers_of(whole)).rows.size(), 3U * 2U);
  for (const Index count : {2, 3, 5, 11}) {
    MergeOptions merge;
    merge.output = folder_ / ("merged" + std::to_string(count) + ".csv");
    Index end = 0;
    for (Index i = 1; i <= count; ++i) {
      ReplayOptions o = options("s" + std::to_string(count) + "_" + std::to_string(i) + ".csv");
      o.shard_index = i;
      o.shard_count = count;
      const Plan plan = planned(o);
      const Range jobs = plan.shard_jobs();
      EXPECT_EQ(jobs.begin, end);
      EXPECT_GE(jobs.end, jobs.begin);
      end = jobs.end;
      EXPECT_TRUE(end % 6 == 0 || (end > 6 && end < 12)) << end;
      go(o, static_cast<int>(i));  // interrupted, where it is long enough
      o.resume = true;
      go(o);
      EXPECT_FALSE(fs::exists(part_of(o)));
      merge.inputs.emplace_back(o.out);
    }
    EXPECT_EQ(end, 24);
    merge_runs(merge);
    EXPECT_EQ(untimed(merge.output), untimed(whole.out));
    EXPECT_EQ(read_bytes(layers_table().path(merge.output)), read_bytes(layers_of(whole)));
  }
}

// A line of no row, in a file whose sums are right. Other changes: test_table_damage.cpp.
TEST_F(LayerRunsTest, MergeRefusesATableThatDoesNotGoWithItsRows) {
  MergeOptions merge;
  merge.output = folder_ / "merged.csv";
  for (Index i = 1; i <= 2; ++i) {
    ReplayOptions o = options("s" + std::to_string(i) + ".csv");
    o.shard_index = i;
    o.shard_count = 2;
    go(o);
    merge.inputs.emplace_back(o.out);
  }
  const fs::path table = layers_table().path(merge.inputs[1]);
  const std::string text = read_bytes(table);
  write_bytes(table, text + text.substr(text.rfind('\n', text.size() - 2) + 1));
  sign(merge.inputs[1], layers_table());
  expect_refusal([&] { merge_runs(merge); }, "has this line");
  EXPECT_FALSE(fs::exists(merge.output));
  EXPECT_FALSE(fs::exists(layers_table().path(merge.output)));
}

TEST_F(LayerRunsTest, ValuesAreCheckedBeforeTheFirstRow) {
  alter(trace_, "/prompts/p1/layers/2/residual_norm", [](hid_t data) {
    std::vector<float> norms(33, 1.0F);
    norms[7] = -1.0F;
    EXPECT_GE(H5Dwrite(data, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, norms.data()), 0);
  });
  ReplayOptions o = options("out.csv");
  expect_refusal([&] { go(o); }, "residual_norm");
  EXPECT_FALSE(fs::exists(o.out));
}

}  // namespace
}  // namespace kvbench::test_layer_runs
