// The stream protocol on one head: one job with caches made for the test against a slow harness in
// long double that starts from nothing at every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "held_sets.hpp"
#include "make_trace.hpp"
#include "replay/planner.hpp"
#include "replay/stream_job.hpp"
#include "report_rows.hpp"
#include "stream_caches.hpp"

namespace kvbench::test_stream_job {
namespace {

using testing_replay::make_trace;
using testing_replay::TraceShape;
using testing_rows::test_folder;
using namespace testing_stream;

// float64 sums of a few dozen terms against long double.
constexpr double kRounding = 1e-11;

class StreamJobTest : public ::testing::Test {
 protected:
  static ReplayOptions options() {
    ReplayOptions o;
    o.algorithms = {"exact"};
    o.protocol = Protocol::stream;
    o.sink = 0;
    o.recent = 7;
    o.queries = 5;
    o.eval_every = 6;
    o.precision = Precision::float64;  // references have no other
    return o;
  }

  /// The second KV head of a trace.
  JobResult run(const Method& method, std::optional<double> budget = std::nullopt,
                ReplayOptions o = options(), TraceShape shape = {}) {
    shape.tokens = {shape.tokens.front() == 48 ? 40 : shape.tokens.front()};
    o.traces = {make_trace(test_folder() / "t.h5", shape)};
    Plan plan = make_plan(o);
    plan.variants = {{&method, Params("made-up", {}, {})}};
    plan.entries = {{0, budget, 5}};
    const StreamContext context(plan, plan.units.back(), 2);
    head_ = context.head();
    return run_stream_job(context, plan.entries.front());
  }

