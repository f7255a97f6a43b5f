// Output projections as methods get them: the columns of their head's group, where they ask.

#include <mutex>
#include <utility>

#include "replay_run.hpp"
#include "trace_files.hpp"

namespace kvbench::test_projection_run {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;

// What each call of the test's method was given: KV head and projection.
std::mutex seen_mutex;
std::vector<std::pair<Index, Matrix>> seen;

Compressed looking(const Task& task, const Params&) {
  const std::lock_guard lock(seen_mutex);
  seen.emplace_back(task.kv_head, task.o_proj == nullptr ? Matrix() : *task.o_proj);
  return {};
}

class ProjectionRun : public ReplayTest {
 protected:
  // Two layers of 2 KV heads of 3 query heads each.
  std::string trace(Index hidden) {
    return make_trace(folder_ / "w.h5",
                      {.tokens = {40}, .layers = {0, 3}, .q_heads = 6, .hidden = hidden});
  }

  // A plan of one method that looks at its task.
  Plan plan(const std::string& path, bool reads, const std::vector<Index>& heads = {}) {
    method_.info.name = "looking";
    method_.info.facts = [reads](const Params&) { return JobFacts{.o_proj = reads}; };
    method_.compress = looking;
    ReplayOptions o = basic("out.csv");
    o.traces = {path};
    o.algorithms = {"exact"};
    o.sink = 2;
    o.heads = heads;
    o.overwrite = true;
    Plan plan = make_plan(o);
    plan.variants = {{&method_, Params("looking", {}, {})}};
    plan.entries = {{0, std::nullopt, 0}};
    plan.reads_o_proj = plan.variants[0].facts().o_proj;
    return plan;
  }

  Method method_;
};

TEST_F(ProjectionRun, MethodsThatAskGetTheColumnsOfTheirHead) {
  const std::string path = trace(7);
  seen.clear();
  run(plan(path, true));
  ASSERT_EQ(seen.size(), 4U);  // 2 layers of 2 KV heads, in order
  for (std::size_t i = 0; i < 4; ++i) {
    const auto& [kv_head, w] = seen[i];
    const Matrix whole = made_projection(7, 6 * 6, i < 2 ? 0 : 3);
    ASSERT_EQ(w.rows(), 7);
    ASSERT_EQ(w.cols(), 3 * 6);
    for (Index r = 0; r < 7; ++r) {
      EXPECT_TRUE(std::equal(w.row(r), w.row(r) + 18, whole.row(r) + 18 * kv_head)) << i;
    }
  }
}

TEST_F(ProjectionRun, OthersGetNone) {
  for (const auto& [hidden, reads] : {std::pair{7, false}, {0, true}}) {
    const std::string path = trace(hidden);
    seen.clear();
    run(plan(path, reads));
    ASSERT_EQ(seen.size(), 4U);
    for (const auto& [kv_head, w] : seen) {
      EXPECT_EQ(w.rows(), 0);
    }
  }
}

TEST_F(ProjectionRun, IsCheckedBeforeTheFirstRowWhereItIsRead) {
  const std::string path = trace(7);
  testing_traces::alter(path, "/prompts/p0/layers/3", [](hid_t layer) {
    testing_traces::put_values(layer, "o_proj", {7, 36}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT,
                               std::vector<float>(7 * 36, std::numeric_limits<float>::quiet_NaN()));
  });
  for (const bool reads : {true, false}) {  // without the method OUT.layers.csv reads it
    expect_refusal([&] { run(plan(path, reads)); }, "row 0, column 0 is nan");
    EXPECT_FALSE(fs::exists(folder_ / "out.csv"));
  }
  EXPECT_EQ(run(plan(path, false, {0})).failed, 0);  // no whole layer
}

TEST_F(ProjectionRun, MemoryIsCountedWhereItIsRead) {
  const std::string path = trace(7);
  const Plan with = plan(path, true);
  const Plan without = plan(path, false);
  const auto unit = [](const Plan& p) {
    return static_cast<double>(memory_need(p, p.units[0]).unit);
  };
  // The margin is rounded down in both.
  EXPECT_NEAR(unit(with), unit(without) + 4 * 7 * 3 * 6 * kMemoryMargin, 1.0);
}

}  // namespace
}  // namespace kvbench::test_projection_run
