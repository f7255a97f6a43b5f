// Whole prefill replays on a GPU against the CPU: the same tokens kept, the same bytes and states,
// metrics to rounding. Compiled twice: into kvbench_tests, where a real GPU is asked for, and for
// the emulated device (tests/emulated).
#include "gpu_runs.hpp"

namespace kvbench::test_gpu_replay {
namespace {

using namespace testing_gpu;

class GpuReplay : public OnGpu {
 protected:
  ReplayOptions options() const {
    ReplayOptions o;
    o.traces = {trace_};
    o.algorithms = {"all",
                    "balancekv:step=theory,self,fixed,repo",
                    "balancekv:select=strict;denominator=separate;center=none;block=8",
                    "bumblebee:optimizer=greedy,stochastic;sim=one-plus,abs",
                    "bumblebee:matrix_mib=0;lambda=1",
                    "bumblebee:recent_share=0",
                    "clustergen-kcenter:start=farthest-from-mean;weights=cluster",
                    "clustergen-kcenter:recent_share=0;weights=cluster",
                    "h2o+balancekv",
                    "snapkv+uniform"};
    o.budgets = {0.5, 0.2};
    o.seeds = "2";
    o.sink = 4;
    o.recent = 12;
    o.queries = 8;
    o.kept = true;
    o.overwrite = true;
    o.threads = 2;
    return o;
  }
};

TEST_F(GpuReplay, EveryMethod) {
  expect_same(options(), nullptr, "every method");
  ReplayOptions o = options();
  o.scores = Scores::all;
  expect_same(o, nullptr, "all queries score");
}

TEST_F(GpuReplay, ShapesAndTypes) {
  int seed = 1;
  for (const TraceShape& shape :
       {TraceShape{{65}, {0}, 1, 1, 20, 3, 1, DType::bfloat16, 2, 1.0F, {}},
        TraceShape{{129}, {0}, 8, 1, 0, 16, 24, DType::float32, 3, 1.0F, {}},
        TraceShape{{17}, {0}, 3, 3, 0, 1, 1, DType::float16, 4, 1.0F, {}},
        TraceShape{{1}, {0}, 2, 1, 0, 8, 8, DType::float16, 5, 1.0F, {}},
        TraceShape{{40}, {0}, 2, 1, 0, 8, 8, DType::float16, 6, 0.0F, {}},
        TraceShape{{97}, {0}, 5, 1, 0, 80, 80, DType::float16, 7, 1.0F, {}},
        TraceShape{{83}, {0}, 4, 1, 0, 96, 64, DType::bfloat16, 8, 1.0F, {}},
        TraceShape{{70}, {0}, 7, 1, 0, 128, 128, DType::float16, 9, 1.0F, {}},
        TraceShape{{66}, {0}, 2, 1, 0, 256, 256, DType::float32, 10, 1.0F, {}}}) {
    ReplayOptions o = options();
    o.traces = {make_trace(folder_ / ("s" + std::to_string(seed++) + ".h5"), shape)};
    o.algorithms = {"all"};
    o.budgets = {0.5, 0.0};
    o.seeds = "1";
    expect_same(o, nullptr, "shape " + std::to_string(seed));
  }
}

// Work is cut where a job's scratch is small: the limit leaves some kilobytes to each.
TEST_F(GpuReplay, LittleMemory) {
  ReplayOptions o = options();
  o.algorithms = {"all"};
  o.budgets = {0.3};
  Plan plan = make_plan(o);
  o.device = "cuda";
  plan = make_plan(o);
  ASSERT_TRUE(plan.open_device);
  const OpenDevice open = plan.open_device;
  o.device = "cpu";
  expect_same(
      o, [&](const KvHead& head, std::size_t) { return open(head, 4096); }, "cut");
}

}  // namespace
}  // namespace kvbench::test_gpu_replay
