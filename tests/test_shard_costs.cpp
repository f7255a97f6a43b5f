#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "make_trace.hpp"
#include "reference/shard_costs.hpp"
#include "refusal.hpp"
#include "replay/planner.hpp"
#include "replay/shard_calibration.hpp"
#include "report_rows.hpp"

namespace kvbench::test_shard_costs {
namespace {

namespace fs = std::filesystem;
using testing_replay::expect_refusal;
using testing_replay::make_trace;
using testing_replay::TraceShape;
using testing_rows::as_table;
using testing_rows::make_row;
using testing_rows::test_folder;

// Three prompts of different lengths; heads of one group are replayed in part, so units have two
// query heads or one. Five settings, one of them without a budget, in nine entries.
class ShardCostsTest : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = test_folder(); }

  Plan plan(Index hidden = 0) {
    TraceShape shape;
    shape.tokens = {60, 37, 24};
    shape.layers = {0, 2};
    shape.hidden = hidden;
    ReplayOptions o;
    o.traces = {make_trace(folder_ / "t.h5", shape)};
    o.algorithms = {"exact", "uniform", "local"};
    o.budgets = {0.5, 0.25};
    o.seeds = "5:8";
    o.heads = hidden > 0 ? std::vector<Index>{} : std::vector<Index>{0, 1, 2};
    o.sink = 4;
    o.recent = 8;
    o.queries = 4;
    return make_plan(o);
  }

  // A row of an entry's setting.
  static Row timed(const Plan& plan, const Entry& e, Index tokens, double compress_ms,
                   double attend_us) {
    const Variant& v = plan.variants[e.variant];
    Row row = make_row(v.name(), v.params.canonical(), 0, 0, 77, 0.5);
    row.budget_requested = e.budget;
    row.n_tokens = tokens;
    row.n_queries = 4;
    row.compress_ms = compress_ms;
    row.attend_us_per_query = attend_us;
    return row;
  }

  // One second for each entry's job, whatever the head.
  static std::vector<Row> flat(const Plan& plan, Index tokens = 60) {
    std::vector<Row> rows;
    for (const Entry& e : plan.entries) {
      rows.push_back(timed(plan, e, tokens, 1000.0, 0.0));
    }
    return rows;
  }

  static std::vector<Index> job_times(const Plan& plan, const ShardCosts& costs) {
    std::vector<Index> out;
    for (Index job = 0; job < plan.jobs(); ++job) {
      out.push_back(costs.nanoseconds({job, job + 1}));
    }
    return out;
  }

  fs::path folder_;
};

TEST_F(ShardCostsTest, TimesAndPartsAreThoseOfTheReference) {
  const Plan p = plan();
  std::map<std::pair<std::size_t, std::optional<double>>, Index> settings;
  std::map<Index, std::string> algorithm_of;
  std::vector<Entry> first;  // of each setting
  for (const Entry& e : p.entries) {
    const auto number = static_cast<Index>(settings.size());
    if (settings.emplace(std::pair{e.variant, e.budget}, number).second) {
      algorithm_of[number] = p.variants[e.variant].name();
      first.push_back(e);
    }
  }
  ASSERT_EQ(first.size(), 5U);
  std::vector<reference::TimedJob> jobs;
  for (Index job = 0; job < p.jobs(); ++job) {
    const Unit& unit = p.unit_of(job);
    const Entry& e = p.entry_of(job);
    jobs.push_back({settings.at({e.variant, e.budget}), p.layer_meta(unit).n,
                    static_cast<Index>(unit.q_heads.size())});
  }
  std::mt19937_64 random(11);
  std::lognormal_distribution<double> time(0.0, 2.0);
  for (int round = 0; round < 30; ++round) {
    std::vector<Row> rows;
    std::vector<reference::TimedRow> reference_rows;
    for (std::size_t s = 0; s < first.size(); ++s) {
      const auto lengths = static_cast<Index>(random() % (s == 0 ? 3 : 4));  // none: it is lacking
      for (Index l = 0; l < lengths + (s == 0 ? 1 : 0); ++l) {
        const Index tokens = std::vector<Index>{24, 60, 111}[l];
        for (std::uint64_t r = 0; r <= random() % 4; ++r) {
          const bool infeasible = random() % 8 == 0 && !rows.empty();
          const double ms = infeasible ? 0.0 : time(random);
          const double us = infeasible ? 0.0 : 50.0 * time(random);
          rows.push_back(timed(p, first[s], tokens, ms, us));
          rows.back().status = infeasible ? "infeasible: too small" : "ok";
          reference_rows.push_back({static_cast<Index>(s), tokens, ms, us, 4});
        }
      }
    }
    std::shuffle(rows.begin(), rows.end(), random);
    const ShardCosts costs = calibrated(p, as_table(rows));
    const std::vector<Index> got = job_times(p, costs);
    const std::vector<double> expected = reference::job_seconds(reference_rows, algorithm_of, jobs);
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      // The reference finds exponents by a search.
      ASSERT_NEAR(1e-9 * static_cast<double>(got[j]), expected[j], 1e-9 + 1e-6 * expected[j])
          << round << " job " << j;
    }
    ASSERT_EQ(costs.nanoseconds({0, p.jobs()}), std::accumulate(got.begin(), got.end(), Index{0}));
    for (const Index count : {1, 2, 3, 4, 7, 40, 121, 500}) {
      const std::vector<Index> parts = reference::equal_parts(got, count);
      for (Index i = 0; i <= count; ++i) {
        ASSERT_EQ(costs.boundary(i, count), parts[i]) << i << " of " << count;
      }
    }
  }
}

