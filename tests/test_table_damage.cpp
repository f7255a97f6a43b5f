// Whatever happens to a table after it was written, no reader takes the damage for results.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "damage.hpp"
#include "files.hpp"
#include "forged.hpp"
#include "replay/result_store.hpp"
#include "replay/verify.hpp"
#include "replay_run.hpp"
#include "report/merge.hpp"
#include "report/run_files.hpp"
#include "report/run_tables.hpp"
#include "report/summary.hpp"
#include "report_rows.hpp"

namespace kvbench::test_table_damage {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;

TEST(RunColumns, AreBeforeModelOrLast) {
  for (const TableSpec* table :
       {&main_table(), &steps_table(), &kept_table(), &queries_table(), &layers_table()}) {
    const Fields& header = table->header();
    const std::size_t at = table->run_at();
    EXPECT_EQ(header[at], "run_id");
    EXPECT_EQ(header[at + 1], "row_crc");
    EXPECT_TRUE(at + 2 == header.size() || header[at + 2] == "model");
    EXPECT_NO_THROW(check_header(header, *table, "f.csv"));
    const Fields earlier(header.begin(), header.begin() + static_cast<std::ptrdiff_t>(at) + 2);
    EXPECT_NO_THROW(check_header(earlier, *table, "f.csv", true));
    const Fields none(header.begin(), header.begin() + static_cast<std::ptrdiff_t>(at));
    EXPECT_THROW(check_header(none, *table, "f.csv", true), InputError);
    Fields later = header;
    later.push_back("new");
    EXPECT_NO_THROW(check_header(later, *table, "f.csv", true));
    EXPECT_THROW(check_header(later, *table, "f.csv"), InputError);
    Fields moved = header;
    std::swap(moved[at], moved[at + 1]);
    EXPECT_THROW(check_header(moved, *table, "f.csv", true), InputError);
  }
}

Table read_result_table(const fs::path& csv) {
  return whole_table(*open_result_table(csv));
}

Table read_side_table(const fs::path& path, const TableSpec& side) {
  return whole_table(*open_side_table(path, side));
}

class TableDamage : public ReplayTest {
 protected:
  void SetUp() override {
    ReplayTest::SetUp();
    trace_ = make_trace(trace_, small_shape(5));
  }

  ReplayOptions options(const std::string& out) const {
    ReplayOptions o = basic(out);
    o.algorithms = {"exact", "uniform", "h2o"};
    o.budgets = {0.5, 0.0};  // 0: infeasible rows, of which reasons have commas
    o.seeds = "2";
    o.kept = true;
    o.per_query = PerQuery::bins;
    return o;
  }

  ReplayOptions shard(Index i) const {
    ReplayOptions o = options("p" + std::to_string(i) + ".csv");
    o.layers = {0};
    o.shard_index = i;
    o.shard_count = 2;
    return o;
  }

  std::map<fs::path, std::string> files() const {
    std::map<fs::path, std::string> out;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().extension() != ".h5") {
        out[entry.path()] = read_bytes(entry.path());
      }
    }
    return out;
  }

  void merge() const {
    MergeOptions o;
    o.inputs = {folder_ / "p1.csv", folder_ / "p2.csv"};
    o.output = folder_ / "merged.csv";
    merge_runs(o);
  }

  // Changes a cell and writes the table with its SHA-256.
  static void forge(const fs::path& csv, const std::string& column, std::size_t row,
                    const std::string& cell) {
    Table table = read_table(csv);
    table.rows[row][table.column(column)] = cell;
    testing_rows::write_table(csv, table.header, table.rows);
    sign(csv, main_table());
  }
};

// KVBENCH_DAMAGES sets how many.
TEST_F(TableDamage, NoReaderTakesItForResults) {
  run(shard(1));
  run(shard(2));
  EXPECT_NO_THROW(merge());
  for (const Output& made : run_files(folder_ / "merged.csv")) {
    fs::remove(made.path);
  }
  ReplayOptions resumed = shard(1);
  resumed.resume = true;
  const Plan plan = make_plan(resumed);
  const fs::path csv = resumed.out;
  const Manifest manifest = read_manifest(csv);
  const std::vector<std::pair<const TableSpec*, fs::path>> tables = {
      {&main_table(), csv},
      {&kept_table(), kept_table().path(csv)},
      {&queries_table(), queries_table().path(csv)},
      {&layers_table(), layers_table().path(csv)}};
  const std::map<fs::path, std::string> before = files();

  const std::uint64_t count = number_of("KVBENCH_DAMAGES", 1000);
  std::uint64_t done = 0;
  for (std::uint64_t seed = 0; done < count; ++seed) {
    Random random(seed);
    const auto& [side, path] = one_of(random, tables);
    std::string text = before.at(path);
    damage_bytes(random, text);
    if (text == before.at(path)) {
      continue;
    }
    ++done;
    const std::string what = fmt::format("damage {} of {}", seed, path.filename().string());
    write_bytes(path, text);
    EXPECT_THROW(verify_tables(csv), InputError) << what;
    EXPECT_THROW(merge(), InputError) << what;
    EXPECT_FALSE(fs::exists(folder_ / "merged.csv")) << what;
    if (!side->is_side()) {
      EXPECT_THROW(read_result_table(path), InputError) << what;  // summarize
    } else {
      EXPECT_THROW(read_side_table(path, *side), InputError) << what;  // cluster --kept-by
    }
    EXPECT_THROW(ResultStore(plan, manifest), InputError) << what;  // --resume
    EXPECT_FALSE(fs::exists(log_path(csv))) << what;
    for (const auto& [file, bytes] : before) {
      write_bytes(file, bytes);
    }
    if (HasFailure()) {
      break;
    }
  }
}

