// Programs of a warp inside a phase of a block kernel (core/machine.hpp): its 32 lanes run them
// together and meet before and after for_lanes(). On a HostMachine the first lane runs them for
// all: a kernel begins with `if (!runs_warp(thread)) return;` and holds what a lane keeps to itself
// in a PerLane. What one lane of a for_lanes() writes no other may read or write before its end.
// Lanes are run in ascending order there, whatever the order of threads.
#pragma once

#include "core/math.hpp"

namespace kvbench {

inline constexpr int kWarpLanes = 32;

/// Whether this thread runs its warp's program: every lane of a GPU, the first on a HostMachine.
KVB_HD inline bool runs_warp(int thread) {
#if defined(KVB_DEVICE_CODE)
  static_cast<void>(thread);
  return true;
#else
  return thread % kWarpLanes == 0;
#endif
}

KVB_HD inline void meet_warp() {
#if defined(KVB_DEVICE_CODE)
  __syncwarp();
#endif
}

/// f(lane) for every lane of the warp; the lanes meet before and after.
template <class F>
KVB_HD void for_lanes(int thread, const F& f) {
#if defined(KVB_DEVICE_CODE)
  __syncwarp();
  f(thread % kWarpLanes);
  __syncwarp();
#else
  static_cast<void>(thread);
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    f(lane);
  }
#endif
}

/// A variable that every lane has for itself.
template <class T>
class PerLane {
 public:
  KVB_HD T& operator[](int lane) {
#if defined(KVB_DEVICE_CODE)
    static_cast<void>(lane);
    return x_;
#else
    return x_[lane];
#endif
  }

 private:
#if defined(KVB_DEVICE_CODE)
  T x_;
#else
  T x_[kWarpLanes];
#endif
};

}  // namespace kvbench
