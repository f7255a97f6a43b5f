// Whole runs on a GPU, or on another backend, against the CPU: what the tests of both protocols
// share. The emulated device of tests/emulated counts as a GPU.
#pragma once

#include "gpu/device.hpp"
#include "replay_run.hpp"
#include "report/table_spec.hpp"

namespace kvbench::testing_gpu {

using testing_replay::make_trace;
using testing_replay::TraceShape;

// Metrics of both are float64 sums of up to thousands of terms in different orders; on a figure of
// size 1 that is 1e-12 at most, and a figure may be a difference of such (errors near 0). The
// project promises 1e-5.
inline constexpr double kRelative = 1e-9;
inline constexpr double kAbsolute = 1e-11;

inline bool cuda_is_here() {
  return choose_device("auto").cuda;
}

class GpuRuns : public testing_replay::ReplayTest {
 protected:
  static void go(Plan plan, const OpenDevice& device) {
    static const std::atomic<bool> go_on = false;
    if (device) {
      plan.open_device = device;
    }
    run_plan(plan, "test", go_on);
  }

  // Runs the options on the CPU and on `device` (empty: on a GPU), and compares every field.
  void expect_same(ReplayOptions o, const OpenDevice& device, const std::string& what) const {
    o.out = (folder_ / "cpu.csv").string();
    o.device = "cpu";
    go(make_plan(o), nullptr);
    const Table cpu = read_table(o.out);
    const std::vector<Fields> cpu_kept =
        testing_rows::read_without_run(kept_table().path(o.out)).rows;
    o.out = (folder_ / "device.csv").string();
    if (!device) {
      o.device = "cuda";
    }
    go(make_plan(o), device);
    const Table other = read_table(o.out);
    std::vector<Fields> other_kept = testing_rows::read_without_run(kept_table().path(o.out)).rows;
    if (!device) {
      for (Fields& line : other_kept) {
        std::ranges::replace(line, "cuda:0", "cpu");
      }
    }
    EXPECT_TRUE(other_kept == cpu_kept) << what << ": other tokens are kept";
    ASSERT_EQ(other.rows.size(), cpu.rows.size()) << what;
    ASSERT_FALSE(cpu.rows.empty());
    for (std::size_t i = 0; i < cpu.rows.size(); ++i) {
      compare_row(cpu.rows[i], other.rows[i], what);
    }
    if (o.protocol == Protocol::stream) {
      compare_steps(read_table(steps_table().path(folder_ / "cpu.csv")).rows,
                    read_table(steps_table().path(folder_ / "device.csv")).rows, what);
    }
  }

  // Keys, positions and bytes the same, errors to rounding.
  static void compare_steps(const std::vector<Fields>& cpu, const std::vector<Fields>& other,
                            const std::string& what) {
    const Fields& header = steps_table().header();
    ASSERT_EQ(other.size(), cpu.size()) << what;
    ASSERT_FALSE(cpu.empty());
    for (std::size_t i = 0; i < cpu.size(); ++i) {
      for (std::size_t c = 0; c < header.size(); ++c) {
        if (header[c] == "device" || header[c] == "run_id" || cpu[i][c] == other[i][c]) {
          continue;
        }
        ASSERT_EQ(header[c], "rel_error") << what << ": " << cpu[i][c] << " " << other[i][c];
        double a = 0.0;
        double b = 0.0;
        ASSERT_TRUE(parse_number(cpu[i][c], a) && parse_number(other[i][c], b)) << what;
        EXPECT_TRUE(std::abs(a - b) <= kRelative * std::abs(a) + kAbsolute)
            << what << " line " << i << ": " << a << " on the device " << b;
      }
    }
  }

  static void compare_row(const Fields& cpu, const Fields& other, const std::string& what) {
    for (std::size_t c = 0; c < columns().size(); ++c) {
      const std::string_view name = columns()[c].name;
      if (columns()[c].timing || name == "device" || name == "run_id" || cpu[c] == other[c]) {
        continue;
      }
      const std::string where = what + ": " + cpu[column_index("algorithm")] + " " +
                                cpu[column_index("params")] + " " + cpu[column_index("status")] +
                                ": " + std::string(name);
      if (name == "diag") {
        compare_diag(cpu[c], other[c], where);
        continue;
      }
      double a = 0.0;
      double b = 0.0;
      ASSERT_TRUE(parse_number(cpu[c], a) && parse_number(other[c], b)) << where << other[c];
      EXPECT_TRUE(std::abs(a - b) <= kRelative * std::abs(a) + kAbsolute)
          << where << " " << cpu[c] << " on the device " << other[c];
    }
  }

  // How many gains are asked for at once is the device's choice; all else must agree.
  static void compare_diag(const std::string& cpu, const std::string& other,
                           const std::string& where) {
    const auto a = split_params(cpu);
    const auto b = split_params(other);
    ASSERT_EQ(a.size(), b.size()) << where;
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].first, b[i].first) << where;
      double x = 0.0;
      double y = 0.0;
      if (a[i].first == "gain_evaluations" || a[i].second == b[i].second) {
        continue;
      }
      ASSERT_TRUE(parse_number(a[i].second, x) && parse_number(b[i].second, y)) << where;
      // diag is written with six to nine digits.
      EXPECT_TRUE(std::abs(x - y) <= 1e-5 * std::abs(x) + kAbsolute)
          << where << " " << a[i].first << " " << x << " on the device " << y;
    }
  }
};

/// Skips, aloud, where there is no GPU.
class OnGpu : public GpuRuns {
 protected:
  void SetUp() override {
    GpuRuns::SetUp();
    if (!cuda_is_here()) {
      GTEST_SKIP() << "no CUDA device or no CUDA in this build: nothing was compared on a GPU";
    }
  }
};

}  // namespace kvbench::testing_gpu
