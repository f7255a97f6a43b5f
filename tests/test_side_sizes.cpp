// The estimate of --dry-run against the tables that a run then writes, in bytes.
#include <gtest/gtest.h>

#include <fstream>

#include "replay/side_sizes.hpp"
#include "replay_run.hpp"

namespace kvbench::test_side_sizes {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;

// What docs/cli.md says of it.
constexpr double kFactor = 1.5;

class SideSizes : public ReplayTest {
 protected:
  ReplayOptions options() const {
    ReplayOptions o;
    o.traces = {(folder_ / "long.h5").string()};
    o.out = (folder_ / "out.csv").string();
    o.algorithms = {"all"};
    o.budgets = {0.25, 0.125};
    o.sink = 4;
    o.recent = 64;
    o.queries = 40;
    o.threads = 1;
    o.kept = true;
    return o;
  }

  void SetUp() override {
    ReplayTest::SetUp();
    TraceShape shape;
    shape.tokens = {500};
    shape.layers = {0};
    make_trace(folder_ / "long.h5", shape);
  }

  void expect_near(const ReplayOptions& o, std::size_t tables) {
    const std::vector<SideSize> sizes = side_sizes(make_plan(o));
    ASSERT_EQ(sizes.size(), tables);
    run(o);
    for (const SideSize& size : sizes) {
      const fs::path path = size.table->path(o.out);
      const auto bytes = static_cast<double>(fs::file_size(path));
      EXPECT_TRUE(size.bytes <= kFactor * bytes && bytes <= kFactor * size.bytes)
          << path << ": estimate " << size.bytes << ", " << bytes;
    }
  }
};

TEST_F(SideSizes, QueriesAndKeptTokens) {
  for (const PerQuery per_query : {PerQuery::bins, PerQuery::all}) {
    ReplayOptions o = options();
    o.per_query = per_query;
    o.overwrite = true;
    expect_near(o, 2);
  }
}

TEST_F(SideSizes, AShard) {
  ReplayOptions o = options();
  o.per_query = PerQuery::bins;
  o.shard_count = 2;
  expect_near(o, 2);
}

TEST_F(SideSizes, Streams) {
  ReplayOptions o = options();
  o.protocol = Protocol::stream;
  expect_near(o, 2);
}

TEST_F(SideSizes, NoneWhereNoneIsWritten) {
  ReplayOptions o = options();
  o.kept = false;
  EXPECT_TRUE(side_sizes(make_plan(o)).empty());
}

}  // namespace
}  // namespace kvbench::test_side_sizes
