// The CUDA build on an emulated device (cuda_runtime.h beside this file): the program's own device
// code, lanes and matrix operations included, against the CPU; how a device's lacks and failures
// are told; and that the emulation sees the mistakes that it is there for.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "core/cuda.cuh"
#include "core/tile_product.hpp"
#include "device_runs.hpp"
#include "make_head.hpp"

namespace kvbench {
namespace {

using namespace testing_device;

// The device as it was, with no error left and nothing allocated.
class Whole {
 public:
  Whole() = default;
  ~Whole() {
    emulated::reset_fault();
    EXPECT_EQ(emulated::card().live_bytes, 0U) << "memory that was not freed";
    emulated::card().devices = 1;
    emulated::card().driver_too_old = false;
    emulated::card().has_kernels = true;
    emulated::card().bytes = std::size_t{4} << 30;
  }
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;
};

template <class F>
std::string io_error(const F& f) {
  try {
    f();
  } catch (const IoError& e) {
    return e.what();
  }
  return "none";
}

void expect_says(const std::string& text, const std::string& words) {
  EXPECT_NE(text.find(words), std::string::npos) << words << " is not in: " << text;
}

// ------------------------------------------------------------------------------------ whole runs

class EmulatedCudaRuns : public DeviceRuns {
 protected:
  // A trace of one KV head whose shape depends on `seed`.
  ReplayOptions options(int seed, Index d, DType type, Index tokens) {
    TraceShape shape;
    shape.tokens = {tokens};
    shape.q_heads = 1 + seed % 8;
    shape.kv_heads = 1;
    shape.d = d;
    shape.dv = d == 96 ? 64 : d;
    shape.dtype = type;
    shape.seed = static_cast<std::uint64_t>(seed);
    ReplayOptions o;
    o.traces = {make_trace(folder_ / ("e" + std::to_string(seed) + ".h5"), shape)};
    o.algorithms = {"all"};
    o.budgets = {0.4};
    o.sink = 4;
    o.recent = 12;
    o.queries = 8;
    o.kept = true;
    o.overwrite = true;
    o.threads = 2;
    return o;
  }
  Whole whole_;
};

TEST_F(EmulatedCudaRuns, ShapesAndTypes) {
  const std::int64_t before = emulated::card().launches;
  int seed = 1;
  for (const Index d : {64, 80, 96, 128, 256}) {
    const DType type = seed % 3 == 0   ? DType::float16
                       : seed % 3 == 1 ? DType::bfloat16
                                       : DType::float32;
    ReplayOptions o = options(seed, d, type, 67 + 10 * seed);
    ++seed;
    expect_same(o, nullptr, kCudaRelative, "d = " + std::to_string(d));
    o.protocol = "stream";
    o.eval_every = 5;
    expect_same(o, nullptr, kCudaRelative, "stream, d = " + std::to_string(d));
  }
  EXPECT_GT(emulated::card().launches, before + 1000);
  EXPECT_EQ(emulated::card().products, 0) << "exact math uses no tensor cores";
}

TEST_F(EmulatedCudaRuns, FastMathByTensorCores) {
  static const std::atomic<bool> go_on = false;
  int seed = 20;
  for (const DType type : {DType::float16, DType::bfloat16, DType::float32}) {
    ReplayOptions o = options(seed, seed % 2 == 0 ? 80 : 128, type, 110);
    ++seed;
    o.out = (folder_ / "fast.csv").string();
    o.device = "cuda";
    o.gpu_math = "fast";
    const std::int64_t before = emulated::card().products;
    const RunResult result = run_plan(make_plan(o), "test", go_on);
    EXPECT_GT(emulated::card().products, before + 1000);
    ASSERT_GT(result.math.entries.size(), 20U);
    for (const MathCheck& c : result.math.entries) {
      EXPECT_TRUE(c.same_status) << c.algorithm;
      EXPECT_EQ(c.differing, 0.0) << c.algorithm
                                  << ": no two scores of random numbers are so close";
      // Outputs are off by 1e-4 of their norm at most (fast_attention.hpp), some 1e-6 as a rule.
      EXPECT_TRUE(std::abs(c.difference) <= 1e-4) << c.algorithm << " " << c.difference;
    }
  }
}

// --------------------------------------------------------------------------- what a device lacks

TEST(EmulatedCuda, LacksAreNamed) {
  const Whole whole;
  EXPECT_EQ(device_info(0).model, "emulated device");
  EXPECT_EQ(device_info(0).driver, "13.0");
  EXPECT_EQ(choose_device("auto").text(), "cuda:0");
  expect_says(io_error([] { device_info(1); }), "--device cuda:1: absent, expected one of the 1 ");
  emulated::card().has_kernels = false;
  expect_says(io_error([] { device_info(0); }),
              "this is emulated device, for which this program holds no kernels, expected --device "
              "cpu, or a build with CMAKE_CUDA_ARCHITECTURES=90");
  EXPECT_EQ(choose_device("auto").text(), "cpu");
  emulated::card().has_kernels = true;
  emulated::card().devices = 0;
  expect_says(io_error([] { device_info(0); }),
              "no device can be used here (no device is detected)");
  EXPECT_EQ(choose_device("auto").text(), "cpu");
  emulated::card().devices = 1;
  emulated::card().driver_too_old = true;
  expect_says(io_error([] { device_info(0); }), "driver version is insufficient");
}

TEST_F(EmulatedCudaRuns, OutOfMemoryIsToldBeforeAndWhileRunning) {
  ReplayOptions o = options(1, 64, DType::float16, 100);
  o.out = (folder_ / "none.csv").string();
  o.device = "cuda";
  emulated::card().bytes = 20000;
  emulated::card().most_live_bytes = 0;
  expect_says(io_error([&] { go(make_plan(o), nullptr); }), "--device");
  EXPECT_EQ(emulated::card().most_live_bytes, 0U) << "refused before anything was allocated";

  // Memory that another program takes when the plan is made.
  emulated::card().bytes = std::size_t{4} << 30;
  Plan plan = make_plan(o);
  emulated::card().bytes = 200000;
  const std::string text = io_error([&] { go(std::move(plan), nullptr); });
  expect_says(text, "cuda:0: out of memory: asked for ");
  expect_says(text, "of 200000 are free; fewer --threads");
}

// ---------------------------------------------------------------------------------- the machine

struct Store {
  static constexpr int kThreads = 64;
  struct Shared {};
  std::int64_t* to;
  std::int64_t value;
  KVB_HD int phases(Index) const { return 1; }
  KVB_HD void run(int, Index block, int thread, Shared&) const {
    to[block * kThreads + thread] = value + block;
  }
};

TEST(EmulatedCuda, WorkWaitsForAWait) {
  const Whole whole;
  CudaMachine machine(0, 1 << 20);
  Array<std::int64_t, CudaMachine> x(machine, 3 * 64);
  machine.launch(Store{x.data(), 7}, 3);
  EXPECT_NE(*x.data(), 7) << "a launch does not wait";
  std::vector<std::int64_t> got(static_cast<std::size_t>(x.size()));
  x.get(got);
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], 7 + static_cast<std::int64_t>(i / 64));
  }
  std::vector<std::int64_t> put(got.size(), 5);
  x.put(put);
  put.assign(put.size(), 6);  // the call has read what it was given
  x.get(got);
  EXPECT_EQ(got, std::vector<std::int64_t>(got.size(), 5));
  x.zero();
  x.get(got);
  EXPECT_EQ(got, std::vector<std::int64_t>(got.size(), 0));
}

