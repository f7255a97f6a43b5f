// What `kvbench cluster` asks of where its rows lie, how a failing device ends a run, and how its
// memory bounds threads: with a backend that counts and asks the CPU.
#include "cluster_runs.hpp"
#include "core/error.hpp"
#include "counting_backend.hpp"
#include "gpu/device.hpp"

namespace kvbench::test_cluster_backend {
namespace {

namespace fs = std::filesystem;
using namespace testing_cluster;
using testing_backend::Calls;
using testing_backend::CountingRows;

TEST(ClusterBackend, RowsAreAskedWhereTheyLie) {
  const ClusterOptions cpu = options(
      make_trace(temporary_path("t.h5"), {.tokens = {150, 20, 1}, .layers = {0, 3}}), "cpu");
  go(make_cluster_plan(cpu));
  ClusterOptions o = options(cpu.traces[0], "device");
  ClusterPlan plan = make_cluster_plan(o);
  Calls calls;
  plan.open_rows = [&](MatrixView rows, std::size_t scratch_bytes) {
    EXPECT_EQ(scratch_bytes, plan.scratch_bytes);
    return std::make_unique<CountingRows>(cpu_rows(rows), calls);
  };
  EXPECT_EQ(go(plan).heads, 3 * 2 * 2);
  expect_same_tables(cpu, o);
  // 3 prompts x 2 layers x 2 heads, keys and values.
  EXPECT_EQ(calls.rows, 24);
  EXPECT_EQ(calls.norms, 24);
  EXPECT_EQ(calls.moments, 24);
  EXPECT_EQ(calls.centers, 24 * 2);  // the curve, and the radius that deltas are relative to
  // One row has radius 0: there --delta-rel names one delta.
  EXPECT_EQ(calls.clusters, 16 * 4 + 8 * 2);
}

TEST(ClusterBackend, SetsThatAreNotStudiedStayBehind) {
  ClusterOptions cpu = options(make_trace(temporary_path("t.h5")), "cpu");
  cpu.what = {LayerTensor::values};
  go(make_cluster_plan(cpu));
  ClusterOptions o = cpu;
  o.out = temporary_path("device");
  fs::remove_all(o.out);
  ClusterPlan plan = make_cluster_plan(o);
  Calls calls;
  plan.open_rows = [&](MatrixView rows, std::size_t) {
    EXPECT_EQ(rows.cols, 6);  // dv
    return std::make_unique<CountingRows>(cpu_rows(rows), calls);
  };
  go(plan);
  EXPECT_EQ(calls.rows, 2);
  EXPECT_EQ(calls.norms, 2);
  expect_same_tables(cpu, o);
}

TEST(ClusterBackend, AFailingDeviceEndsTheRun) {
  ClusterPlan plan = make_cluster_plan(options(make_trace(temporary_path("t.h5")), "device"));
  int sets = 0;
  plan.open_rows = [&](MatrixView rows, std::size_t) {
    if (++sets > 2) {
      throw IoError("cuda:0: out of memory");
    }
    return cpu_rows(rows);
  };
  EXPECT_THROW(go(plan), IoError);
  const Table kept = read_table(fs::path(plan.options.out) / "coverage.csv");
  EXPECT_FALSE(kept.rows.empty());
  for (const Fields& row : kept.rows) {
    EXPECT_EQ(row[kept.column("kv_head")], "0");
  }
}

TEST(ClusterBackend, ThreadsAndScratchFitTheDevice) {
  ClusterOptions o = options(make_trace(temporary_path("t.h5"), {.tokens = {900, 40}}), "none");
  o.threads = 8;
  const std::uint64_t sets = 4 * 900 * (8 + 6);
  const std::uint64_t task = device_rows_task_bytes(900, 8) + device_rows_min_scratch(8);
  const auto fitted = [&](std::uint64_t room) {
    ClusterPlan plan = make_cluster_plan(o);
    fit_device(plan, room);
    EXPECT_GE(plan.scratch_bytes, device_rows_min_scratch(8));
    EXPECT_LE(sets + static_cast<std::uint64_t>(usable_threads(plan)) *
                         (device_rows_task_bytes(900, 8) + plan.scratch_bytes),
              room);
    return usable_threads(plan);
  };
  EXPECT_EQ(fitted(sets + task), 1);
  EXPECT_EQ(fitted(sets + 3 * task - 1), 2);
  EXPECT_EQ(fitted(sets + 3 * task), 3);
  EXPECT_EQ(fitted(std::uint64_t{1} << 40), 8);
  o.memory_limit = std::uint64_t{1} << 30;  // bounds a device's memory as well
  ClusterPlan plan = make_cluster_plan(o);
  fit_device(plan, std::uint64_t{1} << 40);
  EXPECT_LE(8 * plan.scratch_bytes, o.memory_limit);

  o.memory_limit = 0;
  try {
    fitted(sets + task - 1);
    ADD_FAILURE() << "a thread did not fit";
  } catch (const IoError& e) {
    EXPECT_NE(std::string(e.what()).find("enough for 899 of its 900 tokens"), std::string::npos)
        << e.what();
  }
  EXPECT_THROW(fitted(0), IoError);
}

// Names of devices that are not there: tests/cli/cluster.sh.
TEST(ClusterBackend, TakesTheDeviceThatIsThere) {
  ClusterOptions o = options(make_trace(temporary_path("t.h5")), "none");
  o.device = "auto";
  EXPECT_EQ(make_cluster_plan(o).options.device, choose_device("auto").text());
  const Matrix rows(3, 2);
  EXPECT_THROW(open_gpu_rows(rows, 99, 1 << 20), IoError);
}

}  // namespace
}  // namespace kvbench::test_cluster_backend
