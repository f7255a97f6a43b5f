// The device of lib/gpu/cuda.cuh: memory, waiting and errors; and that the emulated device sees the
// mistakes that it is there for.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "gpu/cuda.cuh"
#include "whole_device.hpp"

namespace kvbench::gpu {
namespace {

using testing_gpu::expect_says;
using testing_gpu::io_error;
using testing_gpu::WholeDevice;

constexpr int kThreads = 64;

const Device kDevice(0, 1 << 20);

const Device& device() {
  return kDevice;
}

__global__ void store(std::int64_t* to, std::int64_t value) {
  to[blockIdx.x * kThreads + threadIdx.x] = value + blockIdx.x;
}

template <class T>
std::vector<T> read(const Array<T>& x) {
  std::vector<T> out(x.size());
  x.get(out);
  return out;
}

TEST(EmulatedDevice, WorkWaitsForAWait) {
  const WholeDevice whole;
  Array<std::int64_t> x(device(), 3 * kThreads);
  device().launch(store, 3, kThreads, x.data(), 7);
  EXPECT_NE(*x.data(), 7) << "a launch does not wait";
  std::vector<std::int64_t> expected;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    expected.push_back(7 + i / kThreads);
  }
  EXPECT_EQ(read(x), expected);
  std::vector<std::int64_t> put(expected.size(), 5);
  x.put(put);
  put.assign(put.size(), 6);  // the call has read what it was given
  EXPECT_EQ(read(x), std::vector<std::int64_t>(expected.size(), 5));
  x.set_zero();
  EXPECT_EQ(read(x), std::vector<std::int64_t>(expected.size(), 0));
}

TEST(EmulatedDevice, ACopyReadsWhatItsSourceIsWhenItRuns) {
  const WholeDevice whole;
  const Array<std::int64_t> x(device(), kThreads);
  std::vector<std::int64_t> host(kThreads, 5);
  ASSERT_EQ(cudaMemcpyAsync(x.data(), host.data(), 8 * kThreads, cudaMemcpyHostToDevice,
                            cudaStreamPerThread),
            cudaSuccess);
  host.assign(host.size(), 6);
  EXPECT_EQ(read(x), host) << "the mistake that put() must not make";
}

// More than the pinned memory of a thread, with and without any.
TEST(EmulatedDevice, UploadsReadTheirSourceAtOnce) {
  for (const bool pins : {true, false}) {
    std::thread([pins] {  // which has pinned nothing yet
      const WholeDevice whole;
      emulated::card().pins = pins;
      std::vector<std::int64_t> host(300'001);
      std::vector<Array<std::int64_t>> all;
      for (std::int64_t i = 0; i < 5; ++i) {
        std::iota(host.begin(), host.end(), i);
        all.emplace_back(device(), std::span<const std::int64_t>(host));
      }
      for (std::int64_t i = 0; i < 5; ++i) {
        std::iota(host.begin(), host.end(), i);
        EXPECT_EQ(read(all[static_cast<std::size_t>(i)]), host) << pins << " " << i;
      }
    })
        .join();
  }
}

TEST(EmulatedDevice, WithoutAPoolMemoryIsFreedAfterItsUse) {
  const WholeDevice whole;
  emulated::card().has_pool = false;
  std::vector<std::int64_t> got;
  {
    const Array<std::int64_t> x(device(), 3 * kThreads);
    device().launch(store, 3, kThreads, x.data(), 7);
    got = read(x);
    device().launch(store, 3, kThreads, x.data(), 8);
  }
  EXPECT_EQ(got.back(), 9);
  EXPECT_EQ(emulated::last_fault(), "");
  EXPECT_EQ(emulated::card().live_bytes, 0U);
}

TEST(EmulatedDevice, MemoryIsCountedAndFreed) {
  const WholeDevice whole;
  {
    const Array<double> x(device(), 1000);
    const Array<double> none(device(), 0);
    EXPECT_EQ(none.data(), nullptr);
    EXPECT_EQ(emulated::card().live_bytes, 8000U);
    Array<double> y(device(), 10);
    Array<double> z = std::move(y);
    y = std::move(z);
    EXPECT_EQ(y.size(), 10);
  }
  device().wait();
  EXPECT_EQ(emulated::card().live_bytes, 0U);
}

TEST(EmulatedDevice, AddressesOfTheHostAndOfFreedMemoryAreRefused) {
  const WholeDevice whole;
  std::vector<std::int64_t> host(kThreads);
  const std::string refused = "word 0 of the arguments";
  expect_says(io_error([&] { device().launch(store, 1, kThreads, host.data(), 1); }),
              "cuda:0: launching a kernel");
  expect_says(emulated::last_fault(), refused);
  emulated::reset_fault();
  std::int64_t* freed = nullptr;
  {
    const Array<std::int64_t> x(device(), kThreads);
    freed = x.data();
  }
  device().wait();
  expect_says(io_error([&] { device().launch(store, 1, kThreads, freed, 1); }),
              "cuda:0: launching a kernel");
  expect_says(emulated::last_fault(), refused);
  emulated::reset_fault();
  EXPECT_EQ(
      cudaMemcpyAsync(host.data(), host.data(), 8, cudaMemcpyHostToDevice, cudaStreamPerThread),
      cudaErrorInvalidValue);
  const Array<std::int64_t> x(device(), kThreads);
  EXPECT_EQ(cudaMemsetAsync(x.data(), 0, 8 * kThreads + 8, cudaStreamPerThread),
            cudaErrorInvalidValue);
}

#if defined(__SANITIZE_ADDRESS__)
TEST(EmulatedDevice, AnIndexOutOfRangeIsSeen) {
  const Array<std::int64_t> x(device(), kThreads - 1);
  EXPECT_DEATH(
      {
        device().launch(store, 1, kThreads, x.data(), 1);
        device().wait();
      },
      "heap-buffer-overflow");
}
#endif

TEST(EmulatedDevice, AnotherStreamIsRefused) {
  const WholeDevice whole;
  const Array<std::int64_t> x(device(), kThreads);
  EXPECT_EQ(cudaMemsetAsync(x.data(), 0, 8, nullptr), cudaErrorLaunchFailure);
  expect_says(emulated::last_fault(), "not the thread's own");
}

TEST(EmulatedDevice, AnErrorStaysUntilTheDeviceIsReset) {
  const WholeDevice whole;
  const Array<std::int64_t> x(device(), kThreads);
  EXPECT_NE(io_error([] { device().launch(store, 1, 2000, nullptr, 1); }), "none");
  EXPECT_EQ(io_error([&] { device().launch(store, 1, kThreads, x.data(), 1); }), "none")
      << "a launch that is refused breaks nothing";
  std::int64_t host = 0;
  EXPECT_NE(io_error([&] { device().launch(store, 1, kThreads, &host, 1); }), "none");
  EXPECT_NE(io_error([&] { device().launch(store, 1, kThreads, x.data(), 1); }), "none");
  EXPECT_NE(io_error([] { device().wait(); }), "none");
}

// What threads may do wrong together.
enum class Mistake { none, one_is_ahead, two_places, no_sync, sum_of_garbage };

__global__ void add_neighbours(int* out, Mistake mistake) {
  __shared__ int own[kThreads];
  __shared__ int sum;
  const auto thread = static_cast<int>(threadIdx.x);
  own[thread] = thread;
  if (thread == 0 && mistake != Mistake::sum_of_garbage) {
    sum = 0;
  }
  if (mistake == Mistake::one_is_ahead && thread == 37) {
    __syncwarp();
  }
  if (mistake == Mistake::two_places && thread == 37) {
    emulated::meet_block("elsewhere");
  }
  if (mistake != Mistake::no_sync) {
    __syncthreads();
  }
  atomicAdd(&sum, own[(thread + 1) % kThreads] & 0xFF);
  __syncthreads();
  if (thread == 0) {
    out[blockIdx.x] = sum;
  }
}

TEST(EmulatedDevice, MistakesOfThreadsAreSeen) {
  const auto run = [](Mistake mistake, std::string* fault) {
    const WholeDevice whole;
    const Array<int> out(device(), 2);
    std::vector<int> got(2);
    *fault = io_error([&] {
      device().launch(add_neighbours, 2, kThreads, out.data(), mistake);
      out.get(got);
    });
    if (*fault != "none") {
      *fault = emulated::last_fault();
    }
    return got;
  };
  const std::vector<int> right(2, kThreads * (kThreads - 1) / 2);
  std::string fault;
  EXPECT_EQ(run(Mistake::none, &fault), right);
  EXPECT_EQ(fault, "none");
  run(Mistake::one_is_ahead, &fault);
  expect_says(fault, "threads wait for each other");
  run(Mistake::two_places, &fault);
  expect_says(fault, "threads meet at ");
  EXPECT_NE(run(Mistake::no_sync, &fault), right);
  EXPECT_EQ(fault, "none");
  EXPECT_NE(run(Mistake::sum_of_garbage, &fault), right);
  EXPECT_EQ(run(Mistake::none, &fault), right) << "faults leave nothing behind";
}

}  // namespace
}  // namespace kvbench::gpu
