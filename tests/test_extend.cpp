// A table that was extended is the table of one run with everything; what was there is kept.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "option_changes.hpp"
#include "replay_run.hpp"
#include "report/manifest.hpp"
#include "report/table_spec.hpp"

namespace kvbench::test_extend {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;
using testing_rows::read_without_run;

class ExtendTest : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    trace_ = make_trace(trace_, small_shape(12));
    whole_ = options("whole.csv");
    whole_.kept = true;
    whole_.per_query = PerQuery::bins;
    whole_.threads = 2;
    run(whole_);
  }

  ReplayOptions part(const Change& change) const {
    ReplayOptions o = whole_;
    o.out = (folder_ / "part.csv").string();
    o.overwrite = true;
    change(o);
    return o;
  }

  ReplayOptions extended() const {
    ReplayOptions o = whole_;
    o.out = (folder_ / "part.csv").string();
    o.resume = o.extend = true;
    return o;
  }

  /// part.csv and all beside it are what whole.csv has, but for times.
  void expect_whole(const std::string& what) const {
    const std::string got = (folder_ / "part.csv").string();
    expect_same(untimed(got), untimed(whole_.out), what);
    EXPECT_EQ(read_table(got).rows.back()[main_table().run_at()], read_manifest(got).run_id)
        << what;
    for (const TableSpec* side : {&kept_table(), &queries_table(), &layers_table()}) {
      EXPECT_EQ(read_bytes(side->path(got)), read_bytes(side->path(whole_.out)))
          << what << " " << side->name();
    }
    const Manifest a = read_manifest(got);
    const Manifest b = read_manifest(whole_.out);
    EXPECT_EQ(a.plan->hash, b.plan->hash) << what;
    EXPECT_EQ(a.configuration, b.configuration) << what;
    EXPECT_EQ(a.sha256->at("kept"), b.sha256->at("kept")) << what;
    EXPECT_FALSE(fs::exists(layers_table().path(got).string() + ".part")) << what;
  }

  ReplayOptions whole_;
};

const std::vector<std::pair<std::string, Change>> kParts{
    {"algorithms",
     [](auto& o) {
       o.algorithms = {"local", "balancekv:T=2;block=8"};
     }},
    {"budgets", set(&ReplayOptions::budgets, {0.1})},
    {"seeds", set(&ReplayOptions::seeds, "1:2")},
    {"layers", set(&ReplayOptions::layers, {2})},
    {"heads", set(&ReplayOptions::heads, {0, 2, 3})},
    {"prompts", set(&ReplayOptions::prompts, {"p1"})},
    {"all of them",
     [](auto& o) {
       o.algorithms = {"uniform"};
       o.budgets = {0.5};
       o.seeds = "1";
       o.layers = {0};
       o.heads = {1};
       o.prompts = {"p0"};
     }},
    {"nothing", [](auto&) {}},
};

TEST_F(ExtendTest, WhatIsMissingIsAddedAndTheRestKept) {
  for (const auto& [what, change] : kParts) {
    run(part(change));
    const Table before = read_without_run(folder_ / "part.csv");
    const RunResult result = run(extended());
    expect_whole(what);
    // The rows that were there, timings included; a job is done again where heads are added.
    const Table after = read_without_run(folder_ / "part.csv");
    const std::set<Fields> there(after.rows.begin(), after.rows.end());
    if (what != "heads" && what != "all of them") {
      EXPECT_EQ(result.resumed, std::ssize(before.rows)) << what;
      for (const Fields& row : before.rows) {
        EXPECT_TRUE(there.contains(row)) << what;
      }
    }
    EXPECT_EQ(read_manifest(folder_ / "part.csv").rows_resumed, result.resumed);
  }
}

TEST_F(ExtendTest, AStreamIsExtendedWithItsSteps) {
  ReplayOptions o = options("stream.csv");
  o.protocol = Protocol::stream;
  o.algorithms = {"h2o", "uniform"};
  o.budgets = {0.6};
  o.recent = 8;
  o.eval_every = 16;
  run(o);
  ReplayOptions less = o;
  less.out = (folder_ / "less.csv").string();
  less.algorithms = {"uniform"};
  less.seeds = "1";
  run(less);
  ReplayOptions more = o;
  more.out = less.out;
  more.resume = more.extend = true;
  EXPECT_GT(run(more).resumed, 0);
  expect_same(untimed(more.out), untimed(o.out));
  EXPECT_EQ(read_bytes(steps_table().path(more.out)), read_bytes(steps_table().path(o.out)));
}

