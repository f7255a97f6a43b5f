// What a replay asks of a backend, how a failing device ends a run, and heads that run together:
// with a backend that counts and asks the CPU.
#include "counting_backend.hpp"
#include "gpu_runs.hpp"
#include "report/merge.hpp"

namespace kvbench::test_replay_backend {
namespace {

using namespace testing_gpu;
using testing_backend::Calls;
using testing_backend::CountingBackend;
using testing_replay::read_bytes;

class ReplayBackend : public GpuRuns {
 protected:
  ReplayOptions options(const std::string& out) const {
    ReplayOptions o = small_run(out);
    o.overwrite = true;
    return o;
  }
  OpenDevice counting() {
    return [this](const KvHead&, std::size_t) { return std::make_unique<CountingBackend>(calls_); };
  }
  Calls calls_;
};

// 2 prompts x 2 layers x 2 KV heads of 2 query heads; a method that went round the backend would
// produce the same rows.
TEST_F(ReplayBackend, IsAsked) {
  ReplayOptions o = options("x.csv");
  const auto ask = [&](const std::string& algorithm) {
    o.algorithms = {algorithm};
    o.seeds = "1";
    go(make_plan(o), counting());
  };
  ask("knorm:tokens=9");
  EXPECT_EQ(calls_.opened, 8);
  EXPECT_EQ(calls_.truths, 16);
  EXPECT_EQ(calls_.pieces, 16 * 4);  // sinks, recent tokens, what was kept, what was made
  EXPECT_EQ(calls_.sums + calls_.rows + calls_.walks + calls_.facility + calls_.nearest, 0);
  ask("h2o:tokens=9");
  EXPECT_EQ(calls_.sums, 8);
  ask("clustergen-kcenter:tokens=9");
  EXPECT_EQ(calls_.centers, 8);
  ask("balancekv:tokens=9");
  EXPECT_GE(calls_.walks, 8);
  ask("count-merge:tokens=9");
  EXPECT_EQ(calls_.nearest, 8);
  ask("d2o:tokens=9");
  EXPECT_EQ(calls_.nearest, 16);
  ask("value-merge:tokens=9");
  EXPECT_EQ(calls_.nearest, 24);
  ask("kmeans:tokens=9");
  EXPECT_EQ(calls_.centers, 16);
  ask("clustergen:delta=1");
  EXPECT_GE(calls_.clusters, 8);
  ask("bumblebee:tokens=9");
  EXPECT_EQ(calls_.facility, 8);
  o.protocol = Protocol::stream;
  ask("h2o:tokens=20");
  EXPECT_EQ(calls_.evictions, 8);
  ask("bumblebee-stream:tokens=20");
  EXPECT_EQ(calls_.retentions, 8);
  ask("clustergen:delta=1");
  EXPECT_EQ(calls_.streams, 16);  // under prefill too
  ask("kvreviver:tokens=30;slack=1;rows=1");
  EXPECT_EQ(calls_.revivals, 4);  // the other prompt fits as it is
}

// The third head does not fit, or the device is gone in the middle of a job: the run ends with the
// device's own words, whole jobs stay, and resuming on a good device completes them.
TEST_F(ReplayBackend, AFailingDeviceKeepsFinishedRows) {
  ReplayOptions o = options("whole.csv");
  o.algorithms = {"knorm", "h2o"};
  o.budgets = {0.5, 0.2};
  o.seeds = "2";
  go(make_plan(o), counting());
  const auto whole = testing_replay::untimed(o.out);
  class Gone final : public CountingBackend {
   public:
    using CountingBackend::CountingBackend;
    std::vector<std::vector<double>> attention_sums(const KvHead&, Range) const override {
      throw IoError("cuda:0: unspecified launch failure");
    }
  };
  for (const bool at_once : {true, false}) {
    int heads = 0;
    const OpenDevice failing = [&](const KvHead&, std::size_t) -> std::unique_ptr<Backend> {
      if (++heads < 3) {
        return std::make_unique<CountingBackend>(calls_);
      }
      if (at_once) {
        throw IoError("cuda:0: out of memory");
      }
      return std::make_unique<Gone>(calls_);
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
    MergeOptions merge;
    merge.inputs = {log_path(o.out)};
    merge.output = folder_ / "kept.csv";
    merge.overwrite = true;
    merge_runs(merge);
    const auto kept = testing_replay::untimed(merge.output);
    EXPECT_GE(kept.size(), 2U * 4U * 2U) << "two heads of 4 jobs of 2 rows";
    EXPECT_LT(kept.size(), whole.size());
    o.overwrite = false;
    o.resume = true;
    go(make_plan(o), counting());
    EXPECT_EQ(testing_replay::untimed(o.out), whole);
  }
}

TEST_F(ReplayBackend, SeveralHeadsAtOnceProduceTheSameFiles) {
  for (const Protocol protocol : {Protocol::prefill, Protocol::stream}) {
    ReplayOptions o = options("one.csv");
    o.traces = {make_trace(folder_ / (std::string(name(protocol)) + ".h5"),
                           {.layers = {0, 2}, .hidden = 5, .residual_norm = true})};
    o.algorithms = {"local", "h2o"};
    o.budgets = {0.5};
    o.protocol = protocol;
    go(make_plan(o), counting());
    const auto one = testing_replay::untimed(o.out);
    const std::string layers = read_bytes(layers_table().path(o.out));
    const std::string kept = read_bytes(kept_table().path(o.out));
    for (const Index heads : {2, 3, 100}) {  // of a wave: within a layer, across layers, all
      o.out = (folder_ / "more.csv").string();
      Plan plan = make_plan(o);
      plan.heads_at_once = heads;
      go(std::move(plan), counting());
      EXPECT_EQ(testing_replay::untimed(o.out), one);
      EXPECT_EQ(read_bytes(layers_table().path(o.out)), layers);
      EXPECT_EQ(read_bytes(kept_table().path(o.out)), kept);
    }
  }
}

TEST_F(ReplayBackend, ADeviceThatIsNotThereIsRefused) {
  for (const char* text : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda0", "CUDA", "cuda:0x"}) {
    EXPECT_THROW(choose_device(text), InputError) << text;
  }
  EXPECT_THROW(choose_device("cuda:99"), IoError);
  EXPECT_EQ(choose_device("cpu").text(), "cpu");
  EXPECT_EQ((DeviceChoice{true, 3}.text()), "cuda:3");
  ReplayOptions o = options("x.csv");
  o.algorithms = {"exact"};
  o.device = "auto";
  EXPECT_EQ(make_plan(o).options.device, cuda_is_here() ? "cuda:0" : "cpu");
}

}  // namespace
}  // namespace kvbench::test_replay_backend