// What a kernel of a warp may do wrong. Lanes of the second warp:
enum class Mistake { none, one_is_ahead, two_places, odd_address };

struct Careless {
  static constexpr int kThreads = 64;
  struct alignas(32) Shared {
    std::uint16_t halves[kTileSize + 16];
    int sum[kThreads];
  };
  Mistake mistake;
  int* out;

  KVB_HD int phases(Index) const { return 2; }
  KVB_HD void run(int phase, Index, int thread, Shared& shared) const {
    const bool second = thread / kWarpLanes == 1;
    if (phase == 0) {
      for (int i = thread; i < kTileSize + 16; i += kThreads) {
        shared.halves[i] = 0;
      }
      shared.sum[thread] = thread;
      return;
    }
    if (second && mistake == Mistake::one_is_ahead && thread % kWarpLanes == 5) {
      return;  // to where the block meets
    }
    if (second && mistake == Mistake::two_places && thread % kWarpLanes == 5) {
      emulated::meet_warp("elsewhere");
    }
    for (int half = kWarpLanes / 2; half > 0; half /= 2) {
      for_lanes(thread, [&](int lane) {
        if (lane < half) {
          shared.sum[thread] += shared.sum[thread + half];
        }
      });
    }
    LeftTile tile;
    load_tile(tile, shared.halves + (second && mistake == Mistake::odd_address ? 8 : 0), 16);
    if (thread % kWarpLanes == 0) {
      out[thread / kWarpLanes] = shared.sum[thread];
    }
  }
};

struct HalfAWarp {
  static constexpr int kThreads = 40;
  struct alignas(32) Shared {
    std::uint16_t halves[kTileSize];
  };
  int* out;
  KVB_HD int phases(Index) const { return 1; }
  KVB_HD void run(int, Index, int, Shared& shared) const {
    LeftTile tile;
    load_tile(tile, shared.halves, 16);
  }
};

std::string careless(Mistake mistake) {
  const Whole whole;
  CudaMachine machine(0, 1 << 20);
  const Array<int, CudaMachine> out(machine, 2);
  std::vector<int> got(2);
  const std::string text = io_error([&] {
    machine.launch(Careless{mistake, out.data()}, 2);
    out.get(got);
  });
  if (text == "none") {
    EXPECT_EQ(got, (std::vector<int>{31 * 16, 31 * 16 + 32 * 32}));
  }
  return text;
}

TEST(EmulatedCuda, MistakesOfLanesAreSeen) {
  EXPECT_EQ(careless(Mistake::none), "none");
  expect_says(careless(Mistake::one_is_ahead), "threads wait for each other");
  expect_says(careless(Mistake::two_places), "lanes meet at");
  expect_says(careless(Mistake::odd_address), "not on a boundary of 32 bytes");
  const Whole whole;
  CudaMachine machine(0, 1 << 20);
  const Array<int, CudaMachine> out(machine, 1);
  machine.launch(HalfAWarp{out.data()}, 1);
  expect_says(io_error([&] { machine.wait(); }), "load_matrix_sync: not a whole warp");
}

TEST(EmulatedCuda, AddressesOfTheHostAndOfFreedMemoryAreSeen) {
  const Whole whole;
  CudaMachine machine(0, 1 << 20);
  std::vector<std::int64_t> host(64);
  expect_says(io_error([&] {
                machine.launch(Store{host.data(), 1}, 1);
              }),
              "is an address that is not in live device memory");
  emulated::reset_fault();
  std::int64_t* freed = nullptr;
  {
    const Array<std::int64_t, CudaMachine> x(machine, 64);
    freed = x.data();
  }
  machine.wait();
  expect_says(io_error([&] {
                machine.launch(Store{freed, 1}, 1);
              }),
              "is an address that is not in live device memory");
  emulated::reset_fault();
  expect_says(io_error([&] { machine.copy_in(host.data(), host.data(), 8); }), "invalid argument");
}

}  // namespace
}  // namespace kvbench
