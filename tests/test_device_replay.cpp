// Whole prefill replays on a device against the CPU: the same tokens kept, the same bytes and
// states, metrics to rounding. The device is a HostMachine, which runs every kernel and driver that
// a GPU runs; and a CUDA device where there is one.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device_runs.hpp"

namespace kvbench {
namespace {

using namespace testing_device;

// Counts what is asked of a device.
class CountingHead : public DeviceHead {
 public:
  struct Calls {
    std::atomic<int> exact = 0, sums = 0, partial = 0, centers = 0, walks = 0, coverage = 0,
                     similar = 0, covers = 0, revivals = 0, top = 0, quantised = 0, merges = 0;
  };

  CountingHead(std::unique_ptr<DeviceHead> head, Calls& calls)
      : head_(std::move(head)), calls_(calls) {}

  ExactAttention exact_attention(Index g, std::span<const Index> positions) const override {
    ++calls_.exact;
    return head_->exact_attention(g, positions);
  }
  MatrixD exact_probabilities(Index g, std::span<const Index> positions) const override {
    return head_->exact_probabilities(g, positions);
  }
  std::vector<PartialSums> list_sums(const MatrixD& queries,
                                     std::span<const ListPiece> lists) const override {
    return head_->list_sums(queries, lists);
  }
  std::vector<std::vector<double>> attention_sums(Range queries) const override {
    ++calls_.sums;
    return head_->attention_sums(queries);
  }
  PartialSums partial_sums(const MatrixD& queries, const SumPiece& piece) const override {
    ++calls_.partial;
    return head_->partial_sums(queries, piece);
  }
  KCenter k_center(MatrixView points, std::span<const Index> rows, Index k,
                   Index first) const override {
    ++calls_.centers;
    return head_->k_center(points, rows, k, first);
  }
  Cover delta_cover(MatrixView points, std::span<const Index> rows, double delta,
                    Index max_clusters) const override {
    ++calls_.covers;
    return head_->delta_cover(points, rows, delta, max_clusters);
  }
  std::vector<Eviction> evictions(const EvictionRules& rules) const override {
    return head_->evictions(rules);
  }
  std::vector<Index> departures(const RetentionRules& rules) const override {
    return head_->departures(rules);
  }
  ReviveLog revive(const ReviveRules& rules) const override {
    ++calls_.revivals;
    return head_->revive(rules);
  }
  std::vector<Index> top_places(std::span<const double> scores, Index count) const override {
    ++calls_.top;
    return head_->top_places(scores, count);
  }
  Matrix read_back(MatrixView from, std::span<const Index> tokens,
                   const CodeFormat& format) const override {
    ++calls_.quantised;
    return head_->read_back(from, tokens, format);
  }
  Matrix merge_rows(MatrixView from, const RowMerge& merge, DType type) const override {
    ++calls_.merges;
    return head_->merge_rows(from, merge, type);
  }
  WalkCounts balance_blocks(const BalanceBlocks& blocks, std::span<std::int8_t> signs,
                            std::span<double> probability) const override {
    ++calls_.walks;
    return head_->balance_blocks(blocks, signs, probability);
  }
  std::vector<Index> most_similar(std::span<const Index> to,
                                  std::span<const Index> from) const override {
    ++calls_.similar;
    return head_->most_similar(to, from);
  }
  std::unique_ptr<DeviceCoverage> coverage(const UnitKeys& units, Index n,
                                           Similarity kind) const override {
    ++calls_.coverage;
    return head_->coverage(units, n, kind);
  }

