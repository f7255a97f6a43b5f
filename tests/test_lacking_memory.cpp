// Jobs that get no memory run again alone; if that fails too, their rows say so and a resumed run
// computes them.

#include <chrono>
#include <new>
#include <thread>

#include "replay_run.hpp"
#include "report/table_spec.hpp"
#include "stopping_method.hpp"

namespace kvbench::test_lacking_memory {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;

enum class Memory { enough, alone, none };

std::atomic<Memory> memory = Memory::enough;
std::atomic<bool> device = false;  // the device's memory is short, not the host's
std::atomic<int> running = 0;
std::atomic<int> failures = 0;

[[noreturn]] void fail() {
  ++failures;
  if (device) {
    throw OutOfMemory("cuda:0: out of memory");
  }
  throw std::bad_alloc();
}

// Jobs get memory only alone, or those of the second KV head get none.
Compressed hungry(const Task& task, const Params& params) {
  struct Running {
    Running() { ++running; }
    ~Running() { --running; }
  } const now;
  for (int wait = 0; memory == Memory::alone && failures == 0 && running < 2 && wait < 1000;
       ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // until another job runs
  }
  if ((memory == Memory::alone && running > 1) || (memory == Memory::none && task.kv_head == 1)) {
    fail();
  }
  return stopping(task, params);
}

class LackingMemory : public ReplayTest {
 protected:
  void SetUp() override {
    ReplayTest::SetUp();
    TraceShape shape = small_shape(7);
    shape.residual_norm = true;
    trace_ = make_trace(folder_ / "t.h5", shape);
    method_.info.name = "hungry";
    method_.compress = hungry;
    go("whole.csv");
  }

  // 8 heads of 3 jobs with two rows each.
  RunResult go(const std::string& out, Memory has = Memory::enough, bool resume = false,
               bool keep_log = false) const {
    memory = has;
    failures = 0;
    ReplayOptions o = small_run(out);
    o.resume = resume;
    o.keep_log = keep_log;
    return run_until(plan_of_seeds(o, method_, 3));
  }

  void expect_whole(const std::string& out) const {
    expect_same(untimed(folder_ / out), untimed(folder_ / "whole.csv"), out);
    for (const TableSpec* side : {&layers_table(), &kept_table()}) {
      const auto text = [&](const char* csv) { return read_table(side->path(folder_ / csv)).rows; };
      EXPECT_EQ(text(out.c_str()), text("whole.csv")) << side->name();
    }
  }

  Method method_;
};

TEST_F(LackingMemory, AJobRunsAgainAlone) {
  for (const bool on_device : {false, true}) {
    device = on_device;
    const std::string out = on_device ? "device.csv" : "host.csv";
    EXPECT_EQ(go(out, Memory::alone).failed, 0);
    EXPECT_GT(failures, 0);
    expect_whole(out);
  }
}

TEST_F(LackingMemory, AJobThatFailsAloneIsComputedByAResumedRun) {
  device = false;
  for (const bool log : {false, true}) {  // of a killed run; otherwise of one that has ended
    const std::string out = log ? "killed.csv" : "ended.csv";
    const RunResult first = go(out, Memory::none, false, log);
    EXPECT_EQ(first.rows, 48);
    EXPECT_EQ(first.failed, 24);
    EXPECT_EQ(failures, 2 * 12);
    for (const Fields& row : untimed(folder_ / out)) {
      const bool lacked = row[column_index("kv_head")] == "1";
      EXPECT_EQ(row[column_index("status")], lacked ? kLackedMemory : "ok");
      EXPECT_EQ(row[column_index("rel_error")].empty(), lacked);
    }
    if (log) {
      for (const Output& table : table_files(folder_ / out)) {
        fs::remove(table.path);
      }
    }
    EXPECT_EQ(go(out, Memory::none, true).failed, 24);
    EXPECT_EQ(failures, 2 * 12);
    EXPECT_EQ(go(out, Memory::enough, true).failed, 0);
    EXPECT_GE(calls_made, 12);
    expect_whole(out);
    EXPECT_EQ(go(out, Memory::none, true).resumed, 48);
    EXPECT_EQ(calls_made, 0);
  }
}

}  // namespace
}  // namespace kvbench::test_lacking_memory
