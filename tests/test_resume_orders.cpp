// Logs whose records are in any order and of which any are missing give the undivided tables.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "files.hpp"
#include "replay_run.hpp"
#include "report/journal.hpp"
#include "report/manifest.hpp"
#include "report/merge.hpp"
#include "report/run_files.hpp"

namespace kvbench::test_resume_orders {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;

class ResumeOrders : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    TraceShape shape;
    shape.tokens = {60, 37};
    shape.layers = {0, 2};
    shape.hidden = 12;
    trace_ = make_trace(trace_, shape);
    whole_ = options("whole.csv");
    whole_.kept = true;
    whole_.per_query = PerQuery::bins;
    whole_.keep_log = true;
    run(whole_);
  }

  /// A log with the manifest and these records.
  void write_log(const fs::path& path, const std::vector<Index>& numbers) const {
    const Journal from(log_path(whole_.out), Journal::Damage::refuse);
    Journal to(path, from.identity(), false);
    to.append(-1, from.read(-1));
    for (const Index number : numbers) {
      to.append(number, from.read(number));
    }
  }

  void expect_whole(const fs::path& csv, const std::string& what) const {
    expect_same(untimed(csv), untimed(whole_.out), what);
    for (const TableSpec* side : {&kept_table(), &queries_table(), &layers_table()}) {
      EXPECT_EQ(read_bytes(side->path(csv)), read_bytes(side->path(whole_.out))) << what;
    }
  }

  ReplayOptions whole_;
};

TEST_F(ResumeOrders, AnyRecordsInAnyOrderAreResumed) {
  std::vector<Index> all = Journal(log_path(whole_.out), Journal::Damage::refuse).numbers();
  std::erase_if(all, [](Index number) { return number < 0; });
  ReplayOptions o = whole_;
  o.out = (folder_ / "part.csv").string();
  o.keep_log = false;
  o.resume = true;
  std::mt19937 random(5);
  std::set<Index> resumed;
  for (int trial = 0; trial < 30; ++trial) {
    std::vector<Index> some;
    for (const Index number : all) {
      if (random() % 100 >= static_cast<unsigned>(3 * trial)) {
        some.push_back(number);
      }
    }
    std::ranges::shuffle(some, random);
    for (const Output& file : run_files(o.out)) {
      fs::remove(file.path);
    }
    write_log(log_path(o.out), some);
    resumed.insert(run(o).resumed);
    expect_whole(o.out, "trial " + std::to_string(trial));
  }
  EXPECT_GT(resumed.size(), 10U);
}

// Any partition of the records among logs merges to the undivided tables.
TEST_F(ResumeOrders, AnyPartitionIsMerged) {
  std::vector<Index> all = Journal(log_path(whole_.out), Journal::Damage::refuse).numbers();
  std::erase_if(all, [](Index number) { return number < 0; });
  std::mt19937 random(7);
  for (int trial = 0; trial < 10; ++trial) {
    const std::size_t count = 1 + random() % 4;
    std::vector<std::vector<Index>> parts(count);
    for (const Index number : all) {  // the line of a layer is with its job
      parts[static_cast<std::size_t>(number / 2) * 2654435761U % (count + trial) % count].push_back(
          number);
    }
    MergeOptions merge;
    merge.output = folder_ / "merged.csv";
    merge.overwrite = true;
    for (std::size_t i = 0; i < count; ++i) {
      std::ranges::shuffle(parts[i], random);
      merge.inputs.push_back(folder_ / ("part" + std::to_string(i) + ".log"));
      write_log(merge.inputs.back(), parts[i]);
    }
    EXPECT_EQ(merge_runs(merge).rows, std::ssize(untimed(whole_.out)));
    expect_whole(merge.output, "trial " + std::to_string(trial));
  }
}

}  // namespace
}  // namespace kvbench::test_resume_orders