// The earlier run is the log's if there is one: of a run that was killed, or of an extension of it.
TEST_F(ExtendTest, GoesOnWhereARunWasKilled) {
  for (const double share : {0.0, 0.4, 1.0}) {
    kill_after(part(set(&ReplayOptions::seeds, "1")), share);
    run(extended());
    expect_whole("killed at " + std::to_string(share));
    run(part(set(&ReplayOptions::seeds, "1")));
    kill_after(extended(), share);
    ReplayOptions o = extended();
    o.extend = share == 0.4;  // the log is of the whole plan
    run(o);
    expect_whole("extension killed at " + std::to_string(share));
  }
}

TEST_F(ExtendTest, IsRefusedWhereRowsWouldBeLostOrOthers) {
  run(part([](auto& o) {
    o.algorithms.emplace_back("pyramidkv");
    o.layers = {0};
  }));
  const fs::path out = folder_ / "part.csv";
  const std::string text = read_bytes(out);
  const std::string manifest = read_bytes(manifest_path(out));
  const std::vector<std::pair<std::string, Change>> wrong{
      {"--sink: got 5, expected 4", set(&ReplayOptions::sink, 5)},
      {"--seeds: got 0:1, expected 0:2", set(&ReplayOptions::seeds, "1")},
      {"--budget: got 0.5, expected 0.5,0.1,0.0", set(&ReplayOptions::budgets, {0.5})},
      {"--prompts: got p0, expected all", set(&ReplayOptions::prompts, {"p0"})},
      {"--layers: got 2, expected 0", set(&ReplayOptions::layers, {2})},
      {"--kept: got false, expected true", set(&ReplayOptions::kept, false)},
      {"--algorithm: missing pyramidkv:", [](auto& o) { o.algorithms.pop_back(); }},
      {"shares a budget among all replayed layers",
       set(&ReplayOptions::layers, {0, 2})},  // shares over the layers
      {"expected no --shard", shard(1, 2)},
      {"--extend and --overwrite exclude each other", set(&ReplayOptions::overwrite, true)},
  };
  for (const auto& [what, change] : wrong) {
    ReplayOptions o = extended();
    o.algorithms.emplace_back("pyramidkv");
    o.layers = {0};
    change(o);
    expect_refusal([&] { run(o); }, what);
    EXPECT_EQ(read_bytes(out), text) << what;
    EXPECT_EQ(read_bytes(manifest_path(out)), manifest) << what;
  }
}

TEST_F(ExtendTest, ResumeNamesWhatDiffersAndSaysWhereExtendHelps) {
  run(part(set(&ReplayOptions::seeds, "1")));
  ReplayOptions o = extended();
  o.extend = false;
  expect_refusal([&] { run(o); }, "--seeds: got 0:2, expected 0:1; --extend adds missing rows (");
  o.sink = 5;
  const std::string both = refusal([&] { run(o); });
  EXPECT_NE(both.find("--sink: got 5, expected 4"), std::string::npos) << both;
  EXPECT_EQ(both.find("--extend"), std::string::npos) << both;
  o = extended();
  o.extend = false;
  o.seeds = "1";
  o.algorithms.emplace_back("knorm");
  expect_refusal([&] { run(o); }, "--algorithm: got knorm:");
}

TEST_F(ExtendTest, OtherContentsOfATraceAreRefused) {
  run(part(set(&ReplayOptions::seeds, "1")));
  const std::string text = read_bytes(folder_ / "part.csv");
  TraceShape other = small_shape(12);
  other.seed = 2;
  make_trace(trace_, other);
  expect_refusal([&] { run(extended()); }, "the contents of the traces differ");
  EXPECT_EQ(read_bytes(folder_ / "part.csv"), text);
}

}  // namespace
}  // namespace kvbench::test_extend
