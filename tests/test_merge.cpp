#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "core/error.hpp"
#include "core/file_lock.hpp"
#include "core/sha256.hpp"
#include "files.hpp"
#include "refusal.hpp"
#include "report/job_log.hpp"
#include "report/manifest.hpp"
#include "report/merge.hpp"
#include "report/run_files.hpp"
#include "report/run_tables.hpp"
#include "report_rows.hpp"

namespace kvbench::test_merge {
namespace {

namespace fs = std::filesystem;
using testing_rows::make_row;
using testing_rows::test_folder;

constexpr Index plan_rows = 24;
constexpr const char* kRun = "0123456789abcdef";

/// The undivided file's rows; timing differs from run to run.
std::vector<Fields> whole_plan(double timing) {
  std::vector<Fields> rows;
  for (Index i = 0; i < plan_rows; ++i) {
    Row row = make_row("uniform", "T=1", i / 8, i % 8, 0, 0.01 * static_cast<double>(i));
    row.run_id = kRun;
    row.compress_ms = timing;
    row.status = i == 5 ? "failed: on purpose" : "ok";
    rows.push_back(to_fields(row));
  }
  return rows;
}

struct ShardFile {
  fs::path path;
  Manifest manifest;
  std::vector<Fields> rows;

  void write() const {
    testing_rows::write_table(path, schema_header(), rows);
    Manifest m = manifest;
    m.sha256 = sha256_of_files({{main_table().name(), path}});
    write_manifest(path, m);
  }
};

/// Jobs of four rows, divided into `count` shards.
std::vector<ShardFile> make_shards(const fs::path& folder, Index count) {
  const std::vector<Fields> all = whole_plan(1.0);
  std::vector<ShardFile> shards;
  for (Index s = 1; s <= count; ++s) {
    ShardFile shard;
    shard.path = folder / ("shard" + std::to_string(s) + ".csv");
    shard.manifest = begin_manifest("kvbench replay", {{"seeds", 1}, {"shard", "1/3"}});
    shard.manifest.traces = {{"t.h5", "abc", 10}};
    shard.manifest.run_id = kRun;
    shard.manifest.shard = Shard{s, count};
    shard.manifest.plan = PlanInfo{"hash", plan_rows, {}, {{0.5, 0.75}}};
    const Range own{4 * (plan_rows / 4 * (s - 1) / count), 4 * (plan_rows / 4 * s / count)};
    shard.manifest.plan->row_ranges = {own};
    shard.rows.assign(all.begin() + own.begin, all.begin() + own.end);
    end_manifest(shard.manifest, static_cast<Index>(shard.rows.size()), 0, 1.0);
    shards.push_back(shard);
  }
  return shards;
}

MergeOptions options_for(const fs::path& folder, const std::vector<ShardFile>& shards) {
  MergeOptions options;
  options.output = folder / "out.csv";
  for (const ShardFile& s : shards) {
    s.write();
    options.inputs.push_back(s.path);
  }
  return options;
}

/// A merge after `damage` is refused by a line that says `part`; nothing may have been written.
void expect_refused(const std::string& part, const auto& damage) {
  const fs::path folder = test_folder();
  std::vector<ShardFile> shards = make_shards(folder, 3);
  damage(shards);
  const MergeOptions options = options_for(folder, shards);
  testing_replay::expect_refusal([&] { merge_runs(options); }, part);
  EXPECT_FALSE(fs::exists(options.output));
}

TEST(Merge, GivesTheUndividedFileButForTiming) {
  const fs::path folder = test_folder();
  for (const Index count : {1, 2, 3, 6, 8}) {  // 8: two shards hold nothing
    MergeOptions options = options_for(folder, make_shards(folder, count));
    std::mt19937 random(static_cast<unsigned>(count));
    std::shuffle(options.inputs.begin(), options.inputs.end(), random);
    options.overwrite = true;
    const MergeResult result = merge_runs(options);
    EXPECT_EQ(result.rows, plan_rows);
    EXPECT_EQ(result.failures, 1);
    const Table table = read_table(options.output);
    EXPECT_EQ(table.header, schema_header());
    const std::vector<Fields> undivided = whole_plan(2.0);
    ASSERT_EQ(table.rows.size(), undivided.size());
    for (std::size_t r = 0; r < undivided.size(); ++r) {
      for (std::size_t c = 0; c < undivided[r].size(); ++c) {
        EXPECT_TRUE(columns()[c].timing || table.rows[r][c] == undivided[r][c])
            << "row " << r << " column " << columns()[c].name;
      }
    }
    const Manifest m = read_manifest(options.output);
    ASSERT_TRUE(m.plan && !m.shard && m.end);
    EXPECT_EQ(m.plan->hash, "hash");
    EXPECT_EQ(m.plan->row_ranges, (std::vector<Range>{{0, plan_rows}}));
    EXPECT_EQ(m.plan->budgets_of_cache, (std::vector<std::pair<double, double>>{{0.5, 0.75}}));
    EXPECT_EQ(m.rows, plan_rows);
    EXPECT_EQ(m.failures, 1);
    EXPECT_EQ(m.inputs.size(), static_cast<std::size_t>(count));
    EXPECT_FALSE(m.configuration.contains("shard"));
    EXPECT_EQ(m.wall_s, static_cast<double>(count));
  }
}

TEST(Merge, RefusesWhatDoesNotFit) {
  expect_refused("plan `other` differs from `hash`",
                 [](auto& s) { s[1].manifest.plan->hash = "other"; });
  expect_refused("trace hash `def` differs from `abc`",
                 [](auto& s) { s[1].manifest.traces[0].sha256 = "def"; });
  expect_refused("shard count `4`", [](auto& s) { s[2].manifest.shard->count = 4; });
  expect_refused("got shard 9/3, expected", [](auto& s) { s[2].manifest.shard->index = 9; });
  expect_refused("shard 3/3 is missing", [](auto& s) { s.pop_back(); });
  expect_refused("duplicate shard 1/3, also in ", [](auto& s) { s[1].manifest.shard->index = 1; });
  expect_refused("overlap", [](auto& s) { s[1].manifest.plan->row_ranges[0] = {0, 8}; });
  expect_refused("2 row ranges, expected one", [](auto& s) {
    s[1].manifest.plan->row_ranges.push_back({20, 24});
  });
  expect_refused("7 rows, expected 8 as in", [](auto& s) { s[1].rows.pop_back(); });
  expect_refused("more rows than the 8 of the manifest",
                 [](auto& s) { s[1].rows.push_back(s[1].rows[0]); });
  expect_refused("the run has not ended", [](auto& s) { s[1].manifest.end.reset(); });
  expect_refused("has no plan", [](auto& s) { s[1].manifest.plan.reset(); });
  expect_refused("has no shard", [](auto& s) { s[1].manifest.shard.reset(); });
  expect_refused("shard2.csv: the manifest's configuration: ",
                 [](auto& s) { s[1].manifest.configuration["kept"] = "yes"; });
  expect_refused("schema 0.9", [](auto& s) { s[1].manifest.schema = "0.9"; });
  expect_refused("outside the plan", [](auto& s) { s[1].manifest.plan->row_ranges[0] = {-4, 0}; });
  expect_refused("no shard contains row 24 of the plan", [](auto& s) {
    for (auto& shard : s) {
      shard.manifest.plan->rows += 1;
    }
  });
}

// --resume would go on with the log in place of the merged table.
TEST(Merge, OverwriteReplacesALogToo) {
  const fs::path folder = test_folder();
  const std::vector<ShardFile> shards = make_shards(folder, 2);
  MergeOptions options = options_for(folder, shards);
  const fs::path log = log_path(options.output);
  const JobLog earlier(log, shards[0].manifest, false);
  testing_replay::expect_refusal([&] { merge_runs(options); }, "out.csv.log: the file exists");
  options.overwrite = true;
  EXPECT_EQ(merge_runs(options).rows, plan_rows);
  EXPECT_FALSE(fs::exists(log));
}

// Outputs that exist or are inputs: tests/cli/shards.sh, outputs.sh.
TEST(Merge, ARunningInputAndOneWithoutManifestAreRefused) {
  const fs::path folder = test_folder();
  const MergeOptions options = options_for(folder, make_shards(folder, 2));
  {
    const FileLock lock(options.inputs[1]);
    EXPECT_THROW(merge_runs(options), InputError);  // still being written
  }
  fs::remove(manifest_path(options.inputs[1]));
  EXPECT_THROW(merge_runs(options), InputError);
  EXPECT_FALSE(fs::exists(options.output));
}

// Logs of two shards.
class MergeLogs : public ::testing::Test {
 protected:
  static fs::path write_log(const ShardFile& shard, const std::vector<Index>& jobs) {
    const std::vector<Fields> whole = whole_plan(1.0);
    const fs::path path = log_path(shard.path);
    JobLog log(path, shard.manifest, false);
    for (const Index job : jobs) {
      JobRecord record;
      record.place = 4 * job;
      for (Index i = 4 * job; i < 4 * (job + 1); ++i) {
        record.count("ok");
        record.lines[main_table().name()] += csv_line(whole[static_cast<std::size_t>(i)]);
      }
      log.append(record);
    }
    return path;
  }

