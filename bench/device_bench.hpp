// What the parts of bench_device share: heads and their copies on the device, how a call is timed,
// and what it is held against. bench_device.cu says what the rates mean and has the main;
// device_streams.cpp and device_rows.cpp have further kernels. Plain C++: the device is behind
// DeviceHead.
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/device.hpp"
#include "core/float16.hpp"
#include "core/types.hpp"
#include "make_head.hpp"

namespace kvbench::bench {

inline constexpr int kDevice = 0;                                   // CUDA_VISIBLE_DEVICES chooses
inline constexpr std::size_t kScratchBytes = std::size_t{1} << 28;  // what a job has at most
inline constexpr Index kWidth = 128;                                // d and dv
inline constexpr Index kGroup = 4;                                  // query heads
inline constexpr Index kQueries = 256;
inline constexpr Index kCenters = 512;
inline constexpr Index kShort = 32768;
inline constexpr Index kLong = 131072;

/// How a device computes, and the rate that bounds its arithmetic (0: not measured).
struct Math {
  std::string name;
  GpuMath mode = GpuMath::exact;
  double flops = 0.0;  ///< a second
};

/// A head and its copy on the device. Elements are exact in float16, as most traces have them.
struct Resident {
  Resident(Index n, Index nq, const Math& math)
      : host(make(n, nq)), device(open_device_head(host, kDevice, kScratchBytes, math.mode)) {}

  static KvHead make(Index n, Index nq) {
    HeadShape shape;
    shape.n = n;
    shape.nq = nq;
    shape.d = shape.dv = kWidth;
    shape.group = kGroup;
    shape.key_norm = 10.0;
    shape.dtype = DType::float16;
    KvHead head = make_head(shape, 1);
    round_to(shape.dtype, head.k.data(), n * kWidth);
    round_to(shape.dtype, head.v.data(), n * kWidth);
    for (Matrix& q : head.q) {
      round_to(shape.dtype, q.data(), nq * kWidth);
    }
    return head;
  }

  KvHead host;
  std::unique_ptr<DeviceHead> device;
};

/// What an algorithm needs of a call.
struct Work {
  double flops = 0.0;  ///< 0: it only moves and compares
  double bytes = 0.0;
  double tokens = 0.0;  ///< of streams, all that run together; 0: no stream
  int blocks = 0;       ///< thread blocks, each on one multiprocessor; 0: as many as fill the card
};

struct Bench {
  double copy_rate = 0.0;  ///< of the card, bytes/s
  int processors = 1;      ///< of the card
  Math math;
  std::map<std::pair<std::string, Index>, std::unique_ptr<Resident>> heads;

  /// The long head holds the evaluated queries, others every query.
  const Resident& resident(Index n) {
    auto& slot = heads[{math.name, n}];
    if (slot == nullptr) {
      slot = std::make_unique<Resident>(n, n <= kShort ? n : kQueries, math);
    }
    return *slot;
  }

  /// Times `run` after one call that is not timed; sets the counters.
  void measure(benchmark::State& state, const Work& work, const std::function<void()>& run) const;
};

/// Tokens seen by queries at positions [n - m, n), each its own past.
inline double pairs(Index n, Index m) {
  const auto queries = static_cast<double>(m);
  return queries * static_cast<double>(n) - 0.5 * queries * (queries - 1.0);
}

inline double elements(Index rows) {
  return static_cast<double>(rows * kWidth);
}

/// first, first + step, ... below n.
inline std::vector<Index> every(Index step, Index first, Index n) {
  std::vector<Index> out;
  for (Index i = first; i < n; i += step) {
    out.push_back(i);
  }
  return out;
}

/// Registers MATH/KERNEL/n. `bench` outlives the benchmarks.
inline void add(Bench& bench, const Math& math, const std::string& kernel, Index n,
                const std::function<void(benchmark::State&)>& run) {
  const std::string name = math.name + "/" + kernel + "/" + std::to_string(n);
  benchmark::RegisterBenchmark(name.c_str(),
                               [&bench, math, run](benchmark::State& state) {
                                 bench.math = math;
                                 run(state);
                               })
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

/// Kernels that compute alike under either math, registered under `math`.
void add_rows(Bench& bench, const Math& math);
void add_streams(Bench& bench, const Math& math);

}  // namespace kvbench::bench
