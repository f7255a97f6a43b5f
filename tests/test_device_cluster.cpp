// kvbench cluster on a device: what it asks of rows there against the CPU's functions, and whole
// runs on a HostMachine, which executes every kernel and driver that a GPU does; on a GPU where
// there is one.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "attention/device.hpp"
#include "attention/device_rows_on.hpp"
#include "cluster/growth.hpp"
#include "cluster/pca.hpp"
#include "cluster/rows.hpp"
#include "core/error.hpp"
#include "make_head.hpp"
#include "make_trace.hpp"
#include "replay/cluster_run.hpp"
#include "report/csv.hpp"
#include "trace_files.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;
using testing_replay::make_trace;
using testing_replay::read_bytes;
using testing_replay::TraceShape;
using testing_traces::temporary_path;

constexpr HostMachine::Order kOrders[] = {HostMachine::Order::forward,
                                          HostMachine::Order::backward};

// Sums of at most 1100 products in float64, two roundings each: 1100 * 2^-52.
constexpr double kSumRounding = 2.5e-13;

void expect_bits(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

std::unique_ptr<DeviceRows> on_host(MatrixView rows, HostMachine::Order order,
                                    std::size_t scratch_bytes) {
  HostMachine machine(order);
  machine.set_scratch_bytes(scratch_bytes);
  return std::make_unique<DeviceRowsOn<HostMachine>>(machine, rows);
}

// ----------------------------------------------------------------------------------- functions

TEST(DeviceRows, NormsCoverageAndGrowthToTheBit) {
  std::mt19937_64 generator(1);
  for (const Index d : {1, 3, 64, 80, 96, 128, 256}) {
    for (const Index n : {1, 2, 65, 513}) {
      Matrix rows = normal_matrix(n, d, 5.0, generator);
      std::fill_n(rows.row(n / 2), d, 0.0F);
      std::copy_n(rows.row(0), d, rows.row(n - 1));
      const Coverage curve = coverage(rows, 5, 64);
      const double radius = curve.curve.front().radius;
      for (const auto order : kOrders) {
        SCOPED_TRACE(testing::Message() << n << " rows of " << d);
        const auto device = on_host(rows, order, 1 << 20);
        expect_bits(row_norms(rows), row_norms(rows, device.get()));
        const Coverage found = coverage(rows, 5, 64, device.get());
        EXPECT_EQ(curve.curve, found.curve);
        EXPECT_EQ(curve.centers, found.centers);
        for (const double relative : {0.0, 0.5, 1.0}) {
          for (const Index most : {Index{20}, n}) {
            const DeltaGrowth cpu = delta_growth(rows, relative * radius, most);
            const DeltaGrowth other = delta_growth(rows, relative * radius, most, device.get());
            EXPECT_EQ(cpu.counts, other.counts);
            expect_bits({cpu.delta, cpu.law.alpha, cpu.law.r2},
                        {other.delta, other.law.alpha, other.law.r2});
          }
        }
      }
    }
  }
}

TEST(DeviceRows, MomentsByDefinitionWhateverTheScratch) {
  std::mt19937_64 generator(2);
  for (const Index d : {1, 3, 63, 64, 65, 130}) {
    for (const Index n : {1, 2, 511, 513, 1100}) {
      SCOPED_TRACE(testing::Message() << n << " rows of " << d);
      Matrix rows = normal_matrix(n, d, 5.0, generator);
      for (Index i = 0; i < n; ++i) {
        rows.row(i)[0] += 100.0F;  // products of uncentred values would lose digits here
      }
      const RowMoments first = on_host(rows, kOrders[0], 1 << 24)->moments();
      const RowMoments second = on_host(rows, kOrders[1], 1)->moments();
      expect_bits(first.mean, second.mean);
      expect_bits(first.covariance, second.covariance);
      expect_bits(first.mean, principal_components(rows, 1).mean);
      ASSERT_EQ(first.covariance.size(), static_cast<std::size_t>(d * d));
      for (Index t = 0; t < d; t += 1 + d / 9) {
        for (Index u = 0; u < d; ++u) {
          const double got = first.covariance[static_cast<std::size_t>(t * d + u)];
          if (u > t) {
            EXPECT_EQ(got, 0.0);
            continue;
          }
          long double sum = 0.0L;
          long double scale = 0.0L;
          for (Index i = 0; i < n; ++i) {
            // From the float64 means: their own rounding is not the covariance's.
            const long double x =
                rows.row(i)[t] - static_cast<long double>(first.mean[static_cast<std::size_t>(t)]);
            const long double y =
                rows.row(i)[u] - static_cast<long double>(first.mean[static_cast<std::size_t>(u)]);
            sum += x * y / static_cast<long double>(n);
            scale += std::abs(x * y) / static_cast<long double>(n);
          }
          const auto off = static_cast<double>(std::abs(sum - static_cast<long double>(got)));
          EXPECT_TRUE(off <= kSumRounding * static_cast<double>(scale) + 1e-300) << t << " " << u;
        }
      }
    }
  }
}

TEST(DeviceRows, PrincipalComponentsAgreeToRounding) {
  std::mt19937_64 generator(3);
  for (const Index d : {1, 3, 64, 96}) {
    Matrix rows = normal_matrix(700, d, 5.0, generator);
    for (Index i = 0; i < rows.rows() * d; ++i) {  // gaps between all variances
      rows.data()[i] *= static_cast<float>(std::pow(0.93, static_cast<double>(i % d)));
    }
    const Pca cpu = principal_components(rows, 8);
    const Pca found = principal_components(rows, 8, on_host(rows, kOrders[1], 1 << 20).get());
    ASSERT_EQ(cpu.variance.size(), found.variance.size());
    ASSERT_EQ(cpu.components.size(), found.components.size());
    expect_bits(cpu.mean, found.mean);
    for (std::size_t c = 0; c < cpu.variance.size(); ++c) {
      EXPECT_NEAR(cpu.variance[c], found.variance[c], 1e-12 * cpu.variance[0]);
    }
    for (std::size_t i = 0; i < cpu.components.size(); ++i) {
      EXPECT_NEAR(cpu.components[i], found.components[i], 1e-9);
    }
  }
}

// ---------------------------------------------------------------------------------- whole runs

ClusterOptions options(const std::string& trace, const std::string& folder) {
  ClusterOptions o;
  o.traces = {trace};
  o.out = temporary_path(folder);
  fs::remove_all(o.out);
  o.study.components = 3;
  o.study.centers = 4;
  o.study.deltas = {1.5};
  o.study.deltas_rel = {0.0, 0.3, 0.8};
  o.threads = 3;
  return o;
}

ClusterResult go(const ClusterPlan& plan) {
  const std::atomic<bool> stop = false;
  return run_cluster(plan, "kvbench cluster", stop);
}

// Coordinates are float32 of projections whose axes agree to rounding over the variances' gaps.
constexpr double kPointRounding = 1e-5;

void expect_same_points(const Table& a, const Table& b) {
  ASSERT_EQ(a.header, b.header);
  ASSERT_EQ(a.rows.size(), b.rows.size());
  ASSERT_FALSE(a.rows.empty());
  const std::size_t coordinates = a.column("x0");
  for (std::size_t i = 0; i < a.rows.size(); ++i) {
    for (std::size_t c = 0; c < a.header.size(); ++c) {
      if (c < coordinates || a.rows[i][c].empty()) {
        ASSERT_EQ(a.rows[i][c], b.rows[i][c]);
      } else {
        const double x = std::stod(a.rows[i][c]);
        const double y = std::stod(b.rows[i][c]);
        ASSERT_TRUE(std::abs(x - y) <= kPointRounding * (1.0 + std::abs(x))) << x << " " << y;
      }
    }
  }
}

void expect_same_tables(const ClusterOptions& a, const ClusterOptions& b) {
  for (const char* name : {"coverage.csv", "delta.csv", "growth.csv", "norms.csv"}) {
    const std::string bytes = read_bytes(fs::path(a.out) / name);
    EXPECT_GT(std::count(bytes.begin(), bytes.end(), '\n'), 8) << name;
    EXPECT_EQ(bytes, read_bytes(fs::path(b.out) / name)) << name;
  }
  expect_same_points(read_table(fs::path(a.out) / "points.csv"),
                     read_table(fs::path(b.out) / "points.csv"));
}

struct Calls {
  std::atomic<int> opened = 0, centers = 0, covers = 0, norms = 0, moments = 0;
};

class CountingRows final : public DeviceRows {
 public:
  CountingRows(std::unique_ptr<DeviceRows> rows, Calls& calls)
      : rows_(std::move(rows)), calls_(calls) {
    ++calls_.opened;
  }
  KCenter k_center(Index k) const override {
    ++calls_.centers;
    return rows_->k_center(k);
  }
  Cover delta_cover(double delta, Index max_clusters) const override {
    ++calls_.covers;
    return rows_->delta_cover(delta, max_clusters);
  }
  std::vector<double> norms() const override {
    ++calls_.norms;
    return rows_->norms();
  }
  RowMoments moments() const override {
    ++calls_.moments;
    return rows_->moments();
  }

 private:
  std::unique_ptr<DeviceRows> rows_;
  Calls& calls_;
};

TEST(DeviceCluster, TablesAreTheCpusToTheByte) {
  TraceShape shape;
  shape.tokens = {150, 20, 1};
  shape.layers = {0, 3};
  const ClusterOptions cpu = options(make_trace(temporary_path("t.h5"), shape), "cpu");
  go(make_cluster_plan(cpu));
  for (const auto order : kOrders) {
    ClusterOptions o = options(cpu.traces[0], "device");
    ClusterPlan plan = make_cluster_plan(o);
    Calls calls;
    plan.open_rows = [&](MatrixView rows, std::size_t scratch_bytes) {
      EXPECT_EQ(scratch_bytes, plan.scratch_bytes);
      return std::make_unique<CountingRows>(on_host(rows, order, 4096), calls);
    };
    EXPECT_EQ(go(plan).heads, 3 * 2 * 2);
    expect_same_tables(cpu, o);
    // 3 prompts x 2 layers x 2 heads, keys and values; a run that went round the device would
    // agree.
    EXPECT_EQ(calls.opened, 24);
    EXPECT_EQ(calls.norms, 24);
    EXPECT_EQ(calls.moments, 24);
    EXPECT_EQ(calls.centers, 24 * 2);  // the curve, and the radius that deltas are relative to
    // One row has radius 0: there --delta-rel names one delta.
    EXPECT_EQ(calls.covers, 16 * 4 + 8 * 2);
  }
}

TEST(DeviceCluster, SetsThatAreNotStudiedStayBehind) {
  ClusterOptions cpu = options(make_trace(temporary_path("t.h5")), "cpu");
  cpu.what = {"values"};
  go(make_cluster_plan(cpu));
  ClusterOptions o = cpu;
  o.out = temporary_path("device");
  fs::remove_all(o.out);
  ClusterPlan plan = make_cluster_plan(o);
  Calls calls;
  plan.open_rows = [&](MatrixView rows, std::size_t) {
    EXPECT_EQ(rows.cols, 6);  // dv
    return std::make_unique<CountingRows>(on_host(rows, kOrders[0], 1 << 20), calls);
  };
  go(plan);
  EXPECT_EQ(calls.opened, 2);
  EXPECT_EQ(calls.norms, 2);
  expect_same_tables(cpu, o);
}

TEST(DeviceCluster, AFailingDeviceEndsTheRun) {
  ClusterPlan plan = make_cluster_plan(options(make_trace(temporary_path("t.h5")), "device"));
  int sets = 0;
  plan.open_rows = [&](MatrixView rows, std::size_t) {
    if (++sets > 2) {
      throw IoError("cuda:0: out of memory");
    }
    return on_host(rows, kOrders[0], 1 << 20);
  };
  EXPECT_THROW(go(plan), IoError);
  const Table kept = read_table(fs::path(plan.options.out) / "coverage.csv");
  EXPECT_FALSE(kept.rows.empty());
  for (const Fields& row : kept.rows) {
    EXPECT_EQ(row[kept.column("kv_head")], "0");
  }
}

// -------------------------------------------------------------------------------------- memory

TEST(DeviceCluster, ThreadsAndScratchFitTheDevice) {
  TraceShape shape;
  shape.tokens = {900, 40};
  ClusterOptions o = options(make_trace(temporary_path("t.h5"), shape), "none");
  o.threads = 8;
  const ClusterPlan open = make_cluster_plan(o);
  const std::uint64_t sets = 4 * 900 * (8 + 6);
  const std::uint64_t task = device_rows_task_bytes(900, 8) + device_rows_least_scratch(8);
  const auto fitted = [&](std::uint64_t room) {
    ClusterPlan plan = make_cluster_plan(o);
    fit_device(plan, room);
    EXPECT_GE(plan.scratch_bytes, device_rows_least_scratch(8));
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
    EXPECT_NE(std::string(e.what()).find("899 of its 900 tokens fit"), std::string::npos)
        << e.what();
  }
  EXPECT_THROW(fitted(0), IoError);
  EXPECT_EQ(open.device_threads, 0);
  EXPECT_FALSE(open.open_rows);
}

TEST(DeviceCluster, OnCuda) {
  if (!choose_device("auto").cuda) {
    GTEST_SKIP() << "no CUDA device or no CUDA in this build: nothing was compared on a GPU";
  }
  TraceShape shape;
  shape.tokens = {1500, 513};
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

TEST(DeviceCluster, ADeviceThatIsNotThereIsRefused) {
  ClusterOptions o = options(make_trace(temporary_path("t.h5")), "none");
  o.device = "cuda:99";
  EXPECT_THROW(make_cluster_plan(o), IoError);
  o.device = "gpu";
  EXPECT_THROW(make_cluster_plan(o), InputError);
  o.device = "auto";
  EXPECT_EQ(make_cluster_plan(o).options.device, choose_device("auto").text());
  const Matrix rows(3, 2);
  EXPECT_THROW(open_device_rows(rows, 99, 1 << 20), IoError);
}

}  // namespace
}  // namespace kvbench
