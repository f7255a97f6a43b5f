// Whole runs of `kvbench cluster` on a GPU against the CPU. Compiled twice, as
// test_replay_runs.cpp.
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
  const ClusterOptions cpu =
      options(make_trace(temporary_path("t.h5"),
                         {.tokens = {150, 20, 1}, .layers = {0, 3}, .d = 80, .dv = 64}),
              "cpu");
  go(make_cluster_plan(cpu));
  ClusterOptions o = options(cpu.traces[0], "device");
  o.device = "cuda";
  go(make_cluster_plan(o));
  expect_same_tables(cpu, o);
  EXPECT_NE(read_bytes(fs::path(o.out) / "cluster.json").find("\"gpu\""), std::string::npos);
}

}  // namespace
}  // namespace kvbench::test_gpu_cluster
