// One job with methods made for the test: statuses, what a method is shown, figures against a naive
// estimator. Windows and budgets: test_windows.cpp; the contract: test_contract.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "core/error.hpp"
#include "held_sets.hpp"
#include "make_trace.hpp"
#include "replay/job.hpp"
#include "replay/planner.hpp"
#include "replay/windows.hpp"
#include "report_rows.hpp"

namespace kvbench::test_job {
namespace {

using testing_replay::make_trace;
using testing_replay::TraceShape;
using testing_rows::test_folder;

using Compress = Compressed (*)(const Task&, const Params&);

Compressed keep_all(const Task& task, const Params&) {
  Compressed c;
  c.held.tokens.assign(task.tokens.begin(), task.tokens.end());
  return c;
}

class JobTest : public ::testing::Test {
 protected:
  static ReplayOptions options() {
    ReplayOptions o;
    o.algorithms = {"exact"};
    o.sink = 3;
    o.recent = 9;
    o.queries = 7;
    o.precision = Precision::float64;  // references have no other
    return o;
  }

  /// Rows of one KV head (the second) for a method of the test's own.
  std::vector<Row> run(Compress compress, std::optional<double> budget = std::nullopt,
                       const TraceShape& shape = {}, ReplayOptions o = options()) {
    method_ = Method{};
    method_.info.name = "made-up";
    method_.info.facts = [this](const Params&) { return JobFacts{.evaluated = sees_evaluated_}; };
    method_.compress = compress;
    o.traces = {make_trace(test_folder() / "t.h5", shape)};
    Plan plan = make_plan(o);
    plan.variants = {{&method_, Params("made-up", {}, {})}};
    plan.entries = {{0, budget, 5}};
    const HeadContext context(plan, plan.units.at(1), 1);
    head_ = context.head();
    windows_ = context.windows();
    std::vector<Row> rows = run_job(context, plan.entries.front()).rows;
    EXPECT_EQ(rows.size(), plan.units.at(1).q_heads.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].q_head, plan.units.at(1).q_heads[i]);
      EXPECT_EQ(rows[i].kv_head, 1);
      EXPECT_EQ(rows[i].trace, "t.h5");
      EXPECT_EQ(rows[i].prompt, "p0");
      EXPECT_EQ(rows[i].algorithm, "made-up");
      EXPECT_EQ(rows[i].n_tokens, head_.n());
      EXPECT_EQ(rows[i].budget_requested, budget);
      EXPECT_EQ(rows[i].full_bytes, head_.n() * head_.pair_bytes());
    }
    return rows;
  }

  /// All rows have this status, one line, and nothing measured.
  static void expect_blank(const std::vector<Row>& rows, const std::string& status) {
    for (const Row& row : rows) {
      EXPECT_EQ(row.status, status);
      const Fields fields = to_fields(row);
      for (std::size_t i = 0; i < columns().size(); ++i) {
        const Column& c = columns()[i];
        EXPECT_EQ(fields[i].find('\n'), std::string::npos) << c.name;
        if (c.measured) {
          EXPECT_EQ(fields[i], "") << c.name;
        } else if (c.name != "budget_requested" && c.name != "params" && c.name != "diag" &&
                   c.name != "scoring_queries" && c.name != "run_id" && c.name != "row_crc") {
          EXPECT_NE(fields[i], "") << c.name;
        }
      }
      EXPECT_EQ(row.diag, "");
    }
  }

  Method method_;
  bool sees_evaluated_ = false;
  KvHead head_;
  Windows windows_;
};

TEST_F(JobTest, WhatGoesWrongBecomesAStatusOfOneLine) {
  expect_blank(run([](const Task&, const Params&) -> Compressed {
                 throw std::runtime_error("went wrong\r\nin two lines");
               }),
               "failed: went wrong  in two lines");
  expect_blank(
      run([](const Task&, const Params&) -> Compressed { throw InputError("no such size"); }),
      "failed: no such size");
  expect_blank(
      run([](const Task&,
             const Params&) -> Compressed { throw Infeasible("needs 100 bytes,\nbudget 7", 100); },
          0.25),
      "infeasible: needs 100 bytes, budget 7");
  expect_blank(run([](const Task& task, const Params& params) {
                 Compressed c = keep_all(task, params);
                 c.held.tokens.front() = 0;  // a sink
                 return c;
               }),
               "failed: held tokens among the task's");
}

// It says nothing of the method: no row (test_lacking_memory.cpp).
TEST_F(JobTest, RunningOutOfMemoryOrThreadsIsThrown) {
  EXPECT_THROW(run([](const Task&, const Params&) -> Compressed { throw std::bad_alloc(); }),
               OutOfMemory);
  EXPECT_THROW(run([](const Task&, const Params&) -> Compressed {
                 throw std::system_error(std::make_error_code(std::errc::too_many_files_open));
               }),
               IoError);
}

