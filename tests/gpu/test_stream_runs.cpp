// Whole stream replays on a GPU against the CPU: the same tokens held at every recorded step, the
// same bytes at every evaluated one, errors to rounding. Compiled twice, as test_gpu_replay.cpp.

#include <utility>

#include "gpu_runs.hpp"

namespace kvbench::test_gpu_streams {
namespace {

using namespace testing_gpu;

class GpuStreams : public OnGpu {
 protected:
  ReplayOptions options() const {
    ReplayOptions o;
    o.traces = {trace_};
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
    o.queries = 8;
    o.eval_every = 5;
    o.kept = true;
    o.overwrite = true;
    o.threads = 2;
    return o;
  }
};

TEST_F(GpuStreams, EveryMethod) {
  expect_same(options(), nullptr, "every stream");
}

TEST_F(GpuStreams, ShapesAndTypes) {
  int seed = 1;
  for (const TraceShape& shape :
       {TraceShape{{65}, {0}, 1, 1, 0, 3, 1, DType::bfloat16, 2, 1.0F, {}},
        TraceShape{{129}, {0}, 8, 1, 0, 16, 24, DType::float32, 3, 1.0F, {}},
        TraceShape{{17}, {0}, 3, 3, 0, 1, 1, DType::float16, 4, 1.0F, {}},
        TraceShape{{1}, {0}, 2, 1, 0, 8, 8, DType::float16, 5, 1.0F, {}},
        TraceShape{{40}, {0}, 2, 1, 0, 8, 8, DType::float16, 6, 0.0F, {}}}) {
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
}  // namespace kvbench::test_gpu_streams
