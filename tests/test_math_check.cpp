// `--gpu-math fast` in whole runs, on a HostMachine that multiplies as tensor cores do, and what
// the manifest says of it.
#include <gtest/gtest.h>

#include <deque>
#include <mutex>

#include "device_runs.hpp"
#include "report/manifest.hpp"

namespace kvbench {
namespace {

using namespace testing_device;

// What is promised of fast mode: means of rel_error within 1% of exact mode's.
constexpr double kPromise = 0.01;
// Errors below this are rounding in one mode or the other.
constexpr double kFloor = 1e-4;

OpenDevice host_as(GpuMath math) {
  return [=](const KvHead& head, std::size_t) {
    return std::make_unique<DeviceHeadOn<HostMachine>>(HostMachine(), head, math);
  };
}

class MathCheckTest : public DeviceRuns {
 protected:
  ReplayOptions options() const {
    ReplayOptions o;
    o.traces = {data_file("small.h5")};
    o.out = (folder_ / "fast.csv").string();
    o.algorithms = {"all"};
    o.budgets = {0.0625};
    o.layers = {2};
    o.heads = {0};
    o.queries = 64;
    o.overwrite = true;
    o.threads = 2;
    return o;
  }

  static RunResult run_with(const ReplayOptions& o, const OpenDevice& fast,
                            const OpenDevice& exact) {
    static const std::atomic<bool> go_on = false;
    Plan plan = make_plan(o);
    plan.open_device = fast;
    plan.open_exact = exact;
    return run_plan(plan, "test", go_on);
  }
};

TEST_F(MathCheckTest, FastIsWithinOnePercentOfExactForEveryMethod) {
  const ReplayOptions o = options();
  const RunResult result = run_with(o, host_as(GpuMath::fast), host_as(GpuMath::exact));
  ASSERT_FALSE(result.math.entries.empty());
  EXPECT_EQ(result.math.layer, 2);
  EXPECT_EQ(result.math.kv_head, 0);
  int compared = 0;
  for (const MathCheck& c : result.math.entries) {
    SCOPED_TRACE(c.algorithm + " " + c.params);
    EXPECT_TRUE(c.same_status);
    EXPECT_LE(c.differing, kPromise);
    if (c.rel_error > kFloor) {
      ++compared;
      EXPECT_LE(std::abs(c.difference), kPromise * c.rel_error);
    } else {
      EXPECT_LE(std::abs(c.difference), kPromise * kFloor);
    }
  }
  EXPECT_GT(compared, 15);
  EXPECT_LE(result.math.most_difference(kFloor), kPromise);

  const nlohmann::json json = manifest_to_json(read_manifest(o.out)).at("gpu_math_check");
  EXPECT_EQ(json, to_json(result.math));
  EXPECT_EQ(json.at("entries").size(), result.math.entries.size());
  EXPECT_EQ(json.at("most_differing_tokens"), result.math.most_differing());
}

// A device that takes another head's keys for this one's must not pass unseen.
TEST_F(MathCheckTest, ADeviceThatIsWrongIsSeen) {
  std::deque<KvHead> heads;
  std::mutex mutex;
  const OpenDevice wrong = [&](const KvHead& head, std::size_t) {
    const std::lock_guard lock(mutex);
    heads.push_back(head);
    KvHead& other = heads.back();
    for (Index i = 0; i < other.n() * other.d(); ++i) {
      other.k.data()[i] *= static_cast<float>(1 + i % 3);
    }
    return std::make_unique<DeviceHeadOn<HostMachine>>(HostMachine(), other);
  };
  ReplayOptions o = options();
  o.traces = {trace_};
  o.layers = {0};
  o.sink = 4;
  o.recent = o.queries = 8;
  o.algorithms = {"balancekv:step=greedy", "count-merge", "knorm"};
  o.budgets = {0.5};
  o.seeds = "3";
  const RunResult result = run_with(o, wrong, host_as(GpuMath::exact));
  ASSERT_EQ(result.math.entries.size(), 3U) << "of a random method the first seed alone";
  EXPECT_GT(result.math.most_difference(), kPromise);
  for (const MathCheck& c : result.math.entries) {
    if (c.algorithm == "balancekv") {
      EXPECT_GT(c.differing, kPromise);
    }
    if (c.algorithm == "knorm") {  // chosen from norms on the CPU: only its estimate is wrong
      EXPECT_EQ(c.differing, 0.0);
      EXPECT_GT(c.tokens, 0);
    }
  }
}

TEST_F(MathCheckTest, StreamsAndExactRuns) {
  ReplayOptions o = options();
  o.traces = {trace_};
  o.layers = {0};
  o.algorithms = {"local", "balancekv-stream:t=16"};
  o.budgets = {0.6};
  o.protocol = "stream";
  o.sink = 4;
  o.recent = o.queries = 8;
  const RunResult fast = run_with(o, host_as(GpuMath::fast), host_as(GpuMath::exact));
  ASSERT_EQ(fast.math.entries.size(), 2U);
  for (const MathCheck& c : fast.math.entries) {
    EXPECT_TRUE(c.same_status) << c.algorithm;
    EXPECT_GT(c.tokens, 0) << c.algorithm;
  }
  EXPECT_EQ(fast.math.entries.front().differing, 0.0) << "nothing is multiplied to choose these";
  const RunResult exact = run_with(o, host_as(GpuMath::exact), nullptr);
  EXPECT_TRUE(exact.math.entries.empty());
  EXPECT_TRUE(manifest_to_json(read_manifest(o.out)).at("gpu_math_check").is_null());
}

// Rows of one mode must not be continued in the other.
TEST_F(MathCheckTest, ThePlanKnowsTheMode) {
  Plan plan = make_plan(options());
  const std::string exact = plan.hash();
  plan.options.gpu_math = "fast";
  EXPECT_EQ(plan.hash(), exact) << "on the CPU there is one mode";
  plan.options.device = "cuda:0";
  const std::string fast = plan.hash();
  plan.options.gpu_math = "exact";
  EXPECT_NE(plan.hash(), fast);
}

TEST_F(MathCheckTest, FastOnCuda) {
  if (!cuda_is_here()) {
    GTEST_SKIP() << "no CUDA device or no CUDA in this build: nothing was compared on a GPU";
  }
  ReplayOptions o = options();
  o.device = "cuda";
  o.gpu_math = "fast";
  static const std::atomic<bool> go_on = false;
  const RunResult result = run_plan(make_plan(o), "test", go_on);
  ASSERT_FALSE(result.math.entries.empty());
  EXPECT_LE(result.math.most_difference(kFloor), kPromise);
  for (const MathCheck& c : result.math.entries) {
    EXPECT_TRUE(c.same_status) << c.algorithm;
  }
}

}  // namespace
}  // namespace kvbench