  KvHead head_;
};

/// The protocol by its definition, for one query head: a row's figures and its steps.
struct Harness {
  std::vector<Step> steps;
  Row row;
};

Harness slow_harness(const KvHead& head, Index g, View make_view, const ReplayOptions& o) {
  const Index n = head.n();
  const auto gi = static_cast<std::size_t>(g);
  const reference::Rows q = reference::rows_of(head.q[gi]);
  const StreamTask task{head, o.recent, std::nullopt, Rng(), cpu_backend(), o.sink};
  Harness out;
  reference::Real moved = 0, exact = 0, log_z = 0, kept = 0, cosine = 0;
  std::set<Index> forgotten;
  std::map<Index, reference::Real> lost;
  std::vector<double> errors;
  Index peak = 0, transient = 0;
  for (Index j = 0; j < n; ++j) {
    const bool counted = j >= n - o.queries;
    if (!counted && (j + 1) % o.eval_every != 0) {
      continue;
    }
    std::vector<Index> left;
    std::vector<Index> exact_tokens;
    for (Index i = 0; i <= j; ++i) {
      (i >= o.sink && i + o.recent <= j ? left : exact_tokens).push_back(i);
    }
    std::set<Index> held(exact_tokens.begin(), exact_tokens.end());
    const auto window = static_cast<Index>(held.size());  // and sinks
    const Compressed c = make_view(task, left, j);
    held.insert(c.held.tokens.begin(), c.held.tokens.end());
    Index bytes =
        (window + static_cast<Index>(c.held.tokens.size()) + c.made.k.rows()) * head.pair_bytes() +
        c.aux_bytes;
    if (c.denominator) {
      const Denominator& d = *c.denominator;
      bytes += (static_cast<Index>(d.held.tokens.size()) + d.made.k.rows()) * head.d() *
               bytes_per_element(head.dtype);
    }
    const HeldSets sets = held_sets(head, exact_tokens, c);
    const reference::Attention a = reference::attention(head, g, j);
    const reference::Estimate z = reference::estimate(q[static_cast<std::size_t>(j)], head.scale,
                                                      sets.numerator, sets.denominator);
    reference::Real m2 = 0, a2 = 0, z2 = 0, az = 0;
    for (std::size_t t = 0; t < a.out.size(); ++t) {
      m2 += (z.z[t] - a.out[t]) * (z.z[t] - a.out[t]);
      a2 += a.out[t] * a.out[t];
      z2 += z.z[t] * z.z[t];
      az += a.out[t] * z.z[t];
    }
    out.steps.push_back({j, static_cast<double>(std::sqrt(m2 / a2)), bytes});
    peak = std::max(peak, bytes);
    transient = std::max(transient, c.transient_bytes);
    if (counted) {
      moved += m2;
      exact += a2;
      log_z += std::abs(z.log_denominator - a.log_z);
      cosine += az / std::sqrt(a2 * z2);
      errors.push_back(out.steps.back().rel_error);
      for (Index i = 0; i <= j; ++i) {
        if (held.count(i) > 0) {
          kept += a.p[i];
        } else {
          lost[i] += a.p[i];
          if (a.p[i] > 0.005L) {
            forgotten.insert(i);
          }
        }
      }
    }
    if (j == n - 1) {
      out.row.bytes = bytes;
      out.row.aux_bytes = c.aux_bytes;
      out.row.tokens_kept = static_cast<Index>(held.size());
      out.row.middle_ratio = static_cast<double>(bytes - window * head.pair_bytes()) /
                             static_cast<double>((n - window) * head.pair_bytes());
    }
  }
  const auto m = static_cast<reference::Real>(o.queries);
  out.row.rel_error = static_cast<double>(std::sqrt(moved / exact));
  out.row.rel_error_max = *std::max_element(errors.begin(), errors.end());
  out.row.rel_error_p95 = static_cast<double>(reference::percentile(errors, 0.95L));
  out.row.log_z_error = static_cast<double>(log_z / m);
  out.row.cosine = static_cast<double>(cosine / m);
  out.row.mass_kept = static_cast<double>(kept / m);
  out.row.amnesia_count = static_cast<Index>(forgotten.size());
  out.row.amnesia_mass = 0.0;
  for (const Index i : forgotten) {
    out.row.amnesia_mass += static_cast<double>(lost[i] / m);
  }
  out.row.peak_bytes = peak;
  out.row.transient_bytes = transient;
  return out;
}

void expect_like(const JobResult& got, const KvHead& head, View view, const ReplayOptions& o) {
  for (std::size_t h = 0; h < got.rows.size(); ++h) {
    const Row& row = got.rows[h];
    const Harness slow = slow_harness(head, row.q_head - row.kv_head * head.group(), view, o);
    ASSERT_EQ(got.steps[h].size(), slow.steps.size());
    for (std::size_t s = 0; s < slow.steps.size(); ++s) {
      EXPECT_EQ(got.steps[h][s].position, slow.steps[s].position);
      EXPECT_EQ(got.steps[h][s].bytes, slow.steps[s].bytes);
      EXPECT_NEAR(got.steps[h][s].rel_error, slow.steps[s].rel_error, kRounding);
    }
    EXPECT_EQ(row.status, "ok");
    EXPECT_NEAR(row.rel_error, slow.row.rel_error, kRounding);
    EXPECT_NEAR(row.rel_error_max, slow.row.rel_error_max, kRounding);
    EXPECT_NEAR(row.rel_error_p95, slow.row.rel_error_p95, kRounding);
    EXPECT_NEAR(row.log_z_error, slow.row.log_z_error, kRounding);
    EXPECT_NEAR(row.cosine, slow.row.cosine, kRounding);
    EXPECT_NEAR(row.mass_kept, slow.row.mass_kept, kRounding);
    EXPECT_EQ(row.amnesia_count, slow.row.amnesia_count);
    EXPECT_NEAR(row.amnesia_mass, slow.row.amnesia_mass, kRounding);
    EXPECT_EQ(row.bytes, slow.row.bytes);
    EXPECT_EQ(row.aux_bytes, slow.row.aux_bytes);
    EXPECT_EQ(row.tokens_kept, slow.row.tokens_kept);
    EXPECT_EQ(row.peak_bytes, slow.row.peak_bytes);
    EXPECT_EQ(row.transient_bytes, slow.row.transient_bytes);
    EXPECT_NEAR(row.middle_ratio, slow.row.middle_ratio, kRounding);
    EXPECT_EQ(row.full_bytes, head.n() * head.pair_bytes());
    EXPECT_NEAR(row.ratio, static_cast<double>(row.bytes) / static_cast<double>(row.full_bytes),
                kRounding);
    EXPECT_EQ(row.sink, o.sink);
    EXPECT_EQ(row.protocol, "stream");
    EXPECT_EQ(row.n_queries, o.queries);
    EXPECT_GE(row.compress_ms, 0.0);
    EXPECT_GE(row.attend_us_per_query, 0.0);
  }
}

TEST_F(StreamJobTest, EqualsTheSlowHarness) {
  std::vector<ReplayOptions> cases(9, options());
  cases[1].recent = 0;
  cases[1].eval_every = 4;
  cases[2].recent = 3;  // fewer than the queries
  cases[2].queries = 38;
  cases[3].heads = {3};  // one of the group's two
  cases[3].eval_every = 1;
  cases[4].recent = 39;
  cases[5].sink = 4;
  cases[6].sink = 12;  // more than the first steps have tokens, and more than the window
  cases[6].eval_every = 1;
  cases[7].sink = 5;
  cases[7].recent = 0;
  cases[8].sink = 32;  // one token is left between the two
  const Method method = made_method<everything>();
  for (const ReplayOptions& o : cases) {
    const JobResult got = run(method, std::nullopt, o);
    EXPECT_EQ(got.rows.size(), o.heads.empty() ? 2U : 1U);
    expect_like(got, head_, everything, o);
    EXPECT_EQ(got.rows.back().diag, "left=" + std::to_string(40 - o.recent - o.sink) + ";last=39");
  }
  ReplayOptions o = options();
  o.sink = 3;
  const JobResult windows = run(made_method<keep_none>(), std::nullopt, o);
  expect_like(windows, head_, keep_none, o);
  EXPECT_GT(windows.rows[0].rel_error, 0.01);
  EXPECT_GT(windows.rows[0].amnesia_count, 0);
}

TEST_F(StreamJobTest, TheWholeCacheHasNoErrorAtAnyStep) {
  const Method method = made_method<keep_all>();
  struct Case {
    Index n, sink, recent;
  };
  std::vector<Case> cases;
  for (const auto& [sink, recent] : {std::pair<Index, Index>{0, 0},
                                     {0, 7},
                                     {0, 40},
                                     {0, 100},
                                     {3, 0},
                                     {3, 7},
                                     {32, 7},
                                     {33, 7},
                                     {20, 30},
                                     {40, 0},
                                     {100, 0},
                                     {100, 100}}) {
    cases.push_back({40, sink, recent});
  }
  for (const Index n : {1, 2, 3, 7, 8, 9}) {
    for (const Index sink : {0, 1, 2, 20}) {
      cases.push_back({n, sink, 7});
    }
  }
  for (const auto& [n, sink, recent] : cases) {
    ReplayOptions o = options();
    o.sink = sink;
    o.recent = recent;
    const JobResult got = run(method, 1.0, o, {.tokens = {n}});
    for (std::size_t h = 0; h < 2; ++h) {
      const Row& row = got.rows[h];
      EXPECT_EQ(row.status, sink + recent >= n ? "degenerate: empty middle" : "ok");
      EXPECT_EQ(got.steps[h].back().position, n - 1);
      EXPECT_EQ(row.n_queries, std::min<Index>(n, 5));
      for (const Step& s : got.steps[h]) {
        EXPECT_LE(s.rel_error, 1e-13);
        EXPECT_EQ(s.bytes, (s.position + 1) * head_.pair_bytes());
      }
      EXPECT_LE(row.rel_error_max, 1e-13);
      EXPECT_NEAR(row.mass_kept, 1.0, 1e-13);
      EXPECT_EQ(row.amnesia_count, 0);
      EXPECT_EQ(row.amnesia_mass, 0.0);
      EXPECT_EQ(row.bytes, row.full_bytes);
      EXPECT_EQ(row.peak_bytes, row.full_bytes);
      EXPECT_EQ(row.middle_ratio, 1.0);
      EXPECT_EQ(row.tokens_kept, n);
    }
  }
}

std::optional<Index> given;
Index given_sink = -1;

Compressed tells_its_budget(const StreamTask& task, const std::vector<Index>&, Index) {
  given = task.budget_bytes;
  given_sink = task.sink;
  return {};
}

TEST_F(StreamJobTest, BudgetsAreOfTheWholeStreamAndLeaveTheMethodWhatSinksAndWindowDoNot) {
  const Method method = made_method<tells_its_budget>();
  run(method, 0.5);
  const Index pair = head_.pair_bytes();
  EXPECT_EQ(given, 20 * pair - 7 * pair);
  EXPECT_EQ(given_sink, 0);
  ReplayOptions sinks = options();
  sinks.sink = 4;
  run(method, 0.5, sinks);
  EXPECT_EQ(given, 20 * pair - 11 * pair);
  EXPECT_EQ(given_sink, 4);
  EXPECT_EQ(run(method, 11.0 / 40, sinks).rows[0].status, "ok");
  EXPECT_EQ(given, 0);
  EXPECT_EQ(run(method, 0.27, sinks).rows[0].status,  // 10.8 tokens
            "infeasible: sinks and recent window need " + std::to_string(11 * pair) +
                " bytes, budget " + std::to_string(budget_bytes(0.27, 40 * pair)) +
                " for the stream");
  sinks.sink = 1000;
  EXPECT_EQ(status_kind(run(method, 0.99, sinks).rows[0].status), "infeasible");
  EXPECT_EQ(status_kind(run(method, 1.0, sinks).rows[0].status), "degenerate");
  run(method);
  EXPECT_EQ(given, std::nullopt);
  EXPECT_EQ(run(method, 7.0 / 40).rows[0].status, "ok");
  EXPECT_EQ(given, 0);
  const JobResult none = run(method, 0.17);  // 6.8 tokens
  EXPECT_TRUE(none.steps.empty());
  EXPECT_EQ(status_kind(none.rows[1].status), "infeasible");
}

TEST_F(StreamJobTest, WhatAMethodDoesWrongIsTheRowsStatus) {
  const auto status = [&](const Method& m) {
    const JobResult r = run(m, 0.5);
    EXPECT_EQ(r.rows.size(), 2U);
    EXPECT_EQ(r.rows[0].status, r.rows[1].status);
    EXPECT_TRUE(r.steps.empty());
    EXPECT_TRUE(to_fields(r.rows[0])[column_index("rel_error")].empty());
    return r.rows[0].status;
  };
  EXPECT_EQ(status(made_method<greedy_once>()), "failed: " + std::to_string(20 * 28 + 1) +
                                                    " bytes held at position 23, budget " +
                                                    std::to_string(20 * 28));
  EXPECT_EQ(status(made_method<ahead>()), "failed: held tokens among the task's");
  EXPECT_EQ(status(made_method<throws_late>()), "failed: two lines");
  Method refuses;
  refuses.open_stream = [](const StreamTask&, const Params&) -> std::unique_ptr<StreamCache> {
    throw Infeasible("needs 9 bytes, budget 3", 9);
  };
  EXPECT_EQ(status(refuses), "infeasible: needs 9 bytes, budget 3");
}

// Sinks are the protocol's: a method that holds one too would count it twice.
TEST_F(StreamJobTest, ASinkIsNotAMethodsToHold) {
  ReplayOptions o = options();
  EXPECT_EQ(run(made_method<first>(), std::nullopt, o).rows[0].status, "ok");
  o.sink = 1;
  EXPECT_EQ(run(made_method<first>(), std::nullopt, o).rows[0].status,
            "failed: held tokens among the task's");
}

TEST_F(StreamJobTest, KeptSetsHoldSinksAndWindowOnce) {
  ReplayOptions o = options();
  o.kept = true;
  o.sink = 9;
  const JobResult r = run(made_method<keep_none>(), std::nullopt, o);
  EXPECT_EQ(r.kept.size(), 7U);  // 5, 11, ..., 35, and 39
  for (const KeptSet& set : r.kept) {
    std::vector<Index> expected;
    for (Index i = 0; i <= set.position; ++i) {
      if (i < 9 || i > set.position - 7) {
        expected.push_back(i);
      }
    }
    EXPECT_EQ(set.tokens, expected) << set.position;
  }
}

TEST_F(StreamJobTest, NothingHeldIsDegenerateAndStillHasItsSteps) {
  ReplayOptions o = options();
  o.recent = 0;
  const JobResult r = run(made_method<keep_none>(), 0.0, o);
  EXPECT_EQ(r.rows[0].status, "degenerate: denominator is 0 or not finite for 5 of 5 queries");
  EXPECT_EQ(r.rows[0].mass_kept, 0.0);
  EXPECT_EQ(r.rows[0].peak_bytes, 0);
  EXPECT_TRUE(std::isnan(r.steps[0][0].rel_error));
  EXPECT_TRUE(std::isnan(r.rows[0].rel_error));
}

}  // namespace
}  // namespace kvbench::test_stream_job
