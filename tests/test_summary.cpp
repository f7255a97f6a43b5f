#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <sstream>

#include "refusal.hpp"
#include "report/summary.hpp"
#include "report_rows.hpp"

namespace kvbench {
namespace {

using testing_replay::refusal;
using testing_rows::as_table;
using testing_rows::make_row;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
// Sums of a few hundred values of order one, in two orders.
constexpr double rounding = 1e-12;

Summary summarize(const std::vector<Table>& tables, const SummaryOptions& options) {
  std::vector<OpenTable> open;
  for (const Table& table : tables) {
    std::string text = csv_line(table.header);
    for (const Fields& row : table.rows) {
      text += csv_line(row);
    }
    open.emplace_back([text, source = table.source] {
      return std::make_unique<TableReader>(std::make_unique<std::istringstream>(text), source);
    });
  }
  return kvbench::summarize(open, options);
}

// Of a group with these values and a row that failed.
Moments moments_of(const std::vector<double>& values) {
  std::vector<Row> rows{make_row("a", "", 0, 0, 0, 0.0)};
  rows[0].status = "failed: on purpose";
  for (const double value : values) {
    rows.push_back(make_row("a", "", 0, 0, 0, value));
  }
  SummaryOptions options;
  options.metrics = {"rel_error"};
  return summarize({as_table(rows)}, options).groups.at(0).moments.at(0);
}

TEST(Summary, AgreesWithANaiveTwin) {
  std::mt19937 random(3);
  std::vector<Row> rows;
  // Twin: sums of values and of squares, by a text key; one line per rule.
  std::map<std::string, std::vector<double>> twin;
  std::map<std::string, Index> lost;
  for (int i = 0; i < 600; ++i) {
    const std::string algorithm = random() % 2 == 0 ? "balancekv" : "uniform";
    const std::string params = "T=" + std::to_string(1 + random() % 3);
    const auto layer = static_cast<Index>(random() % 2);
    const double error = static_cast<double>(random() % 1000) / 1000.0;
    rows.push_back(make_row(algorithm, params, layer, i, 0, error));
    const std::string key = algorithm + "|" + params + "|" + std::to_string(layer);
    switch (random() % 8) {
      case 0:
        rows.back().status = "failed: x";
        ++lost[key];
        break;
      case 1:
        rows.back().status = "infeasible: y";
        ++lost[key];
        break;
      case 2:
        rows.back().status = "degenerate: z";
        ++lost[key];
        break;
      default: twin[key].push_back(error);
    }
  }
  SummaryOptions options;
  options.by = {"layer"};
  const std::vector<Table> tables{as_table({rows.begin(), rows.begin() + 250}),
                                  as_table({rows.begin() + 250, rows.end()})};
  const Summary summary = summarize(tables, options);
  ASSERT_EQ(summary.groups.size(), 12u);
  Index left_out = 0;
  for (const auto& [status, count] : summary.left_out) {
    EXPECT_TRUE(status == "failed" || status == "infeasible" || status == "degenerate: z")
        << status;
    left_out += count;
  }
  for (const auto& [key, count] : lost) {
    left_out -= count;
  }
  EXPECT_EQ(left_out, 0);
  for (const SummaryGroup& g : summary.groups) {
    const std::string key = g.key[0] + "|" + g.key[1] + "|" + g.key[3];
    const std::vector<double>& values = twin[key];
    double sum = 0.0;
    double squares = 0.0;
    for (const double v : values) {
      sum += v;
      squares += v * v;
    }
    const auto n = static_cast<double>(values.size());
    EXPECT_EQ(g.count, static_cast<Index>(values.size())) << key;
    EXPECT_EQ(g.failed + g.infeasible + g.degenerate, lost[key]) << key;
    EXPECT_NEAR(g.moments[0].mean, sum / n, rounding) << key;
    EXPECT_NEAR(g.moments[0].sd, std::sqrt((squares - sum * sum / n) / (n - 1)), rounding) << key;
    EXPECT_EQ(g.moments[1].mean, 0.25);
    EXPECT_EQ(g.moments[1].sd, 0.0);
  }
}

TEST(Summary, MomentsByHand) {
  const Moments m = moments_of({1, 2, 3, 4});
  EXPECT_EQ(m.mean, 2.5);
  EXPECT_DOUBLE_EQ(m.sd, std::sqrt(5.0 / 3.0));
  EXPECT_TRUE(std::isnan(moments_of({}).mean));
  EXPECT_EQ(moments_of({7}).mean, 7.0);
  EXPECT_TRUE(std::isnan(moments_of({7}).sd));
  const Moments inf = moments_of({1, infinity});
  EXPECT_EQ(inf.mean, infinity);
  EXPECT_TRUE(std::isnan(inf.sd));
  EXPECT_TRUE(std::isnan(moments_of({1, not_a_number}).mean));
}

TEST(Summary, NanAndInfinityStayVisible) {
  const std::vector<Table> tables{
      as_table({make_row("a", "", 0, 0, 0, not_a_number), make_row("a", "", 0, 1, 0, 1.0),
                make_row("b", "", 0, 0, 0, infinity), make_row("b", "", 0, 1, 0, 1.0)})};
  SummaryOptions options;
  options.metrics = {"rel_error"};
  const std::string text = summary_text(summarize(tables, options), false);
  EXPECT_NE(text.find("nan"), std::string::npos) << text;
  EXPECT_NE(text.find("inf"), std::string::npos) << text;
  options.sort = "rel_error";
  for (const bool descending : {false, true}) {
    options.descending = descending;
    EXPECT_EQ(summarize(tables, options).groups.back().key[0], "a");  // NaN last
  }
}

TEST(Summary, GroupWithoutMeasurements) {
  Row row = make_row("quant-kivi", "bits=2", 0, 0, 0, 0.0);
  row.status = "infeasible: needs 9 bytes";
  const std::vector<Table> tables{as_table({row})};
  const Summary summary = summarize(tables, {});
  EXPECT_EQ(summary.groups[0].count, 0);
  EXPECT_EQ(summary.groups[0].infeasible, 1);
  EXPECT_EQ(summary_csv(summary)[1][7], "nan");
  EXPECT_NE(summary_text(summary, false).find("infeasible"), std::string::npos);
}

TEST(Summary, ShortLabelsShowWhatDiffers) {
  const std::vector<std::string> algorithms{"balancekv", "balancekv", "uniform", "snapkv",
                                            "snapkv"};
  const std::vector<std::string> params{"T=1;gamma=4", "T=2;gamma=4", "T=1", "kernel=5",
                                        "kernel=5;x=1"};
  EXPECT_EQ(short_labels(algorithms, params),
            (std::vector<std::string>{"balancekv T=1", "balancekv T=2", "uniform", "snapkv",
                                      "snapkv x=1"}));
  // What another parameter's value brings with it names nothing; where it varies, it does.
  EXPECT_EQ(short_labels(std::vector<std::string>(4, "a"),
                         std::vector<std::string>{"keys=rms", "h2o.r=1;h2o.x=1;keys=h2o",
                                                  "h2o.r=2;h2o.x=1;keys=h2o", "b.r=3;keys=b"}),
            (std::vector<std::string>{"a keys=rms", "a h2o.r=1 keys=h2o", "a h2o.r=2 keys=h2o",
                                      "a keys=b"}));
}

TEST(Summary, TextIsAligned) {
  Row budget = make_row("h2o", "heavy_ratio=0.5", 0, 0, 0, 0.5);
  budget.budget_requested = 0.25;
  const std::vector<Table> tables{as_table({make_row("balancekv", "T=1", 0, 0, 0, 0.25),
                                            make_row("balancekv", "T=1", 0, 1, 0, 0.75),
                                            make_row("balancekv", "T=2", 0, 0, 0, 1.0), budget})};
  SummaryOptions options;
  options.metrics = {"rel_error"};
  EXPECT_EQ(summary_text(summarize(tables, options), false),
            "algorithm        budget  count  rel_error      sd\n"
            "               fraction   rows   fraction\n"
            "-------------------------------------------------\n"
            "balancekv T=1         -      2        0.5  0.3536\n"
            "balancekv T=2         -      1          1       -\n"
            "h2o                0.25      1        0.5       -\n");
  options.sort = "rel_error";
  options.descending = true;
  EXPECT_EQ(summarize(tables, options).groups[0].key[1], "T=2");
}

TEST(Summary, CsvIsFullPrecision) {
  const std::vector<Table> tables{
      as_table({make_row("a", "x=1;y=2", 0, 0, 0, 0.1), make_row("a", "x=1;y=2", 0, 1, 0, 0.2)})};
  SummaryOptions options;
  options.metrics = {"rel_error"};
  const std::vector<Fields> lines = summary_csv(summarize(tables, options));
  EXPECT_EQ(csv_line(lines[0]),
            "algorithm,params,budget_requested,count,degenerate,infeasible,failed,mean_rel_error,"
            "sd_rel_error\n");
  EXPECT_EQ(lines[1][1], "x=1;y=2");
  double mean = 0.0;
  ASSERT_TRUE(parse_number(lines[1][7], mean));
  EXPECT_EQ(mean, (0.1 + 0.2) / 2);
}

TEST(Summary, PooledSettingsAreNamed) {
  Row stream = make_row("a", "", 0, 0, 0, 0.1);
  stream.protocol = "stream";
  std::vector<Table> tables{as_table({make_row("a", "", 0, 0, 0, 0.1), stream})};
  EXPECT_EQ(summarize(tables, {}).pooled, std::vector<std::string>{"protocol"});
  SummaryOptions options;
  options.by = {"protocol"};
  EXPECT_TRUE(summarize(tables, options).pooled.empty());
}

TEST(Summary, Refusals) {
  Table good = as_table({make_row("a", "", 0, 0, 0, 0.1)}, "good.csv");
  const auto error_for = [](std::vector<Table> tables, SummaryOptions options = {}) {
    return refusal([&] { summarize(tables, options); });
  };
  EXPECT_EQ(error_for({as_table({}, "empty.csv")}), "empty.csv: no rows to summarize");
  SummaryOptions unknown;
  unknown.metrics = {"speed"};
  EXPECT_EQ(error_for({good}, unknown), "good.csv: column `speed` (did you mean seed?) is missing");
  SummaryOptions text;
  text.metrics = {"algorithm"};
  EXPECT_EQ(error_for({good}, text),
            "good.csv: row 1: column `algorithm`: got `a`, expected a number");
  SummaryOptions sort;
  sort.sort = "layer";
  EXPECT_EQ(error_for({good}, sort), "sort: `layer` is neither a chosen metric nor a group column");
  Table newer = good;
  newer.source = "newer.csv";
  newer.rows[0][0] = "1.9";
  EXPECT_EQ(error_for({good, newer}),
            "newer.csv: row 1: schema `1.9` after rows of `1.2`: mixed schemas");
  newer.rows[0][0] = "2.0";
  EXPECT_EQ(error_for({newer}), "newer.csv: row 1: schema `2.0`, expected 1.x");
  Table odd = good;
  odd.rows[0][column_index("status")] = "fine";
  EXPECT_EQ(error_for({odd}),
            "good.csv: row 1: status `fine`, expected ok, degenerate, infeasible or failed");
}

}  // namespace
}  // namespace kvbench
