// Windows, budgets, the contract's checks, and one job with methods made for the test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "make_trace.hpp"
#include "replay/job.hpp"
#include "report_rows.hpp"

namespace kvbench {
namespace {

using testing_replay::make_trace;
using testing_replay::TraceShape;
using testing_rows::test_folder;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

ReplayOptions windows(Index sink, Index recent, Index queries, const char* scores = "past") {
  ReplayOptions o;
  o.sink = sink;
  o.recent = recent;
  o.queries = queries;
  o.scores = scores;
  return o;
}

TEST(Windows, ByHand) {
  const Windows w = windows_of(windows(4, 8, 5), 100, 100);
  EXPECT_EQ(w.sink, (Range{0, 4}));
  EXPECT_EQ(w.middle, (Range{4, 92}));
  EXPECT_EQ(w.recent, (Range{92, 100}));
  EXPECT_EQ(w.queries, 5);
  EXPECT_EQ(w.scoring, (Range{0, 95}));
  EXPECT_EQ(windows_of(windows(4, 8, 5, "all"), 100, 100).scoring, (Range{0, 100}));
  // Of 20 stored queries the first 15 may be seen; of 3, none, and only 3 can be evaluated.
  EXPECT_EQ(windows_of(windows(4, 8, 5), 100, 20).scoring, (Range{80, 95}));
  EXPECT_EQ(windows_of(windows(4, 8, 5), 100, 3).scoring.size(), 0);
  EXPECT_EQ(windows_of(windows(4, 8, 5, "all"), 100, 3).scoring, (Range{97, 100}));
  EXPECT_EQ(windows_of(windows(4, 8, 5), 100, 3).queries, 3);
}

TEST(Windows, LegalEdges) {
  const Windows none = windows_of(windows(0, 5, 5), 9, 9);
  EXPECT_EQ(none.sink.size(), 0);
  EXPECT_EQ(none.middle, (Range{0, 4}));
  const Windows one = windows_of(windows(256, 256, 256), 1, 1);
  EXPECT_EQ(one.sink, (Range{0, 1}));
  EXPECT_EQ(one.middle.size(), 0);
  EXPECT_EQ(one.recent.size(), 0);
  EXPECT_EQ(one.queries, 1);
}

TEST(Windows, PartitionTheTokensWhateverTheSizes) {
  for (Index n = 1; n <= 10; ++n) {
    for (Index sink = 0; sink <= 12; ++sink) {
      for (Index recent = 1; recent <= 12; ++recent) {
        for (Index queries = 1; queries <= recent; ++queries) {
          for (Index nq = 1; nq <= n; ++nq) {
            const Windows past = windows_of(windows(sink, recent, queries), n, nq);
            const Windows all = windows_of(windows(sink, recent, queries, "all"), n, nq);
            std::vector<int> covered(static_cast<std::size_t>(n), 0);
            for (const Range r : {past.sink, past.middle, past.recent}) {
              for (Index i = r.begin; i < r.end; ++i) {
                ++covered.at(static_cast<std::size_t>(i));
              }
            }
            ASSERT_EQ(covered, std::vector<int>(static_cast<std::size_t>(n), 1));
            ASSERT_EQ(past.sink.size(), std::min(sink, n));
            ASSERT_EQ(past.middle.size(), std::max<Index>(0, n - sink - recent));
            ASSERT_EQ(past.queries, std::min(queries, nq));
            if (past.middle.size() > 0) {  // every evaluated query sees all of it
              ASSERT_LE(past.middle.end, n - past.queries);
            }
            ASSERT_EQ(past.scoring.size(), nq - past.queries);
            ASSERT_EQ(past.scoring.begin, n - nq);
            ASSERT_EQ(all.scoring, (Range{n - nq, n}));
            ASSERT_EQ(all.middle, past.middle);
          }
        }
      }
    }
  }
}

TEST(BudgetBytes, ProductsThatAreWholeNumbersStayWhole) {
  EXPECT_EQ(budget_bytes(0.29, 100), 29);  // 0.29 * 100 is 28.999999999999996
  EXPECT_EQ(budget_bytes(0.57, 100), 57);  // 56.99999999999999
  EXPECT_EQ(budget_bytes(0.07, 100), 7);   // 7.000000000000001
  EXPECT_EQ(budget_bytes(1.0 / 3.0, 100), 33);
  EXPECT_EQ(budget_bytes(0.5, 7), 3);
  EXPECT_EQ(budget_bytes(0.0, 1000), 0);
  EXPECT_EQ(budget_bytes(1.0, 1000), 1000);
  EXPECT_EQ(budget_bytes(0.5, 0), 0);
}

TEST(BudgetBytes, DecimalFractionsOfAnything) {
  std::mt19937_64 random(11);
  std::uniform_int_distribution<Index> sizes(1, 1LL << 36);
  for (int i = 0; i < 20000; ++i) {
    const Index full = i < 4000 ? i : sizes(random);
    const auto p = static_cast<Index>(random() % 1001);
    const double rho = static_cast<double>(p) / 1000.0;
    ASSERT_EQ(budget_bytes(rho, full), p * full / 1000) << rho << " of " << full;
  }
}

TEST(BudgetBytes, IsTheFloor) {
  std::mt19937_64 random(12);
  std::uniform_real_distribution<double> fractions(0.0, 1.0);
  for (int i = 0; i < 20000; ++i) {
    const double rho = fractions(random);
    const auto full = static_cast<Index>(random() % 2048);
    // 53 and 11 bits: the product is exact in the 64 bits of x87's long double.
    const long double exact = static_cast<long double>(rho) * static_cast<long double>(full);
    ASSERT_EQ(budget_bytes(rho, full), static_cast<Index>(std::floor(exact)));
  }
}

// ------------------------------------------------------------------------------ check_compressed

class ContractTest : public ::testing::Test {
 protected:
  ContractTest() {
    head_.k = Matrix(8, 4);
    head_.v = Matrix(8, 3);
    head_.q = {Matrix(8, 4)};
  }