TEST_F(ShardCostsTest, EveryJobIsInOneShardAndNoLayerOfAnErrorIsCut) {
  std::mt19937_64 random(12);
  for (const Index hidden : {0, 5}) {
    Plan p = plan(hidden);
    for (int round = 0; round < 8; ++round) {
      std::vector<Row> rows = flat(p, 37);
      for (Row& row : rows) {
        row.compress_ms = std::pow(10.0, static_cast<double>(random() % 6));
        row.status = random() % 3 == 0 && &row != rows.data() ? "infeasible: too small" : "ok";
      }
      if (round % 2 == 1) {  // the first prompt's layers take no time
        for (Row row : flat(p, 60)) {
          row.status = "infeasible: too small";
          rows.push_back(row);
        }
      }
      p.shard_costs = std::make_shared<ShardCosts>(calibrated(p, as_table(rows)));
      const std::vector<Index> times = job_times(p, *p.shard_costs);
      const Index largest = *std::max_element(times.begin(), times.end());
      for (const Index count : {1, 2, 3, 5, 12, 40, 500, 1000000}) {
        p.options.shard_count = count;
        Index next = 0;
        for (Index i = 1; i <= std::min<Index>(count, 500); ++i) {
          p.options.shard_index = i;
          const Range part = p.shard_jobs();
          ASSERT_EQ(part.begin, next) << i << "/" << count;
          ASSERT_LE(part.begin, part.end);
          next = part.end;
          if (hidden > 0) {
            ASSERT_EQ(part.end % (2 * static_cast<Index>(p.entries.size())), 0);
          } else {
            ASSERT_LE(p.shard_costs->nanoseconds(part),
                      p.shard_costs->nanoseconds({0, p.jobs()}) / count + largest + 1);
          }
        }
        p.options.shard_index = count;
        ASSERT_EQ(p.shard_jobs().end, p.jobs());
      }
    }
  }
}

TEST_F(ShardCostsTest, EqualTimesGiveTheSameShardsAsNumbers) {
  Plan p = plan();
  std::vector<Row> rows = flat(p, 60);
  for (const Index tokens : {37, 24}) {
    for (const Row& row : flat(p, tokens)) {
      rows.push_back(row);
    }
  }
  const auto costs = std::make_shared<ShardCosts>(calibrated(p, as_table(rows)));
  for (const Index count : {1, 2, 3, 4, 5, 6, 12}) {  // that divide the jobs
    p.options.shard_count = count;
    for (Index i = 1; i <= count && p.jobs() % count == 0; ++i) {
      p.options.shard_index = i;
      p.shard_costs = nullptr;
      const Range by_number = p.shard_jobs();
      p.shard_costs = costs;
      EXPECT_EQ(p.shard_jobs(), by_number) << i << "/" << count;
    }
  }
}

