// Whole stream runs: OUT.steps.csv goes with OUT.csv; and exact streams of tests/data/small.h5.
// Interruptions and shards: test_interruptions.cpp; parts of a plan: test_extend.cpp.
#include "replay/stream_job.hpp"
#include "replay_run.hpp"
#include "report/manifest.hpp"
#include "report/table_spec.hpp"

namespace kvbench::test_stream_run {
namespace {

using namespace testing_replay;

const std::string kSmallTrace = KVBENCH_TEST_DATA_DIR "/small.h5";

class StreamRunTest : public testing_replay::ReplayTest {
 protected:
  ReplayOptions options(const std::string& out = "out.csv") const {
    ReplayOptions o = basic(out);
    o.algorithms = {"exact", "uniform", "local", "streamingllm"};
    o.budgets = {0.5, 0.1};
    o.seeds = "2";
    o.protocol = Protocol::stream;
    o.sink = 3;
    o.eval_every = 7;
    o.kept = true;
    return o;
  }
};

TEST_F(StreamRunTest, StepsStandBesideTheirRowsInThePlansOrder) {
  const ReplayOptions o = options();
  const RunResult result = run(o);
  EXPECT_EQ(result.failed, 0);
  EXPECT_GT(result.infeasible, 0);  // 0.1 of 60 tokens are fewer than 3 sinks and a window of 12
  const Table steps = read_table(folder_ / "out.steps.csv");
  EXPECT_EQ(steps.header, steps_table().header());
  EXPECT_EQ(steps.header.size(), 19U);
  std::size_t at = 0;
  for (const Fields& row : read_table(o.out).rows) {
    EXPECT_EQ(row[column_index("sink")], "3");
    if (!has_lines(row[column_index("status")])) {
      EXPECT_EQ(status_kind(row[column_index("status")]), "infeasible");
      continue;
    }
    const Index n = std::stol(row[column_index("n_tokens")]);
    double most = 0.0;
    Index peak = 0;
    for (const Index position : stream_steps(o, n)) {
      const Fields& step = steps.rows.at(at++);
      EXPECT_EQ(steps_table().key(step), main_table().key(row));
      EXPECT_EQ(step[steps.column("step")], std::to_string(position));
      double error = 0.0;
      ASSERT_TRUE(parse_number(step[steps.column("rel_error")], error));
      most = position >= n - 8 ? std::max(most, error) : most;
      peak = std::max<Index>(peak, std::stol(step[steps.column("bytes")]));
    }
    double stated = 0.0;
    ASSERT_TRUE(parse_number(row[column_index("rel_error_max")], stated));
    EXPECT_NEAR(stated, most, 1e-15 + 1e-12 * most);
    EXPECT_EQ(row[column_index("peak_bytes")], std::to_string(peak));
  }
  EXPECT_EQ(at, steps.rows.size());
  EXPECT_EQ(read_manifest(o.out).configuration["eval_every"], 7);
}

TEST_F(StreamRunTest, StepsPathsByHand) {
  EXPECT_EQ(steps_table().path("a/out.csv"), "a/out.steps.csv");
  EXPECT_EQ(steps_table().path("a.b/out"), "a.b/out.steps.csv");
  EXPECT_EQ(steps_table().path("out.tsv"), "out.tsv.steps.csv");
}

// Two float64 sums of 2048 terms in different orders: far below 1e-12.
TEST_F(StreamRunTest, ExactStreamsOfTheSmallTraceHaveNoError) {
  ReplayOptions o = options();
  o.traces = {kSmallTrace};
  o.algorithms = {"exact"};
  o.recent = 256;
  o.queries = 32;
  o.eval_every = 0;
  o.layers = {0, 3};
  run(o);
  const Table steps = read_table(steps_table().path(o.out));
  EXPECT_EQ(steps.rows.size(), 8U * (64U + 31U));
  for (const Fields& step : steps.rows) {
    double error = 1.0;
    ASSERT_TRUE(parse_number(step[steps.column("rel_error")], error));
    EXPECT_TRUE(error <= 1e-6) << error;  // float32
    EXPECT_EQ(std::stol(step[steps.column("bytes")]),
              (std::stol(step[steps.column("step")]) + 1) * 256);
  }
}

}  // namespace
}  // namespace kvbench::test_stream_run
