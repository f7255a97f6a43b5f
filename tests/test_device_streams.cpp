// Whole stream replays on a device against the CPU: the same tokens held at every recorded step,
// the same bytes at every evaluated one, errors to rounding. The device is a HostMachine, which
// runs every kernel and driver that a GPU runs; and a CUDA device where there is one.
#include <gtest/gtest.h>

#include <string>

#include "device_runs.hpp"

namespace kvbench {
namespace {

using namespace testing_device;

class DeviceStreamTest : public DeviceRuns {
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
    o.protocol = "stream";
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

TEST_F(DeviceStreamTest, EveryStreamOnAHostMachine) {
  expect_same(options(), host_device(HostMachine::Order::forward, std::size_t{1} << 20),
              kHostRelative, "forward");
  expect_same(options(), host_device(HostMachine::Order::backward, 4096), kHostRelative,
              "backward, cut");
}

TEST_F(DeviceStreamTest, ShapesAndTypesOnAHostMachine) {
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
          o, host_device(HostMachine::Order::forward, 1 << 14), kHostRelative,
          "shape " + std::to_string(shape.tokens.front()) + " sink " + std::to_string(sink));
    }
  }
}

TEST_F(DeviceStreamTest, SeveralHeadsAtOnceGiveTheSameFiles) {
  ReplayOptions o = options();
  o.algorithms = {"local", "h2o"};
  o.out = (folder_ / "one.csv").string();
  const OpenDevice device = host_device(HostMachine::Order::forward, std::size_t{1} << 20);
  go(make_plan(o), device);
  const auto one = testing_replay::untimed(o.out);
  const std::string steps = read_bytes(steps_table().path(o.out));
  for (const Index heads : {2, 3, 100}) {
    o.out = (folder_ / "more.csv").string();
    Plan plan = make_plan(o);
    plan.heads_at_once = heads;
    go(std::move(plan), device);
    EXPECT_EQ(testing_replay::untimed(o.out), one);
    EXPECT_EQ(read_bytes(steps_table().path(o.out)), steps);
  }
}

TEST_F(DeviceStreamTest, EveryStreamOnCuda) {
  if (!cuda_is_here()) {
    GTEST_SKIP() << "no CUDA device or no CUDA in this build: nothing was compared on a GPU";
  }
  expect_same(options(), nullptr, kCudaRelative, "cuda");
}

TEST_F(DeviceStreamTest, TheSmallTraceOnCuda) {
  if (!cuda_is_here()) {
    GTEST_SKIP() << "no CUDA device or no CUDA in this build: nothing was compared on a GPU";
  }
  ReplayOptions o = options();
  o.algorithms = {"all"};
  o.traces = {data_file("small.h5")};
  o.recent = o.queries = 256;
  o.eval_every = 0;
  expect_same(o, nullptr, kCudaRelative, "the small trace");
}

}  // namespace
}  // namespace kvbench