  std::vector<Fields> merged(const std::vector<fs::path>& inputs, bool salvage = false) {
    MergeOptions options;
    options.inputs = inputs;
    options.output = folder_ / "now.csv";
    options.overwrite = true;
    options.salvage = salvage;
    rows_ = merge_runs(options).rows;
    return read_table(options.output).rows;
  }

  fs::path folder_ = test_folder();
  std::vector<ShardFile> shards_ = make_shards(folder_, 2);
  Index rows_ = 0;
};

TEST_F(MergeLogs, GiveTheRowsThatThereAre) {
  const std::vector<Fields> whole = whole_plan(1.0);
  const std::vector<fs::path> logs{write_log(shards_[0], {0, 2, 4}), write_log(shards_[1], {1})};
  std::vector<Fields> expected(whole.begin(), whole.begin() + 12);
  expected.insert(expected.end(), whole.begin() + 16, whole.begin() + 20);
  EXPECT_EQ(merged(logs), expected);
  EXPECT_EQ(rows_, 16);
  const Manifest m = read_manifest(folder_ / "now.csv");
  EXPECT_FALSE(m.sha256);
  EXPECT_EQ(m.rows, 16);
  EXPECT_EQ(merged({logs[0]}).size(), 12U);
  // A finished shard and the log of the other.
  shards_[0].write();
  fs::remove(logs[0]);
  fs::remove(logs[1]);
  EXPECT_EQ(merged({write_log(shards_[1], {4}), shards_[0].path}), expected);
}

TEST_F(MergeLogs, WholeLogsGiveAnEndedRun) {
  std::vector<fs::path> logs;
  for (ShardFile& shard : shards_) {
    shard.manifest.end.reset();
    const Index first = std::ssize(logs);
    logs.push_back(write_log(shard, {first, first + 2, first + 4}));
    JobLog(logs.back(), shard.manifest, true).append_end();
  }
  EXPECT_EQ(merged(logs), whole_plan(1.0));
  const Manifest m = read_manifest(folder_ / "now.csv");
  EXPECT_TRUE(m.end);
  EXPECT_TRUE(m.sha256);
  EXPECT_TRUE(open_tables(folder_ / "now.csv")->whole());
  for (std::size_t i = 0; i < logs.size(); ++i) {
    EXPECT_EQ(m.inputs[i]["sha256"], sha256_file(logs[i]));
  }
}

TEST_F(MergeLogs, ATornEndIsNoRecordAndDamageBeforeItIsRefused) {
  const fs::path log = write_log(shards_[0], {0, 2, 4});
  const std::string text = testing_replay::read_bytes(log);
  const std::size_t size = merged({log}).size();
  testing_replay::write_bytes(log, text.substr(0, text.size() - 5));
  EXPECT_EQ(merged({log}).size(), size - 4);
  for (const std::size_t at : {text.size() / 2, text.find("uniform")}) {
    std::string damaged = text;
    damaged[at] ^= 0x10;
    testing_replay::write_bytes(log, damaged);
    testing_replay::expect_refusal([&] { merged({log}); }, "record ");
    EXPECT_EQ(merged({log}, true).size(), size - 4);
  }
}

}  // namespace
}  // namespace kvbench::test_merge
