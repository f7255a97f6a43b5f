// What the stream protocol is made of beside its jobs: the steps, the truth at any position, the
// figures over steps, and the defaults of a plan.
#include "make_head.hpp"
#include "make_trace.hpp"
#include "metrics/memory.hpp"
#include "read_rows.hpp"
#include "replay/planner.hpp"
#include "replay/stream_job.hpp"
#include "report_rows.hpp"

namespace kvbench::test_stream_parts {
namespace {

using testing_replay::make_trace;
using testing_rows::test_folder;

std::vector<Index> steps_of(Index every, Index queries, Index n) {
  ReplayOptions o;
  o.eval_every = every;
  o.queries = queries;
  return stream_steps(o, n);
}

TEST(StreamSteps, ByHand) {
  EXPECT_EQ(steps_of(4, 2, 10), (std::vector<Index>{3, 7, 8, 9}));
  EXPECT_EQ(steps_of(4, 3, 12), (std::vector<Index>{3, 7, 9, 10, 11}));
  EXPECT_EQ(steps_of(100, 1, 5), (std::vector<Index>{4}));
  EXPECT_EQ(steps_of(1, 1, 3), (std::vector<Index>{0, 1, 2}));
  EXPECT_EQ(steps_of(3, 100, 4), (std::vector<Index>{0, 1, 2, 3}));
  EXPECT_EQ(steps_of(0, 1, 1), (std::vector<Index>{0}));
}

TEST(StreamSteps, ByDefaultAnd64thOfTheStreamIsBetween) {
  for (const Index n : {1, 63, 64, 127, 128, 2048, 4100}) {
    const Index every = std::max<Index>(1, n / 64);
    EXPECT_EQ(steps_of(0, 1, n), steps_of(every, 1, n));
    EXPECT_LE(steps_of(0, 1, n).size(), 130U);
  }
}

TEST(StreamTruth, OfAnyPositionsInAnyOrder) {
  HeadShape shape{.n = 70};
  shape.nq = 50;  // positions 20 .. 69
  const KvHead head = make_head(shape, 3);
  std::vector<Index> positions = {69, 20, 33};
  for (Index j = 25; j < 65; ++j) {
    positions.push_back(j);  // more than a block
  }
  const ExactAttention a = exact_attention(head, 1, positions, 2);
  const MatrixD p = exact_probabilities(head, 1, positions);
  for (std::size_t r = 0; r < positions.size(); ++r) {
    const reference::Attention slow = reference::attention(head, 1, positions[r]);
    const auto row = static_cast<Index>(r);
    EXPECT_NEAR(a.log_z[r], static_cast<double>(slow.log_z), 1e-12);
    expect_all_near(a.output.row(row), slow.out, 1e-13);
    expect_all_near(p.row(row), slow.p, 1e-13);
  }
}

// One cache throughout: the figures of a stream are those of a prefill.
TEST(StreamTruth, FiguresOverStepsOfOneCacheAreThoseOfThatCache) {
  const KvHead head = make_head({}, 4);
  const Index m = 20;
  std::vector<Index> last;
  std::vector<std::uint8_t> held(64);
  for (Index i = 0; i < 64; ++i) {
    held[i] = i % 3 == 0 ? 1 : 0;
    if (i >= 64 - m) {
      last.push_back(i);
    }
  }
  const MatrixD p = exact_probabilities(head, 0, last);
  HeldOverSteps steps(64);
  for (Index r = 0; r < m; ++r) {
    steps.add({p.row(r), 64}, held);
  }
  const HeldFigures got = steps.figures();
  const HeldFigures expected = held_figures(exact_attention(head, 0, m, 1), held);
  EXPECT_GT(expected.amnesia_count, 0);
  EXPECT_EQ(got.amnesia_count, expected.amnesia_count);
  EXPECT_NEAR(got.amnesia_mass, expected.amnesia_mass, 1e-14);
  EXPECT_NEAR(got.mass_kept, expected.mass_kept, 1e-14);
}

// What a stream cannot do: tests/cli/stream.sh.
TEST(StreamPlan, HasSinksOfItsOwnDefaultAndAHashOfItsSteps) {
  ReplayOptions o;
  o.traces = {make_trace(test_folder() / "all.h5")};
  o.algorithms = {"exact"};
  o.protocol = Protocol::stream;
  o.recent = 0;
  EXPECT_EQ(make_plan(o).options.sink, 16);
  const std::string hash = make_plan(o).hash();
  o.eval_every = 3;
  EXPECT_NE(make_plan(o).hash(), hash);
}

}  // namespace
}  // namespace kvbench::test_stream_parts
