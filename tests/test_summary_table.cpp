#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "report/summary_table.hpp"
#include "report_rows.hpp"

namespace kvbench::test_summary_table {
namespace {

using namespace testing_rows;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

Row at_budget(const std::string& algorithm, double budget, Index q_head, double error) {
  Row row = make_row(algorithm, "", 0, q_head, 0, error);
  row.budget_requested = budget;
  return row;
}

SummaryOptions errors_alone() {
  SummaryOptions options;
  options.metrics = {"rel_error"};
  return options;
}

SummaryTable listed(const std::vector<Row>& rows, Detail detail) {
  return summary_table(summarize(result_tables({as_table(rows)}), errors_alone()), detail);
}

TEST(SummaryTable, GroupWithoutMeasurements) {
  Row row = make_row("quant-kivi", "bits=2", 0, 0, 0, 0.0);
  row.status = "infeasible: needs 9 bytes";
  EXPECT_EQ(format_table(listed({row}, Detail::all), TableFormat::csv),
            "algorithm,params,budget_requested,count,degenerate,infeasible,failed,mean_rel_error,"
            "sd_rel_error\nquant-kivi,bits=2,,0,0,1,0,nan,nan\n");
  EXPECT_EQ(format_table(listed({row}, Detail::brief), TableFormat::text),
            "algorithm   count  infeasible  rel_error\n"
            "             rows        rows   fraction\n"
            "----------------------------------------\n"
            "quant-kivi      0           1          -\n"
            "Each mean is of one row, which has no standard error.\n");
}

TEST(SummaryTable, ShortLabelsShowWhatDiffers) {
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

TEST(SummaryTable, TextIsAligned) {
  const std::vector<Row> rows{
      make_row("balancekv", "T=1", 0, 0, 0, 0.25), make_row("balancekv", "T=1", 0, 1, 0, 0.75),
      make_row("balancekv", "T=2", 0, 0, 0, 1.0), at_budget("h2o", 0.25, 0, 0.5)};
  EXPECT_EQ(format_table(listed(rows, Detail::brief), TableFormat::text),
            "algorithm        budget  count      rel_error\n"
            "               fraction   rows       fraction\n"
            "---------------------------------------------\n"
            "balancekv T=1         -      2  0.500 ± 0.250\n"
            "balancekv T=2         -      1   1.00\n"
            "h2o                0.25      1  0.500\n"
            "mean ± standard error over 1 to 2 rows: query heads.\n");
  const std::string full = format_table(listed(rows, Detail::params), TableFormat::text);
  EXPECT_NE(full.find("balancekv  T=1"), std::string::npos) << full;
}

TEST(SummaryTable, ThreeDigits) {
  EXPECT_EQ(three_digits(0.047823), "0.0478");
  EXPECT_EQ(three_digits(1234.0), "1230");
  EXPECT_EQ(three_digits(0.9996), "1.00");
  EXPECT_EQ(three_digits(0.6), "0.600");
  EXPECT_EQ(three_digits(99.96), "100");
  EXPECT_EQ(three_digits(1e-4), "0.000100");
  EXPECT_EQ(three_digits(1.5e-7), "1.50e-07");
  EXPECT_EQ(three_digits(999900.0), "1.00e+06");
  EXPECT_EQ(three_digits(-0.0), "0");
  EXPECT_EQ(three_digits(-0.25), "-0.250");
  EXPECT_EQ(three_digits(0.0), "0");
  EXPECT_EQ(three_digits(1234567.0), "1.23e+06");
  EXPECT_EQ(three_digits(not_a_number), "nan");
  EXPECT_EQ(three_digits(-not_a_number), "nan");
  EXPECT_EQ(three_digits(infinity), "inf");
  EXPECT_EQ(three_digits(-infinity), "-inf");
}

TEST(SummaryTable, StandardError) {
  EXPECT_DOUBLE_EQ(standard_error({1.0, 3.0, 9}), 1.0);
  EXPECT_TRUE(std::isnan(standard_error({1.0, not_a_number, 1})));
  EXPECT_EQ(standard_error({0.25, 4e-15, 4}), 0.0);  // rounding of a sum
  EXPECT_GT(standard_error({0.25, 1e-9, 4}), 0.0);
  EXPECT_TRUE(std::isnan(standard_error({infinity, not_a_number, 4})));
}

TEST(SummaryTable, Markdown) {
  Row infeasible = at_budget("quant-kivi", 0.125, 0, 0.0);
  infeasible.status = "infeasible: needs more";
  const std::vector<Row> rows{at_budget("h2o", 0.5, 0, 0.1), at_budget("h2o", 0.5, 1, 0.3),
                              make_row("balancekv", "T=2", 0, 0, 0, 0.01), infeasible};
  EXPECT_EQ(format_table(listed(rows, Detail::params), TableFormat::markdown),
            "| algorithm | params | budget (fraction) | count (rows) | infeasible (rows) | "
            "rel_error (fraction) |\n"
            "| :--- | :--- | ---: | ---: | ---: | ---: |\n"
            "| h2o | - | 0.5 | 2 | 0 | 0.200 ± 0.100 |\n"
            "| balancekv | T=2 | - | 1 | 0 | 0.0100 |\n"
            "| quant-kivi | - | 0.125 | 0 | 1 | - |\n"
            "\nmean ± standard error over 1 to 2 rows: query heads.\n");
}

TEST(SummaryTable, ProgramsGetFullPrecision) {
  const std::vector<Row> rows{make_row("a", "x=1;y=2", 0, 0, 0, 0.1),
                              make_row("a", "x=1;y=2", 0, 1, 0, 0.2),
                              at_budget("b", 0.25, 0, infinity)};
  EXPECT_EQ(format_table(listed(rows, Detail::all), TableFormat::csv),
            "algorithm,params,budget_requested,count,degenerate,infeasible,failed,mean_rel_error,"
            "sd_rel_error\n"
            "a,x=1;y=2,,2,0,0,0,0.15000000000000002,0.07071067811865477\n"
            "b,,0.25,1,0,0,0,inf,nan\n");
}

TEST(SummaryTable, NamesAreEscaped) {
  Row row = make_row("a", "", 0, 0, 0, 0.5);
  row.prompt = "50% of_{x}|\\y\n$^~&#<*";
  SummaryOptions options = errors_alone();
  options.by = {"prompt"};
  const SummaryTable table = summary_table(
      summarize(result_tables({as_table({row, make_row("[b", "", 0, 0, 0, 0.5)})}), options),
      Detail::brief);
  const std::string markdown = format_table(table, TableFormat::markdown);
  EXPECT_NE(markdown.find("50% of\\_{x}\\|\\\\y $^~&#\\<\\*"), std::string::npos) << markdown;
  EXPECT_NE(markdown.find("rel_error (fraction)"), std::string::npos) << markdown;
  EXPECT_NE(format_table(table, TableFormat::text).find("|\\y?$^~"), std::string::npos);
}

// Whatever the width: no line is longer, cells that are shown are whole, labels stay
// different, and what is missing is said.
TEST(SummaryTable, TextFitsAnyWidth) {
  std::vector<Row> rows;
  for (int i = 0; i < 6; ++i) {
    rows.push_back(make_row("attention-matching", fmt::format("other=1;x={}é_long_value", i), 0, 0,
                            0, 0.125 * i));
  }
  SummaryOptions options;
  const Summary summary = summarize(result_tables({as_table(rows)}), options);
  const SummaryTable table = summary_table(summary, Detail::brief);
  const auto characters = [](std::string_view line) {
    return std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; });
  };
  const std::string whole = format_table(table, TableFormat::text);
  EXPECT_EQ(format_table(table, TableFormat::text, 1000), whole);
  for (std::size_t width = 10; width < 140; ++width) {
    std::istringstream lines(format_table(table, TableFormat::text, width));
    const std::string text = lines.str();
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(characters(line), static_cast<std::ptrdiff_t>(width)) << line;
    }
    if (width >= 50) {
      EXPECT_EQ(text.find("compress_ms") == std::string::npos, false) << text;  // shown or named
      const bool cut = text.find("…") != std::string::npos;
      EXPECT_EQ(cut, text.find("Labels are cut") != std::string::npos) << text;
      const std::string head = text.substr(0, text.find('\n'));
      EXPECT_EQ(head.find("compress_ms") == std::string::npos,
                text.find("Left out to") != std::string::npos)
          << text;
      std::set<std::string> labels;
      std::istringstream again(text);
      for (std::string line; std::getline(again, line);) {
        if (line.starts_with("attention")) {
          labels.insert(line.substr(0, line.find("  ")));
        }
      }
      EXPECT_EQ(labels.size(), 6u) << text;
    }
  }
}

}  // namespace
}  // namespace kvbench::test_summary_table
