// Runs of `kvbench cluster` on made traces, and how two are compared.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <string>

#include "make_trace.hpp"
#include "replay/cluster_run.hpp"
#include "replay/cluster_tables.hpp"
#include "report_rows.hpp"
#include "trace_files.hpp"

namespace kvbench::testing_cluster {

using testing_replay::make_trace;
using testing_replay::read_bytes;
using testing_replay::TraceShape;
using testing_rows::read_without_run;
using testing_traces::temporary_path;

inline ClusterOptions options(const std::string& trace, const std::string& folder) {
  ClusterOptions o;
  o.traces = {trace};
  o.out = temporary_path(folder);
  std::filesystem::remove_all(o.out);
  o.study.components = 3;
  o.study.centers = 4;
  o.study.deltas = {1.5};
  o.study.deltas_rel = {0.0, 0.3, 0.8};
  o.threads = 3;
  return o;
}

inline ClusterResult go(const ClusterPlan& plan) {
  const std::atomic<bool> stop = false;
  return run_cluster(plan, "kvbench cluster", stop);
}

// Coordinates are float32 of projections whose axes agree to rounding over the variances' gaps.
inline constexpr double kPointRounding = 1e-5;

inline void expect_same_points(const Table& a, const Table& b) {
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

// Coverage, growth and norms to the cell, points to rounding. Not the run's id, which says what
// device was asked for.
inline void expect_same_tables(const ClusterOptions& a, const ClusterOptions& b) {
  namespace fs = std::filesystem;
  for (const auto& [name, columns] : cluster_columns()) {
    if (name == "points.csv") {
      continue;
    }
    const Table table = read_without_run(fs::path(a.out) / name);
    EXPECT_GT(table.rows.size(), name == "keys.csv" ? 1U : 3U) << name;  // a row per head
    const Table other = read_without_run(fs::path(b.out) / name);
    EXPECT_EQ(table.header, other.header) << name;
    EXPECT_EQ(table.rows, other.rows) << name;
  }
  expect_same_points(read_without_run(fs::path(a.out) / "points.csv"),
                     read_without_run(fs::path(b.out) / "points.csv"));
}

}  // namespace kvbench::testing_cluster
