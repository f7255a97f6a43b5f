// Whole runs of `kvbench cluster` on a GPU against the CPU. Compiled twice, as test_gpu_replay.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "cluster_runs.hpp"
#include "gpu/device.hpp"

namespace kvbench::test_gpu_cluster {
namespace {

namespace fs = std::filesystem;
using namespace testing_cluster;

TEST(GpuCluster, TablesAreTheCpus) {
  if (!choose_device("auto").cuda) {
    GTEST_SKIP() << "no CUDA device or no CUDA in this build: nothing was compared on a GPU";
  }
  TraceShape shape;
  shape.tokens = {150, 20, 1};
  shape.layers = {0, 3};
  shape.d = 80;
  shape.dv = 64;
  const ClusterOptions cpu = options(make_trace(temporary_path("t.h5"), shape), "cpu");
  go(make_cluster_plan(cpu));
  ClusterOptions o = options(cpu.traces[0], "device");
  o.device = "cuda";
  go(make_cluster_plan(o));
  expect_same_tables(cpu, o);
  EXPECT_NE(read_bytes(fs::path(o.out) / "cluster.json").find("\"gpu\""), std::string::npos);
}

}  // namespace
}  // namespace kvbench::test_gpu_cluster
