// For tests on the emulated device.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/error.hpp"
#include "cuda_runtime.h"

namespace kvbench::testing_gpu {

/// The device as it was, with no error left and nothing allocated: not by earlier tests either,
/// whose streams may still have to free memory.
class WholeDevice {
 public:
  WholeDevice() { emulated::drain(); }
  ~WholeDevice() {
    emulated::reset_fault();
    EXPECT_EQ(emulated::card().live_bytes, 0U) << "memory that was not freed";
    emulated::card().devices = 1;
    emulated::card().driver_too_old = false;
    emulated::card().has_kernels = true;
    emulated::card().has_pool = true;
    emulated::card().pins = true;
    emulated::card().bytes = std::size_t{4} << 30;
  }
  WholeDevice(const WholeDevice&) = delete;
  WholeDevice& operator=(const WholeDevice&) = delete;
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

inline void expect_says(const std::string& text, const std::string& words) {
  EXPECT_NE(text.find(words), std::string::npos) << words << " is not in: " << text;
}

}  // namespace kvbench::testing_gpu