TEST_F(TableDamage, SideTablesBelongToTheirRun) {
  const ReplayOptions first = options("a.csv");
  ReplayOptions other = options("b.csv");
  other.sink = 5;
  run(first);
  run(other);
  EXPECT_NE(read_manifest(first.out).run_id, read_manifest(other.out).run_id);
  ReplayOptions again = options("c.csv");
  again.threads = 2;
  run(again);
  EXPECT_EQ(read_manifest(first.out).run_id, read_manifest(again.out).run_id);

  const fs::path kept = kept_table().path(first.out);
  fs::copy_file(kept_table().path(other.out), kept, fs::copy_options::overwrite_existing);
  const std::string text = "a.kept.csv: holds rows of run " + read_manifest(other.out).run_id +
                           ", expected " + read_manifest(first.out).run_id;
  expect_refusal([&] { verify_tables(first.out); }, text);
  expect_refusal([&] { read_side_table(kept, kept_table()); }, text);
  ReplayOptions resumed = first;
  resumed.resume = true;
  expect_refusal([&] { run(resumed); }, text);

  // What an earlier run left beside a run without such a table.
  ReplayOptions without = options("d.csv");
  without.kept = false;
  run(without);
  fs::copy_file(kept_table().path(first.out), kept_table().path(without.out));
  EXPECT_THROW(verify_tables(without.out), InputError);
  EXPECT_THROW(read_side_table(kept_table().path(without.out), kept_table()), InputError);
  fs::remove(kept_table().path(without.out));
  EXPECT_EQ(verify_tables(without.out).size(), 3U);  // with queries and layers
  fs::remove(queries_table().path(without.out));
  EXPECT_THROW(verify_tables(without.out), InputError);
}

TEST_F(TableDamage, VerifyFindsTheCellThatIsAnotherWhenItRunsAgain) {
  const ReplayOptions o = options("out.csv");
  run(o);
  const std::string before = read_bytes(o.out);
  const Table table = read_table(o.out);
  const auto all = static_cast<Index>(table.rows.size());
  const VerifyResult good = verify_sample(o.out, all + 1, 1, 1, kGoOn);
  EXPECT_EQ(good.rows_again, all);
  EXPECT_EQ(good.different, 0);
  EXPECT_EQ(good.lines.size(), table.rows.size());
  EXPECT_EQ(read_bytes(o.out), before);

  const VerifyResult few = verify_sample(o.out, 3, 7, 1, kGoOn);
  EXPECT_EQ(few.lines.size(), 3U);
  EXPECT_LT(few.rows_again, all);
  for (Index seed = 8; verify_sample(o.out, 3, seed, 1, kGoOn).lines[0].row == few.lines[0].row;) {
    ASSERT_LT(++seed, 40);  // another seed draws other rows
  }

  forge(o.out, "rel_error", 5, "0.125");
  forge(o.out, "compress_ms", 6, "1000");  // a timing is no difference
  EXPECT_NO_THROW(verify_tables(o.out));   // the SHA-256 is right
  const VerifyResult bad = verify_sample(o.out, all, 1, 1, kGoOn);
  EXPECT_EQ(bad.different, 1);
  for (const LineAgain& line : bad.lines) {
    EXPECT_EQ(line.different.empty(), line.row != 6) << line.row;
  }
  const std::string was = table.rows[5][column_index("rel_error")];
  EXPECT_EQ(bad.lines[5].different, Fields{"rel_error is 0.125, again " + was});

  forge(o.out, "status", 4, kLackedMemory);  // the rows of one job
  forge(o.out, "status", 5, kLackedMemory);
  expect_refusal([&] { verify_sample(o.out, 1, 1, 1, kGoOn); },
                 "row 5 is `failed: memory`, expected none for --sample");
  forge(o.out, "status", 5, "ok");

  write_bytes(trace_, read_bytes(trace_) + " ");
  expect_refusal([&] { verify_sample(o.out, 1, 1, 1, kGoOn); }, "t.h5: SHA-256 is");
}

TEST_F(TableDamage, VerifySaysWhatItCannotCheck) {
  const ReplayOptions o = options("out.csv");
  run(o);
  Manifest m = read_manifest(o.out);
  const Manifest finished = m;
  m.sha256.reset();
  m.end.reset();
  write_manifest(o.out, m);  // as of a killed run
  EXPECT_NE(verify_tables(o.out).front().find("the file has no checksum"), std::string::npos);
  EXPECT_THROW(verify_sample(o.out, 1, 1, 1, kGoOn), InputError);
  m = finished;
  m.plan->hash[0] = m.plan->hash[0] == '0' ? '1' : '0';
  write_manifest(o.out, m);
  expect_refusal([&] { verify_tables(o.out); }, "the manifest was changed");
  m = finished;
  ++m.rows;
  write_manifest(o.out, m);
  EXPECT_THROW(verify_tables(o.out), InputError);
}

}  // namespace
}  // namespace kvbench::test_table_damage
