// Tables whose lines stand in any order and of which any are missing, resumed: against plain maps
// that hold every line.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "files.hpp"
#include "replay/result_store.hpp"
#include "replay_run.hpp"
#include "report/manifest.hpp"
#include "report/table_reader.hpp"

namespace kvbench::test_resume_orders {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;

// Cells by column.
std::map<std::string, std::string> cells(const TableReader& reader) {
  std::map<std::string, std::string> out;
  for (std::size_t i = 0; i < reader.header().size(); ++i) {
    out[reader.header()[i]] = reader.row()[i];
  }
  return out;
}

// A job by its cells: what one KV head ran. Only one layer's q_head says the kv_head in all tables.
std::string job_of(std::map<std::string, std::string> row, Index group) {
  if (!row.contains("kv_head")) {
    row["kv_head"] = std::to_string(std::stol(row["q_head"]) / group);
  }
  std::string out;
  for (const char* column :
       {"prompt", "layer", "kv_head", "algorithm", "params", "budget_requested", "seed"}) {
    out += row.at(column) + "|";
  }
  return out;
}

struct File {
  std::string head;
  std::vector<std::string> lines;
  std::vector<std::string> jobs;  // of the lines
};

File read(const fs::path& path, Index group) {
  const std::string text = read_bytes(path);
  File out{text.substr(0, text.find('\n') + 1), {}, {}};
  for (TableReader reader(path); reader.next();) {
    out.lines.emplace_back(reader.text());
    out.jobs.push_back(job_of(cells(reader), group));
  }
  return out;
}

class ResumeOrders : public RunTest {};

TEST_F(ResumeOrders, AnyOrderAndAnyGapsGiveWhatPlainMapsGive) {
  ReplayOptions o = options();
  o.kept = true;
  o.per_query = PerQuery::bins;
  run(o);
  const Index group = make_plan(o).units.front().q_heads.size();
  const std::vector<fs::path> paths{o.out, kept_table().path(o.out), queries_table().path(o.out)};
  std::vector<File> files;
  std::map<std::string, std::size_t> lines_of_job;  // in all tables
  for (const fs::path& path : paths) {
    files.push_back(read(path, group));
    for (const std::string& job : files.back().jobs) {
      ++lines_of_job[job];
    }
  }
  const std::string manifest = read_bytes(manifest_path(o.out));
  const auto rows = untimed(o.out);
  o.resume = true;
  std::mt19937 random(5);
  std::set<Index> resumed;
  for (int trial = 0; trial < 30; ++trial) {
    std::map<std::string, std::size_t> left;
    const std::size_t gap = trial == 0 ? 0 : random() % 50;  // lines of a hundred that go
    for (std::size_t f = 0; f < files.size(); ++f) {
      std::vector<std::size_t> order;
      for (std::size_t i = 0; i < files[f].lines.size(); ++i) {
        if (random() % 100 >= gap / (trial % 2 == 0 ? 1 : 10)) {
          order.push_back(i);
          ++left[files[f].jobs[i]];
        }
      }
      std::ranges::shuffle(order, random);
      std::string text = files[f].head;
      for (const std::size_t i : order) {
        text += files[f].lines[i];
      }
      write_bytes(paths[f], text);
    }
    write_bytes(manifest_path(o.out), manifest);
    const auto whole = [&](const std::string& job) { return left[job] == lines_of_job.at(job); };
    const Index expected = std::ranges::count_if(files[0].jobs, whole);
    ASSERT_EQ(run(o).resumed, expected) << trial;
    resumed.insert(expected);
    expect_same(untimed(o.out), rows, "trial " + std::to_string(trial));
    const File now = read(o.out, group);
    for (std::size_t i = 0; i < now.lines.size(); ++i) {
      if (whole(now.jobs[i])) {
        ASSERT_EQ(now.lines[i], files[0].lines[i]) << trial;  // timings too
      }
    }
    for (std::size_t f = 1; f < files.size(); ++f) {
      ASSERT_EQ(read(paths[f], group).lines, files[f].lines) << trial;
    }
  }
  EXPECT_GT(resumed.size(), 10U);
}

}  // namespace
}  // namespace kvbench::test_resume_orders