 private:
  std::unique_ptr<DeviceHead> head_;
  Calls& calls_;
};

class DeviceReplayTest : public DeviceRuns {
 protected:
  ReplayOptions options(const std::string& out) const {
    ReplayOptions o;
    o.traces = {trace_};
    o.out = (folder_ / out).string();
    o.algorithms = {"all",
                    "balancekv:step=theory,self,fixed,repo",
                    "balancekv:select=strict;denominator=separate;center=none;block=8",
                    "bumblebee:optimizer=greedy,stochastic;sim=one-plus,abs",
                    "bumblebee:matrix_mib=0;lambda=1",
                    "bumblebee:recent_share=0",
                    "clustergen-kcenter:start=farthest-from-mean;weights=cluster",
                    "clustergen-kcenter:recent_share=0;weights=cluster",
                    "h2o+balancekv",
                    "snapkv+uniform"};
    o.budgets = {0.5, 0.2};
    o.seeds = "2";
    o.sink = 4;
    o.recent = 12;
    o.queries = 8;
    o.kept = true;
    o.overwrite = true;
    o.threads = 2;
    return o;
  }
};

TEST_F(DeviceReplayTest, EveryPrefillMethodOnAHostMachine) {
  expect_same(options("x.csv"), host_device(HostMachine::Order::forward, std::size_t{1} << 20),
              kHostRelative, "forward");
  ReplayOptions o = options("x.csv");
  o.scores = "all";
  expect_same(o, host_device(HostMachine::Order::backward, 4096), kHostRelative, "backward, cut");
}

TEST_F(DeviceReplayTest, AHeadOfTheSmallTraceOnAHostMachine) {
  ReplayOptions o = options("x.csv");
  o.traces = {data_file("small.h5")};
  o.algorithms = {"all", "snapkv+balancekv"};
  o.budgets = {0.25};
  o.seeds = "1";
  o.layers = {2};
  o.heads = {0};
  o.sink = o.recent = o.queries = 256;
  expect_same(o, host_device(HostMachine::Order::forward, std::size_t{1} << 24), kHostRelative,
              "the small trace");
}

// 2 prompts x 2 layers x 2 KV heads of 2 query heads; a method that went round the device would
// agree with the CPU all the same.
TEST_F(DeviceReplayTest, TheDeviceIsWhatIsAsked) {
  CountingHead::Calls calls;
  const OpenDevice host = host_device(HostMachine::Order::forward, 1 << 20);
  ReplayOptions o = options("x.csv");
  o.algorithms = {"exact"};
  o.budgets.clear();
  const OpenDevice counting = [&](const KvHead& head, std::size_t scratch) {
    return std::make_unique<CountingHead>(host(head, scratch), calls);
  };
  const auto ask = [&](const std::string& algorithm) {
    o.algorithms = {algorithm};
    o.seeds = "1";
    go(make_plan(o), counting);
  };
  ask("knorm:tokens=9");
  EXPECT_EQ(calls.exact, 16);
  EXPECT_EQ(calls.partial, 16 * 3);  // sinks, recent tokens, what was kept
  EXPECT_EQ(calls.sums + calls.centers + calls.walks + calls.coverage + calls.similar, 0);
  ask("h2o:tokens=9");
  EXPECT_EQ(calls.sums, 8);
  ask("clustergen-kcenter:tokens=9");
  EXPECT_EQ(calls.centers, 8);
  ask("balancekv:tokens=9");
  EXPECT_GE(calls.walks, 8);
  ask("count-merge:tokens=9");
  EXPECT_EQ(calls.similar, 8);
  EXPECT_EQ(calls.merges, 16);  // keys and values
  ask("d2o:tokens=9");
  EXPECT_EQ(calls.similar, 16);
  ask("value-merge:tokens=9");
  EXPECT_EQ(calls.similar, 24);
  EXPECT_EQ(calls.merges, 16);  // weighted means are the CPU's
  ask("kmeans:tokens=9");
  EXPECT_EQ(calls.centers, 16);
  EXPECT_EQ(calls.merges, 32);
  ask("clustergen:delta=1");
  EXPECT_GE(calls.covers, 8);
  ask("kvreviver:prefill=stream;tokens=20;slack=1;rows=1");
  EXPECT_EQ(calls.revivals, 8);
  ask("quant-kivi:bits=4");
  EXPECT_EQ(calls.quantised, 16);
  ask("bumblebee:tokens=9");
  EXPECT_EQ(calls.coverage, 8);
}

// The third head does not fit, or the device is gone in the middle of a job: the run ends with the
// device's own words, whole jobs stay, and resuming on a good device completes them.
TEST_F(DeviceReplayTest, AFailingDeviceKeepsFinishedRows) {
  const OpenDevice host = host_device(HostMachine::Order::forward, 1 << 20);
  ReplayOptions o = options("whole.csv");
  o.algorithms = {"knorm", "h2o"};
  go(make_plan(o), host);
  const auto whole = testing_replay::untimed(o.out);
  class Gone final : public CountingHead {
   public:
    using CountingHead::CountingHead;
    std::vector<std::vector<double>> attention_sums(Range) const override {
      throw IoError("cuda:0: unspecified launch failure");
    }
  };
  for (const bool at_once : {true, false}) {
    CountingHead::Calls calls;
    int heads = 0;
    const OpenDevice failing = [&](const KvHead& head,
                                   std::size_t scratch) -> std::unique_ptr<DeviceHead> {
      if (++heads < 3) {
        return host(head, scratch);
      }
      if (at_once) {
        throw IoError("cuda:0: out of memory");
      }
      return std::make_unique<Gone>(host(head, scratch), calls);
    };
    o.out = (folder_ / "cut.csv").string();
    o.overwrite = true;
    o.resume = false;
    try {
      go(make_plan(o), failing);
      ADD_FAILURE() << "the failure went unnoticed";
    } catch (const IoError& e) {
      EXPECT_EQ(std::string(e.what()).substr(0, 8), "cuda:0: ");
    }
    const auto kept = testing_replay::untimed(o.out);
    EXPECT_GE(kept.size(), 2U * 4U * 2U) << "two heads of 4 jobs of 2 rows";
    EXPECT_LT(kept.size(), whole.size());
    o.overwrite = false;
    o.resume = true;
    go(make_plan(o), host);
    EXPECT_EQ(testing_replay::untimed(o.out), whole);
  }
}

TEST_F(DeviceReplayTest, ShapesAndTypesOnAHostMachine) {
  int seed = 1;
  for (const TraceShape& shape :
       {TraceShape{{65}, {0}, 1, 1, 20, 3, 1, DType::bfloat16, 2, 1.0F, {}},
        TraceShape{{129}, {0}, 8, 1, 0, 16, 24, DType::float32, 3, 1.0F, {}},
        TraceShape{{17}, {0}, 3, 3, 0, 1, 1, DType::float16, 4, 1.0F, {}},
        TraceShape{{1}, {0}, 2, 1, 0, 8, 8, DType::float16, 5, 1.0F, {}},
        TraceShape{{40}, {0}, 2, 1, 0, 8, 8, DType::float16, 6, 0.0F, {}}}) {
    ReplayOptions o = options("x.csv");
    o.traces = {make_trace(folder_ / ("s" + std::to_string(seed++) + ".h5"), shape)};
    o.budgets = {0.5, 0.0};
    o.seeds = "1";
    expect_same(o, host_device(HostMachine::Order::forward, 1 << 14), kHostRelative,
                "shape " + std::to_string(shape.tokens.front()));
  }
}

TEST_F(DeviceReplayTest, EveryPrefillMethodOnCuda) {
  if (!cuda_is_here()) {
    GTEST_SKIP() << "no CUDA device or no CUDA in this build: nothing was compared on a GPU";
  }
  expect_same(options("x.csv"), nullptr, kCudaRelative, "cuda");
}

TEST_F(DeviceReplayTest, TheSmallTraceOnCuda) {
  if (!cuda_is_here()) {
    GTEST_SKIP() << "no CUDA device or no CUDA in this build: nothing was compared on a GPU";
  }
  ReplayOptions o = options("x.csv");
  o.traces = {data_file("small.h5")};
  o.sink = o.recent = o.queries = 256;
  expect_same(o, nullptr, kCudaRelative, "the small trace");
}

TEST_F(DeviceReplayTest, ShapesAndTypesOnCuda) {
  if (!cuda_is_here()) {
    GTEST_SKIP() << "no CUDA device or no CUDA in this build: nothing was compared on a GPU";
  }
  int seed = 1;
  for (const Index d : {64, 80, 96, 128, 256}) {
    for (const DType type : {DType::float16, DType::bfloat16, DType::float32}) {
      TraceShape shape;
      shape.tokens = {513};
      shape.q_heads = 1 + seed % 8;
      shape.kv_heads = 1;
      shape.d = d;
      shape.dv = d == 96 ? 64 : d;
      shape.dtype = type;
      shape.seed = static_cast<std::uint64_t>(seed);
      ReplayOptions o = options("x.csv");
      o.traces = {make_trace(folder_ / ("c" + std::to_string(seed++) + ".h5"), shape)};
      expect_same(o, nullptr, kCudaRelative, "d = " + std::to_string(d));
    }
  }
}

TEST_F(DeviceReplayTest, ADeviceThatIsNotThereIsRefused) {
  for (const char* text : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda0", "CUDA", "cuda:0x"}) {
    EXPECT_THROW(choose_device(text), InputError) << text;
  }
  EXPECT_THROW(choose_device("cuda:99"), IoError);
  EXPECT_EQ(choose_device("cpu").text(), "cpu");
  EXPECT_EQ((DeviceChoice{true, 3}.text()), "cuda:3");
  ReplayOptions o = options("x.csv");
  o.device = "auto";
  EXPECT_EQ(make_plan(o).options.device, cuda_is_here() ? "cuda:0" : "cpu");
  o.gpu_math = "turbo";
  EXPECT_NE(testing_replay::refusal([&] { make_plan(o); }).find("--gpu-math"), std::string::npos);
}

}  // namespace
}  // namespace kvbench
