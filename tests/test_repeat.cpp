// --repeat: times are medians over runs after one to warm up; all else is what one run gives.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "replay/repeat.hpp"
#include "replay_run.hpp"
#include "report/manifest.hpp"

namespace kvbench::test_repeat {
namespace {

using namespace testing_replay;

// Gives a job's results one after another; two rows, whose times are these and ten times these.
class Scripted {
 public:
  Scripted(std::deque<double> times, std::string status = "ok")
      : times_(std::move(times)), status_(std::move(status)) {}

  JobResult operator()() {
    const double t = times_.at(0);
    times_.pop_front();
    JobResult out;
    for (const double factor : {1.0, 10.0}) {
      Row row;
      row.status = status_;
      row.compress_ms = factor * t;
      row.attend_us_per_query = 1000.0 * factor * t;
      out.rows.push_back(row);
    }
    out.kept.push_back({7, {0, 3}});
    out.cache.emplace();
    out.cache->compress_ms = t;
    return out;
  }

  std::size_t left() const { return times_.size(); }

 private:
  std::deque<double> times_;
  std::string status_;
};

TEST(RepeatJob, TimesAreMediansAndQuartilesWithoutTheFirst) {
  Scripted job({1000, 4, 1, 2, 8});
  const JobResult got = repeat_job(4, [&] { return job(); });
  EXPECT_EQ(job.left(), 0U);
  ASSERT_EQ(got.rows.size(), 2U);
  // Of 1, 2, 4, 8: the quartiles lie at 1.75 and 5.
  EXPECT_EQ(got.rows[0].compress_ms, 3.0);
  EXPECT_EQ(got.rows[0].compress_ms_iqr, std::optional(3.25));
  EXPECT_EQ(got.rows[1].compress_ms, 30.0);
  EXPECT_EQ(got.rows[1].compress_ms_iqr, std::optional(32.5));
  EXPECT_EQ(got.rows[0].attend_us_per_query, 3000.0);
  EXPECT_EQ(got.rows[1].attend_us_per_query_iqr, std::optional(32500.0));
  ASSERT_TRUE(got.cache);
  EXPECT_EQ(got.cache->compress_ms, std::optional(3.0));
  EXPECT_EQ(got.kept, (std::vector<KeptSet>{{7, {0, 3}}}));
}

TEST(RepeatJob, OneRunIsNotWarmedUpAndHasNoSpread) {
  Scripted job({5, 6});
  const JobResult got = repeat_job(1, [&] { return job(); });
  EXPECT_EQ(job.left(), 1U);
  EXPECT_EQ(got.rows[0].compress_ms, 5.0);
  EXPECT_FALSE(got.rows[0].compress_ms_iqr || got.rows[0].attend_us_per_query_iqr);
}

TEST(RepeatJob, WhatWasNotMeasuredRunsOnce) {
  for (const char* status : {"infeasible: too small", "failed: no"}) {
    Scripted job({5, 6, 7}, status);
    const JobResult got = repeat_job(2, [&] { return job(); });
    EXPECT_EQ(job.left(), 2U) << status;
    EXPECT_FALSE(got.rows[0].compress_ms_iqr) << status;
  }
  Scripted job({5, 6, 7}, "degenerate: empty middle");
  EXPECT_EQ(repeat_job(2, [&] { return job(); }).rows[0].compress_ms, 6.5);
  EXPECT_EQ(job.left(), 0U);
}

class RepeatTest : public RunTest {
 protected:
  std::size_t column(const char* name) const { return column_index(name); }
};

TEST_F(RepeatTest, RowsAreThoseOfOneRunButForTimes) {
  for (const Protocol protocol : {Protocol::prefill, Protocol::stream}) {
    ReplayOptions once = options("once.csv");
    once.algorithms = {"uniform", "h2o", "quant-kivi"};
    once.protocol = protocol;
    once.overwrite = true;
    run(once);
    ReplayOptions thrice = once;
    thrice.out = (folder_ / "thrice.csv").string();
    thrice.repeat = 3;
    thrice.threads = 2;
    run(thrice);
    std::vector<Fields> expected = untimed(once.out);
    std::map<std::string, int> spreads;
    for (Fields& row : expected) {
      EXPECT_EQ(row[column("repeats")], "1");
      row[column("repeats")] = "3";
    }
    expect_same(untimed(thrice.out), expected, std::string(name(protocol)));
    for (const Fields& row : read_table(once.out).rows) {
      EXPECT_EQ(row[column("compress_ms_iqr")] + row[column("attend_us_per_query_iqr")], "");
    }
    for (const Fields& row : read_table(thrice.out).rows) {
      const bool measured = row[column("status")].find("infeasible") != 0;
      for (const char* name : {"compress_ms", "attend_us_per_query"}) {
        const std::string spread = row[column((std::string(name) + "_iqr").c_str())];
        double x = -1.0;
        EXPECT_EQ(parse_number(spread, x), measured) << spread;
        EXPECT_EQ(x >= 0.0, measured) << spread;
        EXPECT_EQ(row[column(name)].empty(), !measured);
        ++spreads[measured ? "measured" : "not"];
      }
    }
    EXPECT_GT(spreads["measured"], 0);
    EXPECT_GT(spreads["not"], 0) << "no setting is infeasible";
  }
}

TEST_F(RepeatTest, ItIsAnOptionOfThePlan) {
  ReplayOptions o = options();
  o.algorithms = {"uniform"};
  run(o);
  o.repeat = 2;
  o.resume = true;
  expect_refusal([&] { run(o); }, "--repeat: got 2, expected 1");
  o.resume = false;
  o.overwrite = true;
  run(o);
  EXPECT_EQ(read_manifest(o.out).configuration.at("repeat"), 2);
  for (const Index bad : {Index{0}, Index{-1}, Index{1001}}) {
    o.repeat = bad;
    expect_refusal([&] { run(o); }, "--repeat: got");
  }
}

}  // namespace
}  // namespace kvbench::test_repeat