// 36 tokens of the middle, 28 bytes each; half of them meet a budget of 0.5 to the byte.
Compressed keep_half(const Task& task, const Params&) {
  Compressed c;
  c.held.tokens.assign(task.tokens.begin(), task.tokens.begin() + task.count() / 2);
  return c;
}

TEST_F(JobTest, OneByteOverTheBudgetFails) {
  for (const Row& row : run(keep_half, 0.5)) {
    EXPECT_EQ(row.status, "ok");
    EXPECT_EQ(row.middle_ratio, 0.5);
  }
  expect_blank(run(
                   [](const Task& task, const Params& params) {
                     Compressed c = keep_half(task, params);
                     c.aux_bytes = 1;
                     return c;
                   },
                   0.5),
               "failed: 505 bytes held for the middle, budget 504");
  for (const Row& row : run(keep_all, 0.5)) {
    EXPECT_EQ(status_kind(row.status), "failed");
  }
  // Without a budget the bytes are simply reported.
  for (const Row& row : run(keep_all)) {
    EXPECT_EQ(row.status, "ok");
    EXPECT_EQ(row.bytes, row.full_bytes);
  }
}

TEST_F(JobTest, TheTaskIsTheMiddleWithItsBudget) {
  static Index count = 0;
  static Index first = 0;
  static Index last = 0;
  static Index budget = 0;
  static Range scoring;
  static bool saw_mass = false;
  const Compress look = [](const Task& task, const Params&) {
    count = task.count();
    first = task.tokens.front();
    last = task.tokens.back();
    budget = task.budget_bytes.value_or(-1);
    scoring = task.scoring;
    saw_mass = !task.true_mass.empty();
    return Compressed{};
  };
  run(look, 0.29);
  EXPECT_EQ(count, 36);
  EXPECT_EQ(first, 3);
  EXPECT_EQ(last, 38);
  EXPECT_EQ(budget, 292);  // floor(0.29 * 36 * 28)
  EXPECT_EQ(scoring, (Range{0, 41}));
  EXPECT_FALSE(saw_mass);
  run(look);
  EXPECT_EQ(budget, -1);
}

TEST_F(JobTest, OnlyAnOracleSeesTheEvaluatedQueries) {
  static std::vector<double> mass;
  sees_evaluated_ = true;
  run([](const Task& task, const Params&) {
    mass.assign(task.true_mass.begin(), task.true_mass.end());
    return Compressed{};
  });
  ASSERT_EQ(mass.size(), 48U);
  double sum = 0.0;
  for (const double x : mass) {
    sum += x;
  }
  EXPECT_NEAR(sum, 1.0, 1e-12);
}

TEST_F(JobTest, TheWholeCacheHasNoErrorButRounding) {
  for (const DType type : {DType::float16, DType::bfloat16, DType::float32}) {
    for (const auto& [precision, rounding] :
         {std::pair{Precision::float64, 1e-12}, {Precision::float32, 1e-6}}) {
      ReplayOptions o = options();
      o.precision = precision;
      for (const Row& row : run(keep_all, std::nullopt, {.dtype = type}, o)) {
        EXPECT_EQ(row.status, "ok");
        EXPECT_TRUE(row.rel_error <= rounding) << row.rel_error;
        EXPECT_TRUE(row.rel_error_max <= rounding) << row.rel_error_max;
        EXPECT_TRUE(row.log_z_error <= rounding) << row.log_z_error;
        EXPECT_NEAR(row.mass_kept, 1.0, 1e-12);
        EXPECT_NEAR(row.cosine, 1.0, 1e-12);
        EXPECT_EQ(row.amnesia_count, 0);
        EXPECT_EQ(row.tokens_kept, 48);
        EXPECT_EQ(row.ratio, 1.0);
        EXPECT_GE(row.compress_ms, 0.0);
      }
    }
  }
}

TEST_F(JobTest, AMethodsOwnFiguresGoNowhereButToDiag) {
  const auto rows = run([](const Task&, const Params&) {
    Compressed c;
    c.diag = {{"rel_error", "0"}, {"mass_kept", "1"}};
    return c;
  });
  for (const Row& row : rows) {
    EXPECT_EQ(row.diag, "rel_error=0;mass_kept=1");
    EXPECT_GT(row.rel_error, 0.01);
    EXPECT_LT(row.mass_kept, 0.9);
    EXPECT_EQ(row.tokens_kept, 12);
    EXPECT_EQ(row.middle_ratio, 0.0);
  }
}

TEST_F(JobTest, AnEmptyMiddleAsksNoMethod) {
  const Compress never = [](const Task&, const Params&) -> Compressed {
    throw std::logic_error("asked");
  };
  for (const Index n : {1, 2, 11, 12}) {  // sink and recent make 12
    for (const Row& row : run(never, 0.5, {.tokens = {n}})) {
      EXPECT_EQ(row.status, "degenerate: empty middle");
      EXPECT_TRUE(row.rel_error <= 1e-12) << row.rel_error;
      EXPECT_EQ(row.middle_ratio, 1.0);
      EXPECT_EQ(row.bytes, row.full_bytes);
      EXPECT_EQ(row.n_queries, std::min<Index>(7, n));
    }
  }
  for (const Row& row : run(never, 0.5, {.tokens = {13}})) {
    EXPECT_EQ(row.status, "failed: asked");
  }
}

