// Whole runs in tests: a folder with a tiny trace, rows without their timing columns, refusals.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "make_trace.hpp"
#include "replay/run.hpp"
#include "report/csv.hpp"
#include "report/schema.hpp"
#include "report_rows.hpp"

namespace kvbench::testing_replay {

/// Rows of a file, timing columns emptied.
inline std::vector<Fields> untimed(const std::filesystem::path& path) {
  Table table = read_table(path);
  EXPECT_EQ(table.header, schema_header());
  for (Fields& row : table.rows) {
    for (std::size_t i = 0; i < columns().size(); ++i) {
      if (columns()[i].timing) {
        row[i].clear();
      }
    }
  }
  return table.rows;
}

/// The one line with which `act` refuses; a failure where it does not.
inline std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const InputError& e) {
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "accepted, expected a refusal";
  return "";
}

/// Two prompts of 60 and 37 tokens, layers 0 and 2, in a folder of the test's own.
class ReplayTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing_rows::test_folder();
    TraceShape shape;
    shape.tokens = {60, 37};
    shape.layers = {0, 2};
    trace_ = make_trace(folder_ / "t.h5", shape);
  }

  static RunResult run(const ReplayOptions& o) {
    static const std::atomic<bool> go_on = false;
    return run_plan(make_plan(o), "test", go_on);
  }

  std::filesystem::path folder_;
  std::string trace_;
};

}  // namespace kvbench::testing_replay
