// OUT.queries.csv: errors of the evaluated queries, in bins or each of them, whatever the order,
// threads and interruptions.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "metrics/error.hpp"
#include "replay/windows.hpp"
#include "replay_run.hpp"
#include "report/table_spec.hpp"

namespace kvbench::test_per_query {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;

// Means and percentiles of numbers that are written in full.
constexpr double kRounding = 1e-12;

class PerQueryRun : public testing_replay::ReplayTest {
 protected:
  ReplayOptions options(const std::string& out = "out.csv") const {
    ReplayOptions o = basic(out);
    o.algorithms = {"uniform,h2o,quant-kivi:bits=2"};  // the last one fits no budget here
    o.budgets = {0.5, 0.05};
    o.sink = 2;
    o.recent = 20;
    o.queries = 7;
    o.per_query = PerQuery::bins;
    return o;
  }
  static fs::path queries_of(const ReplayOptions& o) { return queries_table().path(o.out); }
};

TEST_F(PerQueryRun, ALinePerQueryThatAgreesWithItsRow) {
  ReplayOptions o = options();
  o.per_query = PerQuery::all;
  run(o);
  const TableSpec& queries = every_query_table();
  const Table lines = read_table(queries_of(o));
  ASSERT_EQ(lines.header, queries.header());
  const std::size_t step = lines.column("step");
  const std::size_t offset = lines.column("offset");
  const std::size_t error = lines.column("rel_error");
  std::map<std::string, std::vector<double>> errors;
  for (const Fields& line : lines.rows) {
    std::vector<double>& own = errors[queries.key(line)];
    const Index n = line[lines.column("prompt")] == "p0" ? 60 : 37;
    EXPECT_EQ(line[offset], std::to_string(own.size()));
    EXPECT_EQ(line[step], std::to_string(n - 7 + static_cast<Index>(own.size())));
    own.push_back(std::stod(line[error]));
  }
  Index measured = 0;
  for (const Fields& row : untimed(o.out)) {
    const std::string key = queries.key_of_row(row);
    if (status_kind(row[column_index("status")]) == "infeasible") {
      EXPECT_EQ(errors.count(key), 0U);
      continue;
    }
    ++measured;
    ASSERT_EQ(errors[key].size(), 7U);
    double mean = 0.0;
    double largest = 0.0;
    for (const double x : errors[key]) {
      mean += x / 7.0;
      largest = std::max(largest, x);
    }
    EXPECT_TRUE(std::abs(mean - std::stod(row[column_index("rel_error_mean")])) <= kRounding);
    EXPECT_TRUE(std::abs(largest - std::stod(row[column_index("rel_error_max")])) <= kRounding);
  }
  EXPECT_EQ(static_cast<Index>(errors.size()), measured);
  EXPECT_GT(measured, 0);
}

// The bins of a run against the queries of another.
TEST_F(PerQueryRun, ALinePerBinThatAgreesWithItsQueries) {
  ReplayOptions o = options();
  o.queries = 20;
  o.algorithms = {"uniform,h2o"};
  run(o);
  ReplayOptions every = o;
  every.out = (folder_ / "every.csv").string();
  every.per_query = PerQuery::all;
  run(every);
  const Table all = read_table(queries_of(every));
  std::map<std::string, std::vector<double>> errors;  // of a row
  const auto key_of = [](const Table& table, const Fields& line) {
    Fields key;
    for (const char* column : {"trace", "prompt", "layer", "q_head", "algorithm", "params", "seed",
                               "budget_requested"}) {
      key.push_back(line[table.column(column)]);
    }
    return csv_line(key);
  };
  for (const Fields& line : all.rows) {
    errors[key_of(all, line)].push_back(std::stod(line[all.column("rel_error")]));
  }
  const Table bins = read_table(queries_of(o));
  ASSERT_EQ(bins.header, queries_table().header());
  const std::vector<Range> expected = query_bins(20);
  ASSERT_EQ(bins.rows.size(), errors.size() * expected.size());
  for (std::size_t i = 0; i < bins.rows.size(); ++i) {
    const Fields& line = bins.rows[i];
    const Range bin = expected[i % expected.size()];
    EXPECT_EQ(line[bins.column("first")], std::to_string(bin.begin));
    EXPECT_EQ(line[bins.column("last")], std::to_string(bin.end - 1));
    EXPECT_EQ(line[bins.column("queries")], std::to_string(bin.size()));
    const std::vector<double>& row = errors.at(key_of(bins, line));
    ASSERT_EQ(row.size(), 20U);
    const std::vector<double> own(row.begin() + bin.begin, row.begin() + bin.end);
    double mean = 0.0;
    for (const double x : own) {
      mean += x / static_cast<double>(own.size());
    }
    EXPECT_TRUE(std::abs(mean - std::stod(line[bins.column("rel_error_mean")])) <= kRounding);
    EXPECT_EQ(line[bins.column("rel_error_p50")], number_text(percentile(own, 0.5)));
  }
  EXPECT_LT(fs::file_size(queries_of(o)), fs::file_size(queries_of(every)));
}

}  // namespace
}  // namespace kvbench::test_per_query