TEST_F(JobTest, ZeroOutputsAreSaidInTheStatus) {
  const TraceShape zeros{.value_scale = 0.0F};
  for (const Row& row : run(keep_half, std::nullopt, zeros)) {
    EXPECT_EQ(row.status, "ok");
    EXPECT_EQ(row.rel_error, 0.0);
  }
  const auto rows = run(
      [](const Task& task, const Params&) {
        Compressed c;
        c.made.k = Matrix(1, task.head.d());
        c.made.v = Matrix(1, task.head.dv());
        c.made.v.row(0)[0] = 1.0F;
        return c;
      },
      std::nullopt, zeros);
  for (const Row& row : rows) {
    EXPECT_EQ(status_kind(row.status), "degenerate") << row.status;
    EXPECT_EQ(row.rel_error, std::numeric_limits<double>::infinity());
  }
}

// Every third token held with weights of its own, one made token, another set in the denominator.
Compressed everything(const Task& task, const Params&) {
  Compressed c;
  Denominator d;
  for (Index i = 0; i < task.count(); ++i) {
    const Index token = task.tokens[i];
    if (i % 3 == 0) {
      c.held.tokens.push_back(token);
      c.held.weights.push_back(0.5F * static_cast<float>(i % 5));
    }
    if (i % 4 == 1) {
      d.held.tokens.push_back(token);
    }
  }
  d.held.common = 3.25F;
  c.made.k = Matrix(2, task.head.d());
  c.made.v = Matrix(2, task.head.dv());
  for (Index t = 0; t < task.head.d(); ++t) {
    c.made.k.row(1)[t] = 0.25F;
  }
  c.made.v.row(0)[1] = -2.0F;
  c.made.weights = {1.5F, 2.0F};
  d.made.k = Matrix(1, task.head.d());
  d.made.weights = {4.0F};
  c.denominator = d;
  return c;
}

TEST_F(JobTest, FiguresAgreeWithANaiveEstimator) {
  for (const Index nq : {0, 5}) {  // all queries stored; fewer than are to be evaluated
    const std::vector<Row> rows = run(everything, std::nullopt, {.nq = nq});
    std::vector<Index> middle;
    for (Index i = windows_.middle.begin; i < windows_.middle.end; ++i) {
      middle.push_back(i);
    }
    const Compressed c =
        everything({head_, middle, std::nullopt, windows_.scoring, {}, Rng()}, Params());
    for (std::size_t g = 0; g < rows.size(); ++g) {
      const Row& row = rows[g];
      ASSERT_EQ(row.n_queries, nq == 0 ? 7 : 5);
      reference::Real mass = 0;
      const auto q_head = static_cast<Index>(g);
      const SlowErrors slow = slow_errors(head_, q_head, row.n_queries, [&](Index position) {
        std::vector<Index> exact;  // sinks and recent tokens that the query sees
        for (Index i = 0; i <= position; ++i) {
          if (!windows_.middle.contains(i)) {
            exact.push_back(i);
          }
        }
        const HeldSets sets = held_sets(head_, exact, c);
        const reference::Attention a = reference::attention(head_, q_head, position);
        exact.insert(exact.end(), c.held.tokens.begin(), c.held.tokens.end());
        for (const Index i : exact) {
          mass += a.p[i];
        }
        return sets;
      });
      const auto m = static_cast<reference::Real>(row.n_queries);
      EXPECT_EQ(row.status, "ok");
      EXPECT_NEAR(row.rel_error, slow.rel_error, 1e-11);
      EXPECT_NEAR(row.log_z_error, slow.log_z_error, 1e-11);
      EXPECT_NEAR(row.mass_kept, static_cast<double>(mass / m), 1e-11);
      EXPECT_EQ(row.tokens_kept, 12 + static_cast<Index>(c.held.tokens.size()));
      // Pairs held and made, and the keys that the denominator alone stores.
      const auto pairs = static_cast<Index>(c.held.tokens.size()) + 2;
      const auto keys = static_cast<Index>(c.denominator->held.tokens.size()) + 1;
      EXPECT_EQ(row.bytes, (12 + pairs) * 28 + keys * 16);
    }
  }
}

TEST_F(JobTest, ADenominatorOfTheSameKeysStoresThemOnce) {
  const auto rows = run([](const Task& task, const Params& params) {
    Compressed c = keep_half(task, params);
    c.denominator = Denominator{};
    c.denominator->held.tokens = c.held.tokens;
    c.denominator->held.common = 2.0F;
    c.denominator->same_keys = true;
    return c;
  });
  for (const Row& row : rows) {
    EXPECT_EQ(row.bytes, (12 + 18) * 28);
  }
}

}  // namespace
}  // namespace kvbench::test_job