  Task task() const { return {head_, tokens_, std::nullopt, {0, 8}, {}, Rng()}; }

  static Compressed good() {
    Compressed c;
    c.held.tokens = {2, 5};
    c.held.weights = {1.0F, 0.0F};
    c.made.k = Matrix(2, 4);
    c.made.v = Matrix(2, 3);
    c.made.weights = {2.0F, 0.5F};
    c.aux_bytes = 16;
    c.payload_bytes = 0;
    Denominator d;
    d.held.tokens = {3};
    d.made.k = Matrix(1, 4);
    c.denominator = d;
    return c;
  }

  KvHead head_;
  std::vector<Index> tokens_{2, 3, 5, 6};
};

TEST_F(ContractTest, AcceptsWhatIsAllowed) {
  EXPECT_NO_THROW(check_compressed(good(), task()));
  EXPECT_NO_THROW(check_compressed(Compressed{}, task()));
  Compressed all;
  all.held.tokens = tokens_;
  all.held.common = 3.5F;
  EXPECT_NO_THROW(check_compressed(all, task()));
  all.denominator = Denominator{};
  all.denominator->held.tokens = tokens_;
  all.denominator->held.weights = {1, 2, 3, 4};
  all.denominator->same_keys = true;
  EXPECT_NO_THROW(check_compressed(all, task()));
}

TEST_F(ContractTest, RefusesEveryBreach) {
  struct Breach {
    const char* what;
    std::function<void(Compressed&)> make;
  };
  const std::vector<Breach> breaches{
      {"held out of order",
       [](auto& c) {
         c.held.tokens = {5, 2};
       }},
      {"held twice",
       [](auto& c) {
         c.held.tokens = {2, 2};
       }},
      {"held outside the task",
       [](auto& c) {
         c.held.tokens = {2, 4};
       }},
      {"held beyond the prompt",
       [](auto& c) {
         c.held.tokens = {2, 100};
       }},
      {"held before the prompt",
       [](auto& c) {
         c.held.tokens = {-1, 2};
       }},
      {"one weight for two", [](auto& c) { c.held.weights = {1.0F}; }},
      {"three weights for two",
       [](auto& c) {
         c.held.weights = {1, 1, 1};
       }},
      {"negative weight", [](auto& c) { c.held.weights[1] = -1.0F; }},
      {"NaN weight", [](auto& c) { c.held.weights[0] = kNan; }},
      {"infinite weight", [](auto& c) { c.held.weights[1] = kInfinity; }},
      {"NaN common weight", [](auto& c) { c.held.common = kNan; }},
      {"negative common weight", [](auto& c) { c.held.common = -0.5F; }},
      {"infinite common weight", [](auto& c) { c.held.common = kInfinity; }},
      {"made key too wide", [](auto& c) { c.made.k = Matrix(2, 5); }},
      {"made value too wide", [](auto& c) { c.made.v = Matrix(2, 4); }},
      {"fewer made values", [](auto& c) { c.made.v = Matrix(1, 3); }},
      {"no made values", [](auto& c) { c.made.v = Matrix(); }},
      {"made values alone",
       [](auto& c) {
         c.made.k = Matrix();
         c.made.weights.clear();
       }},
      {"made weights too many",
       [](auto& c) {
         c.made.weights = {1, 1, 1};
       }},
      {"made weight negative", [](auto& c) { c.made.weights[0] = -1.0F; }},
      {"made weight NaN", [](auto& c) { c.made.weights[1] = kNan; }},
      {"made key NaN", [](auto& c) { c.made.k.row(1)[3] = kNan; }},
      {"made key infinite", [](auto& c) { c.made.k.row(0)[0] = -kInfinity; }},
      {"made value NaN", [](auto& c) { c.made.v.row(1)[2] = kNan; }},
      {"made value infinite", [](auto& c) { c.made.v.row(0)[0] = kInfinity; }},
      {"negative aux", [](auto& c) { c.aux_bytes = -1; }},
      {"negative transient", [](auto& c) { c.transient_bytes = -1; }},
      {"negative payload", [](auto& c) { c.payload_bytes = -1; }},
      {"denominator out of order",
       [](auto& c) {
         c.denominator->held.tokens = {5, 3};
       }},
      {"denominator outside the task", [](auto& c) { c.denominator->held.tokens = {7}; }},
      {"denominator weight", [](auto& c) { c.denominator->held.weights = {-1.0F}; }},
      {"denominator weights",
       [](auto& c) {
         c.denominator->held.weights = {1, 1};
       }},
      {"denominator key too wide", [](auto& c) { c.denominator->made.k = Matrix(1, 3); }},
      {"denominator key NaN", [](auto& c) { c.denominator->made.k.row(0)[0] = kNan; }},
      {"denominator made weight", [](auto& c) { c.denominator->made.weights = {kNan}; }},
      {"other keys called the same", [](auto& c) { c.denominator->same_keys = true; }},
  };
  for (const Breach& b : breaches) {
    Compressed c = good();
    b.make(c);
    EXPECT_THROW(check_compressed(c, task()), std::logic_error) << b.what;
  }
}

// --------------------------------------------------------------------------------------- run_job

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
    return o;
  }

