// Heads that a run keeps between the check of their values and their jobs.

#include <atomic>
#include <set>

#include "core/error.hpp"
#include "make_head.hpp"
#include "make_trace.hpp"
#include "replay/executor.hpp"
#include "replay/kept_heads.hpp"
#include "replay/planner.hpp"
#include "replay/resources.hpp"
#include "report_rows.hpp"

namespace kvbench::test_kept_heads {
namespace {

namespace fs = std::filesystem;

const std::atomic<bool> kGoOn = false;

void expect_same(const KvHead& a, const KvHead& b) {
  EXPECT_TRUE(same_bits(a.k, b.k) && same_bits(a.v, b.v));
  ASSERT_EQ(a.group(), b.group());
  for (Index g = 0; g < a.group(); ++g) {
    EXPECT_TRUE(same_bits(a.q[g], b.q[g]));
  }
}

class KeptHeadsTest : public ::testing::Test {
 protected:
  // Three layers with two KV heads each.
  void SetUp() override {
    options_.traces = {testing_replay::make_trace(testing_rows::test_folder() / "t.h5",
                                                  {.tokens = {100}, .layers = {0, 1, 2}})};
    options_.algorithms = {"local"};
    options_.budgets = {0.5};
    options_.sink = 10;
    options_.recent = 20;
    options_.queries = 20;
    options_.threads = 1;
  }

  static KvHead read(const Plan& plan, const Unit& unit) {
    return plan.reader(unit).read_head(unit.prompt, unit.layer, unit.kv_head);
  }

  ReplayOptions options_;
};

TEST_F(KeptHeadsTest, AHeadIsTakenOnce) {
  const Plan plan = make_plan(options_);
  const auto one = static_cast<std::uint64_t>(head_bytes(plan.layer_meta(plan.units[0])));
  KeptHeads kept(2 * one);
  for (const Unit& unit : plan.units) {
    kept.keep(unit, read(plan, unit));
  }
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const Unit& unit = plan.units[u];
    const auto taken = kept.take(unit);
    ASSERT_EQ(taken.has_value(), u < 2) << u;  // two fit
    if (taken) {
      expect_same(*taken, read(plan, unit));
    }
    EXPECT_FALSE(kept.take(unit));
  }
  // Taken heads make room.
  kept.keep(plan.units[3], read(plan, plan.units[3]));
  EXPECT_TRUE(kept.take(plan.units[3]));
}

// Jobs of kept heads run although the trace has lost its values since the check.
TEST_F(KeptHeadsTest, AHeadIsReadOnceWhereMemoryAllows) {
  const Plan plan = make_plan(options_);
  Executor executor(plan, 1, kGoOn);
  executor.check_values();
  const fs::path trace = options_.traces.front();
  fs::resize_file(trace, 1);
  std::set<Index> ran;
  executor.run({0, 3, 5}, {[&](Index job, const JobResult& result) {
                             ran.insert(job);
                             for (const Row& row : result.rows) {
                               EXPECT_EQ(row.status, "ok");
                             }
                           },
                           [] {}});
  EXPECT_EQ(ran, (std::set<Index>{0, 3, 5}));
  EXPECT_THROW(executor.run({0}, {[](Index, const JobResult&) {}, [] {}}), InputError);
}

TEST_F(KeptHeadsTest, HeadsOfOtherShardsDoNotWait) {
  options_.shard_index = 2;
  options_.shard_count = 2;
  const Plan plan = make_plan(options_);
  Executor executor(plan, 1, kGoOn);
  executor.check_values();
  fs::resize_file(options_.traces.front(), 1);
  EXPECT_THROW(executor.run({0}, {[](Index, const JobResult&) {}, [] {}}), InputError);
  executor.run({3, 5}, {[](Index, const JobResult&) {}, [] {}});
}

TEST_F(KeptHeadsTest, AMemoryLimitIsForTheJobs) {
  Plan plan = make_plan(options_);
  const auto one = static_cast<std::uint64_t>(head_bytes(plan.layer_meta(plan.units[0])));
  EXPECT_EQ(kept_bytes(plan), 6 * one);
  plan.options.memory_limit = std::uint64_t{1} << 40;
  EXPECT_EQ(kept_bytes(plan), 0U);
}

}  // namespace
}  // namespace kvbench::test_kept_heads
