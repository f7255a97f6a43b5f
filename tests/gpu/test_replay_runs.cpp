// Whole replays on a GPU against the CPU: the same tokens kept, those of streams at every recorded
// step, the same bytes and states, metrics to rounding. Compiled twice: into kvbench_tests, where a
// real GPU is asked for, and for the emulated device (tests/emulated).
#include <utility>

#include "gpu_runs.hpp"

namespace kvbench::test_gpu_replay {
namespace {

using namespace testing_gpu;

// Few tokens, odd widths, values of 0.
const std::vector<TraceShape> kOddShapes = {{{65}, {0}, 1, 1, 0, 3, 1, DType::bfloat16, 2},
                                            {{129}, {0}, 8, 1, 0, 16, 24, DType::float32, 3},
                                            {{17}, {0}, 3, 3, 0, 1, 1, DType::float16, 4},
                                            {{1}, {0}, 2, 1, 0, 8, 8, DType::float16, 5},
                                            {{40}, {0}, 2, 1, 0, 8, 8, DType::float16, 6, 0.0F}};

class GpuReplay : public OnGpu {
 protected:
  ReplayOptions options() const {
    ReplayOptions o = small_run("out.csv");
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
    o.overwrite = true;
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
  std::vector<TraceShape> shapes = kOddShapes;
  shapes.push_back({{65}, {0}, 1, 1, 20, 3, 1, DType::bfloat16, 2});  // the last queries only
  shapes.push_back({{97}, {0}, 5, 1, 0, 80, 80, DType::float16, 7});
  shapes.push_back({{83}, {0}, 4, 1, 0, 96, 64, DType::bfloat16, 8});
  shapes.push_back({{70}, {0}, 7, 1, 0, 128, 128, DType::float16, 9});
  shapes.push_back({{66}, {0}, 2, 1, 0, 256, 256, DType::float32, 10});
  for (const TraceShape& shape : shapes) {
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
  o.device = "cuda";
  const Plan plan = make_plan(o);
  ASSERT_TRUE(plan.open_device);
  const OpenDevice open = plan.open_device;
  o.device = "cpu";
  expect_same(
      o, [&](const KvHead& head, std::size_t) { return open(head, 4096); }, "cut");
}

class GpuStreams : public OnGpu {
 protected:
  ReplayOptions options() const {
    ReplayOptions o = small_run("out.csv");
    o.algorithms = {"all",
                    "balancekv-stream:t=16;step=theory,greedy",
                    "balancekv-stream:T=2;center=none",
                    "bumblebee-stream:lambda=0,1;sim=one-plus,abs",
                    "bumblebee-stream:phi=power",
                    "cam:merge=3",
                    "clustergen:delta=2",
                    "h2o:heavy_ratio=0.8;reduce=max",
                    "kvreviver:slack=1;replace_rate=1;estimate=mean",
                    "tova:reduce=max"};
    o.budgets = {0.6, 0.4};
    o.seeds = "2";
    o.protocol = Protocol::stream;
    o.sink = 3;
    o.recent = 8;
    o.eval_every = 5;
    o.overwrite = true;
    return o;
  }
};

TEST_F(GpuStreams, EveryMethod) {
  expect_same(options(), nullptr, "every stream");
}

TEST_F(GpuStreams, ShapesAndTypes) {
  int seed = 1;
  for (const TraceShape& shape : kOddShapes) {
    for (const auto& [sink, recent] :
         {std::pair<Index, Index>{0, 16}, {5, 0}, {9, 16}, {1000, 0}}) {
      ReplayOptions o = options();
      o.traces = {make_trace(folder_ / ("s" + std::to_string(seed++) + ".h5"), shape)};
      o.budgets = {0.7};
      o.seeds = "1";
      o.sink = sink;
      o.recent = recent;
      expect_same(
          o, nullptr,
          "shape " + std::to_string(shape.tokens.front()) + " sink " + std::to_string(sink));
    }
  }
}

}  // namespace
}  // namespace kvbench::test_gpu_replay
