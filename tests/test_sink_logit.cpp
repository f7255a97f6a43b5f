// A sink logit is a token without value that every query sees: a head that has it, and a head that
// has such a token in front, must give the same outputs, scores and decisions.
#include "attention/backend.hpp"
#include "attention/scores.hpp"
#include "attention/streams.hpp"
#include "core/rng.hpp"
#include "make_head.hpp"
#include "metrics/memory.hpp"
#include "read_rows.hpp"
#include "replay_run.hpp"

namespace kvbench::test_sink_logit {
namespace {

constexpr double kSink = 1.75;  // as large as the logits of tokens: exact in float32

KvHead with_sink_logit(unsigned seed, Index n = 60) {
  KvHead head = make_head({.n = n, .nq = n, .d = 7}, seed);
  head.sink_logit.assign(2, static_cast<float>(kSink));
  return head;
}

// One channel more, which is 1 in queries and 0 in keys; one token more, in front, whose value is 0
// and whose key has the logit in that channel alone. Its query is never asked for.
KvHead with_sink_token(const KvHead& head) {
  KvHead out = head;
  out.sink_logit.clear();
  out.k = Matrix(head.n() + 1, head.d() + 1);
  out.k.row(0)[head.d()] = static_cast<float>(kSink / head.scale);
  out.v = Matrix(head.n() + 1, head.dv());
  for (Index i = 0; i < head.n(); ++i) {
    std::copy_n(head.k.row(i), head.d(), out.k.row(i + 1));
    std::copy_n(head.v.row(i), head.dv(), out.v.row(i + 1));
  }
  for (Index g = 0; g < head.group(); ++g) {
    out.q[g] = Matrix(head.n() + 1, head.d() + 1);
    for (Index i = 0; i < head.n(); ++i) {
      std::copy_n(head.q[g].row(i), head.d(), out.q[g].row(i + 1));
      out.q[g].row(i + 1)[head.d()] = 1.0F;
    }
  }
  return out;
}

// The added key is rounded to float32: its logit is off by 1e-7 of itself.
constexpr double kKeyRounding = 2e-7;

TEST(SinkLogit, IsATokenWithoutValue) {
  const KvHead head = with_sink_logit(1);
  const KvHead token = with_sink_token(head);
  for (Index g = 0; g < 2; ++g) {
    const ExactAttention a = exact_attention(head, g, 20, 2);
    const ExactAttention b = exact_attention(token, g, 20, 2);
    for (Index j = 0; j < 20; ++j) {
      ASSERT_NEAR(a.log_z[j], b.log_z[j], kKeyRounding);
      expect_all_near(a.output.row(j),
                      std::span(b.output.row(j), static_cast<std::size_t>(head.dv())),
                      kKeyRounding);
    }
    for (Index i = 0; i < head.n(); ++i) {
      ASSERT_NEAR(a.mass[i], b.mass[i + 1], kKeyRounding);
    }
    EXPECT_NEAR(sink_mass(head, g, a), b.mass[0], kKeyRounding);
    EXPECT_GT(b.mass[0], 0.01);
    // All tokens and the sink: nothing is lost.
    const std::vector<std::uint8_t> all(head.n(), 1);
    EXPECT_NEAR(held_figures(a, all, sink_mass(head, g, a)).mass_kept, 1.0, 1e-12);
    const MatrixD p = exact_probabilities(head, g, positions(40, 60));
    double rest = 1.0;
    for (Index i = 0; i < head.n(); ++i) {
      rest -= p.row(3)[i];
    }
    EXPECT_NEAR(sink_share(head, g, a.log_z[3]), rest, 1e-12);
  }
  const auto sums = attention_sums(head, {10, 50});
  const auto sums_of_token = attention_sums(token, {11, 51});
  for (std::size_t g = 0; g < 2; ++g) {
    for (Index i = 0; i < head.n(); ++i) {
      ASSERT_NEAR(sums[g][i], sums_of_token[g][i + 1], 40 * kKeyRounding);
    }
  }
}

// The estimator's denominator begins with it, under either shift, whatever is added.
TEST(SinkLogit, EntersTheEstimate) {
  const KvHead head = with_sink_logit(2);
  const MatrixD q = scaled_queries(head, 0, 8);
  for (const double large : {kSink, 900.0, -900.0}) {
    const std::vector<float> sinks(8, static_cast<float>(large));
    SoftmaxSums sums(q, head.dv(), Precision::float64, sinks);
    const std::vector<Index> some{3, 5, 40};
    sums.add_rows(head.k, head.v, some, {}, 2.0F, SoftmaxPart::both);
    const MatrixD z = sums.output();
    for (Index r = 0; r < 8; ++r) {
      std::vector<long double> logits;
      for (const Index i : some) {
        logits.push_back(static_cast<long double>(
            slow_logit(head, head.k.row(i), head.q[0].row(head.n() - 8 + r))));
      }
      long double den = std::exp(static_cast<long double>(large));
      long double num = 0.0L;
      for (std::size_t i = 0; i < 3; ++i) {
        den += 2.0L * std::exp(logits[i]);
        num += 2.0L * std::exp(logits[i]) * static_cast<long double>(head.v.row(some[i])[1]);
      }
      EXPECT_NEAR(z.row(r)[1], static_cast<double>(num / den), 1e-12);
      EXPECT_NEAR(sums.log_denominator()[r], static_cast<double>(std::log(den)), 1e-12);
    }
  }
  // Nothing held but the sink: the output is 0, not undefined.
  const std::vector<float> sinks(8, 0.0F);
  SoftmaxSums none(q, head.dv(), Precision::float64, sinks);
  EXPECT_EQ(none.output().row(0)[0], 0.0);
}

// Streams: the token that leaves at each position, the sink token being one of the protocol's.
TEST(SinkLogit, StreamsDecideAsWithASinkToken) {
  Index moved = 0;
  Index differs = 0;
  for (unsigned seed = 1; seed <= 6; ++seed) {
    const KvHead head = with_sink_logit(seed, 80);
    const KvHead token = with_sink_token(head);
    KvHead plain = head;
    plain.sink_logit.clear();
    for (const bool accumulate : {true, false}) {
      EvictionRules rules{20, 5, 6, accumulate, Reduce::mean, 0, 0};
      const auto got = cpu_backend().evictions(head, rules);
      const auto without = cpu_backend().evictions(plain, rules);
      rules.sink = 1;
      const auto expected = cpu_backend().evictions(token, rules);
      EXPECT_EQ(expected->step(0).token, -1);
      for (Index j = 0; j < head.n(); ++j) {
        const Eviction a = got->step(j);
        const Eviction b = expected->step(j + 1);
        ASSERT_EQ(a.token, b.token < 0 ? -1 : b.token - 1) << seed << " " << j;
        ASSERT_NEAR(a.score, b.score, 80 * kKeyRounding);
        moved += a.token >= 0 ? 1 : 0;
        differs += a.token != without->step(j).token ? 1 : 0;
      }
    }
    RetentionRules rules{20, 5, 0.0, Similarity::relu, Reduce::mean, 0, {}};
    const auto got = cpu_backend().retention(head, rules);
    rules.sink = 1;
    const auto expected = cpu_backend().retention(token, rules);
    EXPECT_EQ(expected->step(0).token, -1);
    for (Index j = 0; j < head.n(); ++j) {
      const Index b = expected->step(j + 1).token;
      ASSERT_EQ(got->step(j).token, b < 0 ? -1 : b - 1) << seed << " " << j;
    }
  }
  EXPECT_GT(moved, 500);
  EXPECT_GT(differs, 10);  // where it did not matter the test would say nothing
}

// KVReviver's scores by their definition: every position up to the query's, before anything is
// sketched.
TEST(SinkLogit, EntersTheScoresOfRevival) {
  const KvHead head = with_sink_logit(9, 30);
  ReviveTask task;
  const std::vector<ReviveStep> steps = [] {
    std::vector<ReviveStep> out;
    for (Index j = 0; j < 30; ++j) {
      out.push_back({j, -1, true});
    }
    return out;
  }();
  std::vector<SketchHash> hashes(1);
  task.rules = {30, 0, 0, 1.0, Reduce::mean};
  task.steps = steps;
  task.hashes = hashes;
  task.cells = 1;
  const auto stream = open_revival(head, task);
  for (const ReviveStep& step : steps) {
    stream->step(step);
  }
  const auto sums = attention_sums(head, {0, 30});
  for (std::size_t i = 0; i < 30; ++i) {
    // float32 sums of at most 30 weights below 1.
    ASSERT_NEAR(stream->scores()[i], (sums[0][i] + sums[1][i]) / 2.0, 30 * 30 * 6e-8);
  }
}

class SinkLogitRun : public testing_replay::ReplayTest {};

// Whole runs, prefill and stream: the exact cache has neither an error nor lost mass; and a logit
// that takes next to nothing changes nothing.
TEST_F(SinkLogitRun, ExactHasNoError) {
  testing_replay::TraceShape shape{.hidden = 5, .sink_logit = {3.0F, -1.0F, 0.5F, 2.0F}};
  const std::string with = testing_replay::make_trace(folder_ / "with.h5", shape);
  shape.sink_logit.assign(4, -200.0F);
  const std::string faint = testing_replay::make_trace(folder_ / "faint.h5", shape);
  shape.sink_logit.clear();
  const std::string without = testing_replay::make_trace(folder_ / "without.h5", shape);
  for (const Protocol protocol : {Protocol::prefill, Protocol::stream}) {
    ReplayOptions o;
    o.sink = 2;
    o.recent = 8;
    o.queries = 5;
    o.protocol = protocol;
    o.precision = Precision::float64;
    o.budgets = {protocol == Protocol::prefill ? 0.5 : 0.8};  // with sinks and recent tokens
    o.algorithms = protocol == Protocol::prefill
                       ? std::vector<std::string>{"exact",
                                                  "h2o",
                                                  "snapkv",
                                                  "attention-matching",
                                                  "rkv:buffer=4",
                                                  "expected-attention",
                                                  "quant-kivi:residual=4"}
                       : std::vector<std::string>{"h2o", "tova", "bumblebee-stream", "kvreviver"};
    std::vector<Table> tables;
    for (const std::string& trace : {with, faint, without}) {
      o.traces = {trace};
      o.out = (folder_ / ("r" + std::to_string(tables.size()) + ".csv")).string();
      o.overwrite = true;
      run(o);
      tables.push_back(read_table(o.out));
    }
    ASSERT_EQ(tables[0].rows.size(), tables[2].rows.size());
    const auto number = [&](const Table& t, std::size_t row, const char* name) {
      return std::stod(t.rows[row][t.column(name)]);
    };
    Index moved = 0;
    for (std::size_t i = 0; i < tables[0].rows.size(); ++i) {
      const std::string algorithm = tables[0].rows[i][tables[0].column("algorithm")];
      const std::string& status = tables[0].rows[i][tables[0].column("status")];
      if (algorithm == "kvreviver" && status.starts_with("infeasible")) {
        continue;  // the shorter prompt
      }
      ASSERT_EQ(status, "ok") << algorithm;
      if (algorithm == "exact") {
        EXPECT_LE(number(tables[0], i, "rel_error"), 1e-12);
        EXPECT_LE(number(tables[0], i, "log_z_error"), 1e-12);
        EXPECT_NEAR(number(tables[0], i, "mass_kept"), 1.0, 1e-12);
      }
      for (const char* column : {"rel_error", "mass_kept", "log_z_error"}) {
        // exp(-200) is far below a rounding.
        EXPECT_EQ(number(tables[1], i, column), number(tables[2], i, column)) << algorithm;
        EXPECT_TRUE(std::isfinite(number(tables[0], i, column)));
      }
      moved += number(tables[0], i, "rel_error") != number(tables[2], i, "rel_error") ? 1 : 0;
    }
    EXPECT_GT(moved, static_cast<Index>(tables[0].rows.size()) / 2);
  }
}

}  // namespace
}  // namespace kvbench::test_sink_logit