TEST_F(ShardCostsTest, LongPromptsWeighMore) {
  // One length: time grows as n. Two that grow as n squared: so does the rest.
  const Plan p = plan();
  const auto of_unit = [&](const ShardCosts& costs, Index unit) {
    const auto per_unit = static_cast<Index>(p.entries.size());
    return 1e-9 * static_cast<double>(costs.nanoseconds({unit * per_unit, (unit + 1) * per_unit}));
  };
  const auto per_unit = static_cast<double>(p.entries.size());
  const ShardCosts linear = calibrated(p, as_table(flat(p)));
  EXPECT_NEAR(of_unit(linear, 0), per_unit, 1e-6);
  EXPECT_NEAR(of_unit(linear, 4), per_unit * 37 / 60, 1e-6);
  std::vector<Row> rows = flat(p);
  for (Row row : flat(p, 120)) {
    row.compress_ms *= 4.0;
    rows.push_back(row);
  }
  const ShardCosts square = calibrated(p, as_table(rows));
  EXPECT_NEAR(of_unit(square, 4), per_unit * 37 * 37 / 60 / 60, 1e-6);
}

TEST_F(ShardCostsTest, EntriesThatTheTableLacksAreNamed) {
  const Plan p = plan();
  std::vector<Row> rows = flat(p);
  std::erase_if(rows, [](const Row& r) { return r.algorithm == "local"; });
  // Rows that do not count: of another protocol, another device, and failed ones.
  for (const Entry& e : p.entries) {
    for (int i = 0; i < 9; ++i) {
      rows.push_back(timed(p, e, 60, 1e6, 0.0));
      Row& row = rows.back();
      row.protocol = i % 3 == 0 ? "stream" : "prefill";
      row.device = i % 3 == 1 ? "cuda:0" : "cpu";
      row.status = i % 3 == 2 ? "failed: of itself" : "ok";
    }
  }
  const ShardCosts costs = calibrated(p, as_table(rows));
  EXPECT_EQ(costs.notes(),
            (std::vector<std::string>{
                "note: --shard-costs made_up.csv: no time for local:T=auto;tokens=auto at budget "
                "0.25; it gets the median of the others",
                "note: --shard-costs made_up.csv: no time for local:T=auto;tokens=auto at budget "
                "0.5; it gets the median of the others"}));
  EXPECT_EQ(p.entries.size(), 9U);
  EXPECT_EQ(costs.nanoseconds({0, 9}), 9 * Index{1000000000});
}

TEST_F(ShardCostsTest, RefusesTablesThatSayNothingInOneLine) {
  const Plan p = plan();
  const auto refused = [&](const std::string& part, const std::string& column,
                           const std::string& text) {
    Table table = as_table(flat(p));
    table.rows[1][column_index(column)] = text;
    expect_refusal([&] { calibrated(p, table); }, "--shard-costs made_up.csv: row 2: column " +
                                                      column + ": got '" + text + "', expected " +
                                                      part);
  };
  refused("a time", "compress_ms", "-1");
  refused("a time", "compress_ms", "");
  refused("a time", "attend_us_per_query", "inf");
  refused("a count", "n_tokens", "0");
  refused("a count", "n_queries", "x");
  refused("1.x", "schema", "2.0");
  const auto all = [&](const std::string& part, const std::string& column,
                       const std::string& text) {
    Table table = as_table(flat(p));
    for (Fields& row : table.rows) {
      row[column_index(column)] = text;
    }
    expect_refusal([&] { calibrated(p, table); }, part);
  };
  all("no row of this plan", "algorithm", "h2o");
  all("no row of this plan", "protocol", "stream");
  all("all times are 0", "compress_ms", "0");
  all("expected less", "compress_ms", "1e300");
  Table narrow = as_table(flat(p));
  narrow.header[column_index("compress_ms")] = "time";
  expect_refusal([&] { calibrated(p, narrow); }, "compress_ms");
}

TEST_F(ShardCostsTest, ThePlanIsTheSame) {
  const Plan by_number = plan();
  ReplayOptions o = by_number.options;
  o.shard_costs = (folder_ / "costs.csv").string();
  expect_refusal([&] { make_plan(o); }, "costs.csv");
  const Table table = as_table(flat(by_number));
  CsvWriter(o.shard_costs, table.header, CsvWriter::Mode::create, "0123456789ab")
      .append(table.rows);
  const Plan by_time = make_plan(o);
  ASSERT_NE(by_time.shard_costs, nullptr);
  EXPECT_EQ(by_time.hash(), by_number.hash());
}

}  // namespace
}  // namespace kvbench::test_shard_costs
