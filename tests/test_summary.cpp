#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <tuple>

#include "refusal.hpp"
#include "report/summary.hpp"
#include "report/summary_table.hpp"
#include "report_rows.hpp"

namespace kvbench::test_summary {
namespace {

using testing_replay::refusal;
using namespace testing_rows;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
// Sums of a few hundred values of order one, in two orders.
constexpr double rounding = 1e-12;

Summary summarize(const std::vector<Table>& tables, const SummaryOptions& options) {
  return kvbench::summarize(result_tables(tables), options);
}

// Of a group with these values and a row that failed.
Moments moments_of(const std::vector<double>& values) {
  std::vector<Row> rows{make_row("a", "", 0, 0, 0, 0.0)};
  rows[0].status = "failed: on purpose";
  for (const double value : values) {
    rows.push_back(make_row("a", "", 0, std::ssize(rows), 0, value));
  }
  SummaryOptions options;
  options.metrics = {"rel_error"};
  return summarize({as_table(rows)}, options).groups.at(0).moments.at(0);
}

TEST(Summary, MeansOfSharesAreBytesOverBytes) {
  // Middles of 100 and 300 bytes beside 60 exact ones. The second row of a head holds all of it.
  std::vector<Row> rows;
  for (const auto& [layer, middle, held, params] :
       {std::tuple{0, 100, 50, "x"}, {1, 300, 30, "x"}, {0, 100, 100, "y"}, {1, 300, 60, "y"}}) {
    Row row = make_row("a", params, layer, 0, 0, 0.5);
    row.bytes = 60 + held;
    row.full_bytes = 60 + middle;
    row.ratio = static_cast<double>(row.bytes) / static_cast<double>(row.full_bytes);
    row.middle_ratio = static_cast<double>(held) / middle;
    row.read_ratio = row.middle_ratio;
    rows.push_back(row);
  }
  SummaryOptions options;
  options.metrics = {"ratio", "middle_ratio", "read_ratio", "rel_error"};
  const Summary s = summarize({as_table(rows)}, options);
  const auto mean = [&](std::size_t group, std::size_t metric) {
    return s.groups.at(group).moments.at(metric).mean;
  };
  EXPECT_NEAR(mean(0, 0), 200.0 / 520.0, rounding);
  EXPECT_NEAR(mean(0, 1), 80.0 / 400.0, rounding);
  EXPECT_NEAR(mean(0, 2), 80.0 / 400.0, rounding);
  EXPECT_EQ(mean(0, 3), 0.5);
  EXPECT_NEAR(mean(1, 1), 160.0 / 400.0, rounding);
}

// Of 100 and 300 bytes, by what the rows read of them: nothing is left out of the middle. Other
// windows of the same heads leave middles of 50 and 250.
TEST(Summary, SharesAreOfTheMiddleThatARowHas) {
  std::vector<Row> rows;
  for (const auto& [recent, layer, middle] :
       {std::tuple{10, 0, 100}, {10, 1, 300}, {60, 0, 50}, {60, 1, 250}}) {
    Row row = make_row("a", "x", layer, 0, 0, 0.5);
    row.recent = recent;
    row.full_bytes = 1000;
    row.bytes = recent == 10 ? 1000 : 1000 - middle / 2;
    row.middle_ratio = recent == 10 ? 1.0 : 0.5;
    row.read_bytes = layer == 0 ? 0.25 * middle : 0.5 * middle;
    row.read_ratio = layer == 0 ? 0.25 : 0.5;
    rows.push_back(row);
  }
  SummaryOptions options;
  options.by = {"recent"};
  options.metrics = {"read_ratio"};
  const Summary s = summarize({as_table(rows)}, options);
  EXPECT_NEAR(s.groups.at(0).moments.at(0).mean, (25.0 + 150.0) / 400.0, rounding);
  EXPECT_NEAR(s.groups.at(1).moments.at(0).mean, (12.5 + 125.0) / 300.0, rounding);
}

TEST(Summary, AgreesWithANaiveReference) {
  std::mt19937 random(3);
  std::vector<Row> rows;
  // Reference: sums of values and of squares, by a text key; one line per rule.
  std::map<std::string, std::vector<double>> reference;
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
      default: reference[key].push_back(error);
    }
  }
  SummaryOptions options;
  options.by = {"layer"};
  const std::vector<Table> tables{as_table({rows.begin(), rows.begin() + 250}),
                                  as_table({rows.begin() + 250, rows.end()})};
  const Summary summary = summarize(tables, options);
  ASSERT_EQ(summary.groups.size(), 12u);
  Index skipped = 0;
  for (const auto& [status, count] : summary.skipped) {
    EXPECT_TRUE(status == "failed" || status == "infeasible" || status == "degenerate: z")
        << status;
    skipped += count;
  }
  for (const auto& [key, count] : lost) {
    skipped -= count;
  }
  EXPECT_EQ(skipped, 0);
  for (const SummaryGroup& g : summary.groups) {
    const std::string key = g.key[0] + "|" + g.key[1] + "|" + g.key[3];
    const std::vector<double>& values = reference[key];
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
  // Their sum is rounded to less than 1.
  const Moments equal = moments_of(std::vector<double>(10, 0.1));
  EXPECT_EQ(equal.mean, 0.1);
  EXPECT_EQ(equal.sd, 0.0);
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
  const std::string text =
      format_table(summary_table(summarize(tables, options), Detail::brief), TableFormat::text);
  EXPECT_NE(text.find("nan"), std::string::npos) << text;
  EXPECT_NE(text.find("inf"), std::string::npos) << text;
  options.sort = "rel_error";
  for (const bool descending : {false, true}) {
    options.descending = descending;
    EXPECT_EQ(summarize(tables, options).groups.back().key[0], "a");  // NaN last
  }
}

// Its refusal and the ways around it: tests/cli/summarize.sh.
TEST(Summary, WhatDiffersIsPooledWhereThatIsAskedForAlone) {
  Row stream = make_row("a", "", 0, 0, 0, 0.1);
  stream.protocol = "stream";
  Row other = make_row("b", "", 0, 0, 0, 0.1);
  other.protocol = "stream";
  const std::vector<Table> pooled{as_table({make_row("a", "", 0, 0, 0, 0.1), stream})};
  const std::vector<Table> apart{as_table({make_row("a", "", 0, 0, 0, 0.1), other})};
  SummaryOptions options;
  EXPECT_EQ(summarize(apart, options).groups.size(), 2u);
  options.pool = true;
  EXPECT_EQ(summarize(pooled, options).pooled, std::vector<std::string>{"protocol"});
  EXPECT_EQ(summarize(pooled, options).groups.size(), 1u);
}

TEST(Summary, ScoresMayDifferBetweenMethodsAlone) {
  Row none = make_row("knorm", "", 0, 0, 0, 0.1);
  none.scores = "none";
  Row all = make_row("h2o", "", 0, 0, 0, 0.1);
  all.scores = "all";
  SummaryOptions options;
  const Row past = make_row("h2o", "", 0, 0, 0, 0.1);
  EXPECT_EQ(summarize({as_table({past, none})}, options).groups.size(), 2u);
  testing_replay::expect_refusal(
      [&] {
        summarize({as_table({past, all})}, options);
      },
      "scores (all, past)");
}

TEST(Summary, ModelsAndElementTypesAreNotPooled) {
  Row first = make_row("a", "", 0, 0, 0, 0.1);
  Row second = make_row("a", "", 0, 0, 0, 0.3);
  second.trace = "second.h5";
  SummaryOptions options;
  EXPECT_EQ(summarize({as_table({first, second})}, options).groups[0].count, 2);  // none is known
  first.model = "llama, 7B";
  first.dtype = "float16";
  second.precision = first.precision = "float32";
  EXPECT_EQ(summarize({as_table({first, second})}, options).groups[0].count, 2);  // of one only
  second.model = "qwen";
  second.dtype = "bfloat16";
  const std::vector<ResultTable> tables = result_tables({as_table({first}), as_table({second})});
  EXPECT_EQ(
      refusal([&] { kvbench::summarize(tables, options); }),
      "summarize: rows of one mean differ in dtype (bfloat16, float16), model "
      "(llama, 7B, qwen); --by dtype separates them, --where dtype=bfloat16 picks some, --pool "
      "pools them");
  options.by = {"model", "dtype"};
  const Summary summary = kvbench::summarize(tables, options);
  ASSERT_EQ(summary.groups.size(), 2u);
  EXPECT_EQ(summary.groups[1].key, (Fields{"a", "", "", "qwen", "bfloat16"}));
  options.by = {};
  options.where.emplace_back("model=q*");
  EXPECT_EQ(kvbench::summarize(tables, options).groups[0].moments[0].mean, 0.3);

  Table without = as_table({second});
  const auto width = static_cast<std::size_t>(without.column("model"));
  without.header.resize(width);
  without.rows[0].resize(width);
  EXPECT_THROW(summarize({as_table({first}), without}, options), InputError);
}

TEST(Summary, RowsThatStandTwiceAreRefused) {
  const Table table = as_table({make_row("a", "", 0, 0, 0, 0.1), make_row("a", "", 1, 0, 0, 0.1)});
  Table again =
      as_table({make_row("a", "", 2, 0, 0, 0.1), make_row("a", "", 1, 0, 0, 0.9)}, "b.csv");
  const std::string key =
      "trace=made_up.h5, prompt=p0, layer=1, q_head=0, algorithm=a, params=, protocol=prefill, "
      "sink=256, recent=256, scores=past, device=cpu, seed=0, n_queries=256, budget_requested=";
  SummaryOptions options;
  EXPECT_EQ(refusal([&] {
              summarize({table, again}, options);
            }),
            "b.csv: line 3: duplicate row, also in made_up.csv, line 3: " + key);
  options.pool = true;
  options.by = {"layer"};
  EXPECT_NE(refusal([&] { summarize({table, table}, options); }), "");
  options.where.emplace_back("layer=0,2");
  EXPECT_EQ(summarize({table, again}, options).groups.size(), 2u);
  again.rows.pop_back();
  EXPECT_EQ(summarize({table, again}, {}).groups[0].count, 3);
}

TEST(Summary, SaysOverWhatItIs) {
  Row other = make_row("b", "", 0, 0, 0, 0.1);
  other.prompt = "p1";
  const std::vector<Table> tables{
      as_table({make_row("a", "", 0, 0, 0, 0.1), make_row("a", "", 0, 1, 0, 0.1),
                make_row("a", "", 0, 1, 7, 0.1), other})};
  // The prompt differs between groups, not within one.
  EXPECT_EQ(summarize(tables, {}).spread, (std::vector<std::string_view>{"query heads", "seeds"}));
}

// Of filters: tests/cli/summarize.sh.
TEST(Summary, Refusals) {
  Table good = as_table({make_row("a", "", 0, 0, 0, 0.1)}, "good.csv");
  const auto error_for = [](std::vector<Table> tables, SummaryOptions options = {}) {
    return refusal([&] { summarize(tables, options); });
  };
  EXPECT_EQ(error_for({as_table({}, "empty.csv")}), "empty.csv: no rows to summarize");
  SummaryOptions unknown;
  unknown.metrics = {"speed"};
  EXPECT_TRUE(
      error_for({good}, unknown)
          .starts_with("good.csv: column `speed` (did you mean seed?) is missing; there are "
                       "schema, trace, "));
  SummaryOptions text;
  text.metrics = {"algorithm"};
  EXPECT_EQ(error_for({good}, text),
            "good.csv: row 1: column `algorithm`: got `a`, expected a number");
  SummaryOptions sort;
  sort.sort = "layer";
  EXPECT_EQ(error_for({good}, sort), "sort: `layer` is neither a chosen metric nor a group column");
  Table newer = good;
  newer.source = "newer.csv";
  newer.rows[0][0] = "1.99";
  EXPECT_EQ(error_for({good, newer}), "newer.csv: row 1: schema `1.99` after rows of `" +
                                          std::string(schema_version) + "`: mixed schemas");
  newer.rows[0][0] = "2.0";
  EXPECT_EQ(error_for({newer}), "newer.csv: row 1: schema `2.0`, expected 1.x");
  Table odd = good;
  odd.rows[0][column_index("status")] = "fine";
  EXPECT_EQ(error_for({odd}),
            "good.csv: row 1: status `fine`, expected ok, degenerate, infeasible or failed");
}

}  // namespace
}  // namespace kvbench::test_summary
