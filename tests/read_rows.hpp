// Rows of numbers against those of a reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "core/types.hpp"
#include "reference/reference.hpp"

namespace kvbench {

/// Each number of `expected` is that of `got` within `tolerance`.
template <class Got, class Expected>
void expect_all_near(const Got& got, const Expected& expected, double tolerance) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(got[i]), static_cast<double>(expected[i]), tolerance) << i;
  }
}

// What a quantizer reads back is made in float32, or rounded to it once, from numbers that the
// reference has in long double.
inline constexpr double kReadTolerance = 1e-6;

/// Rows `first` and on of `made` are `expected`, to the bit where `tolerance` is 0.
inline void expect_rows(const Matrix& made, Index first, const reference::Rows& expected,
                        double tolerance = kReadTolerance) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::size_t c = 0; c < expected[i].size(); ++c) {
      const auto e = static_cast<double>(expected[i][c]);
      const auto got = static_cast<double>(made.row(first + static_cast<Index>(i))[c]);
      ASSERT_TRUE(std::abs(got - e) <= tolerance * (1.0 + std::abs(e)))
          << i << " " << c << ": " << got << " " << e;
    }
  }
}

/// These are all rows of `made`.
inline void expect_rows(const Matrix& made, const reference::Rows& expected,
                        double tolerance = kReadTolerance) {
  ASSERT_EQ(static_cast<std::size_t>(made.rows()), expected.size());
  expect_rows(made, 0, expected, tolerance);
}

}  // namespace kvbench