  /// Rows of one KV head (the second) for a method of the test's own.
  std::vector<Row> run(Compress compress, std::optional<double> budget = std::nullopt,
                       const TraceShape& shape = {}, ReplayOptions o = options()) {
    method_ = Method{};
    method_.info.name = "made-up";
    method_.info.sees_evaluated = sees_evaluated_;
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
                   c.name != "scoring_queries") {
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

TEST_F(JobTest, AnExceptionBecomesAStatusOfOneLine) {
  expect_blank(run([](const Task&, const Params&) -> Compressed {
                 throw std::runtime_error("went wrong\r\nin two lines");
               }),
               "failed: went wrong  in two lines");
  expect_blank(
      run([](const Task&, const Params&) -> Compressed { throw InputError("no such size"); }),
      "failed: no such size");
}

TEST_F(JobTest, RunningOutOfMemoryIsARowsFailureToo) {
  const auto rows = run([](const Task&, const Params&) -> Compressed { throw std::bad_alloc(); });
  for (const Row& row : rows) {
    EXPECT_EQ(status_kind(row.status), "failed");
  }
}

TEST_F(JobTest, ABreachOfTheContractFails) {
  const auto rows = run([](const Task& task, const Params& params) {
    Compressed c = keep_all(task, params);
    c.held.tokens.front() = 0;  // a sink
    return c;
  });
  expect_blank(rows, "failed: held tokens among the task's");
}

TEST_F(JobTest, InfeasibleIsAResultWithoutFigures) {
  expect_blank(
      run([](const Task&,
             const Params&) -> Compressed { throw Infeasible("needs 100 bytes,\nbudget 7", 100); },
          0.25),
      "infeasible: needs 100 bytes, budget 7");
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
    TraceShape shape;
    shape.dtype = type;
    for (const Row& row : run(keep_all, std::nullopt, shape)) {
      EXPECT_EQ(row.status, "ok");
      EXPECT_TRUE(row.rel_error <= 1e-12) << row.rel_error;
      EXPECT_TRUE(row.rel_error_max <= 1e-12) << row.rel_error_max;
      EXPECT_TRUE(row.log_z_error <= 1e-12) << row.log_z_error;
      EXPECT_NEAR(row.mass_kept, 1.0, 1e-12);
      EXPECT_NEAR(row.cosine, 1.0, 1e-12);
      EXPECT_EQ(row.amnesia_count, 0);
      EXPECT_EQ(row.tokens_kept, 48);
      EXPECT_EQ(row.ratio, 1.0);
      EXPECT_GE(row.compress_ms, 0.0);
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
    TraceShape shape;
    shape.tokens = {n};
    for (const Row& row : run(never, 0.5, shape)) {
      EXPECT_EQ(row.status, "degenerate: empty middle");
      EXPECT_TRUE(row.rel_error <= 1e-12) << row.rel_error;
      EXPECT_EQ(row.middle_ratio, 1.0);
      EXPECT_EQ(row.bytes, row.full_bytes);
      EXPECT_EQ(row.n_queries, std::min<Index>(7, n));
    }
  }
  TraceShape shape;
  shape.tokens = {13};
  for (const Row& row : run(never, 0.5, shape)) {
    EXPECT_EQ(row.status, "failed: asked");
  }
}

TEST_F(JobTest, ZeroOutputsAreSaidInTheStatus) {
  TraceShape zeros;
  zeros.value_scale = 0.0F;
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
    const Index token = task.tokens[static_cast<std::size_t>(i)];
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
    TraceShape shape;
    shape.nq = nq;
    const std::vector<Row> rows = run(everything, std::nullopt, shape);
    std::vector<Index> middle;
    for (Index i = windows_.middle.begin; i < windows_.middle.end; ++i) {
      middle.push_back(i);
    }
    const Compressed c =
        everything({head_, middle, std::nullopt, windows_.scoring, {}, Rng()}, Params());
    const auto dv = static_cast<std::size_t>(head_.dv());
    for (std::size_t g = 0; g < rows.size(); ++g) {
      const Row& row = rows[g];
      ASSERT_EQ(row.n_queries, nq == 0 ? 7 : 5);
      double moved = 0.0;
      double exact = 0.0;
      double log_z = 0.0;
      double mass = 0.0;
      for (Index position = head_.n() - row.n_queries; position < head_.n(); ++position) {
        const float* q = head_.q[g].row(position - head_.q_start());
        const auto score = [&](const float* k) {
          double sum = 0.0;
          for (Index t = 0; t < head_.d(); ++t) {
            sum += static_cast<double>(q[t]) * static_cast<double>(k[t]);
          }
          return std::exp(head_.scale * sum);
        };
        std::vector<double> a(dv, 0.0);
        std::vector<double> z(dv, 0.0);
        double true_sum = 0.0;
        double sum = 0.0;
        double kept = 0.0;
        const auto add = [&](std::vector<double>& to, double w, const float* v) {
          for (std::size_t t = 0; t < dv; ++t) {
            to[t] += w * static_cast<double>(v[t]);
          }
        };
        for (Index i = 0; i <= position; ++i) {
          const double e = score(head_.k.row(i));
          true_sum += e;
          add(a, e, head_.v.row(i));
          if (!windows_.middle.contains(i)) {
            sum += e;
            kept += e;
            add(z, e, head_.v.row(i));
          }
        }
        for (std::size_t j = 0; j < c.held.tokens.size(); ++j) {
          const double e = score(head_.k.row(c.held.tokens[j]));
          kept += e;
          add(z, e * static_cast<double>(c.held.weights[j]), head_.v.row(c.held.tokens[j]));
        }
        for (const Index i : {0, 1}) {
          add(z,
              score(c.made.k.row(i)) *
                  static_cast<double>(c.made.weights[static_cast<std::size_t>(i)]),
              c.made.v.row(i));
        }
        for (const Index i : c.denominator->held.tokens) {
          sum += 3.25 * score(head_.k.row(i));
        }
        sum += 4.0 * score(c.denominator->made.k.row(0));
        for (std::size_t t = 0; t < dv; ++t) {
          moved += (z[t] / sum - a[t] / true_sum) * (z[t] / sum - a[t] / true_sum);
          exact += a[t] / true_sum * a[t] / true_sum;
        }
        log_z += std::abs(std::log(sum) - std::log(true_sum));
        mass += kept / true_sum;
      }
      const auto m = static_cast<double>(row.n_queries);
      EXPECT_EQ(row.status, "ok");
      EXPECT_NEAR(row.rel_error, std::sqrt(moved / exact), 1e-11);
      EXPECT_NEAR(row.log_z_error, log_z / m, 1e-11);
      EXPECT_NEAR(row.mass_kept, mass / m, 1e-11);
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

TEST_F(JobTest, MemoryNeedGrowsWithThePromptAndCoversItsArrays) {
  LayerMeta small;
  small.q_heads = 8;
  small.kv_heads = 2;
  small.n = 1000;
  small.nq = 1000;
  small.d = 128;
  small.dv = 128;
  LayerMeta large = small;
  large.n = large.nq = 4000;
  EXPECT_LT(memory_need(small, 256).unit, memory_need(large, 256).unit);
  EXPECT_LT(memory_need(small, 256).per_thread, memory_need(large, 256).per_thread);
  // At least the head itself in float32: k, v and the queries of the group.
  EXPECT_GE(memory_need(small, 256).unit, 4U * 1000U * (128U + 128U + 4U * 128U));
}

}  // namespace
}  // namespace kvbench
