// Greedy k-center as block kernels against the CPU's, to the bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "attention/device_kcenter.hpp"
#include "make_head.hpp"

namespace kvbench {
namespace {

void expect_bits(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

void expect_equal(MatrixView points, const std::vector<Index>& rows, Index k, Index first) {
  SCOPED_TRACE(testing::Message() << rows.size() << " rows of " << points.cols << ", k " << k);
  const KCenter cpu = k_center(points, rows, k, first);
  for (const auto order : {HostMachine::Order::forward, HostMachine::Order::backward}) {
    HostMachine machine(order);
    const Array<float, HostMachine> resident(
        machine,
        std::span<const float>(points.data, static_cast<std::size_t>(points.rows * points.cols)));
    const KCenter found = k_center_on(machine, resident.data(), points.cols, rows, k, first);
    ASSERT_EQ(cpu.centers, found.centers);
    ASSERT_EQ(cpu.nearest, found.nearest);
    expect_bits(cpu.radius, found.radius);
    expect_bits(cpu.squared, found.squared);
  }
}

std::vector<Index> shuffled(Index n, Index count, std::mt19937_64& generator) {
  std::vector<Index> rows = positions(0, n);
  std::shuffle(rows.begin(), rows.end(), generator);
  rows.resize(static_cast<std::size_t>(count));
  return rows;
}

TEST(DeviceKCenter, EqualsTheCpuForEveryShape) {
  std::mt19937_64 generator(1);
  for (const Index d : {1, 3, 7, 8, 9, 64, 80, 96, 128, 256}) {
    for (const Index m : {1, 2, 7, 65, 127, 128, 129, 513}) {
      const Matrix points = normal_matrix(m + 3, d, 5.0, generator);
      const std::vector<Index> rows = shuffled(m + 3, m, generator);
      const auto first = static_cast<Index>(generator() % static_cast<std::uint64_t>(m));
      expect_equal(points, rows, std::min<Index>(m, 20), first);
    }
  }
}

TEST(DeviceKCenter, EveryRowACenter) {
  std::mt19937_64 generator(2);
  for (const Index m : {1, 2, 7, 130, 300}) {
    const Matrix points = normal_matrix(m, 5, 5.0, generator);
    expect_equal(points, positions(0, m), m, m / 2);
    expect_equal(points, positions(0, m), m + 10, 0);
  }
}

// Few values per channel: ties for the next centre, equal rows, radii of 0 before the last centre.
TEST(DeviceKCenter, TiesAndEqualRows) {
  std::mt19937_64 generator(3);
  for (const Index d : {1, 2, 9}) {
    for (const Index m : {2, 31, 260, 1500}) {
      Matrix points(m, d);
      for (Index i = 0; i < m * d; ++i) {
        points.data()[i] = static_cast<float>(generator() % 3) - 1.0F;
      }
      for (const Index k : {Index{1}, Index{4}, std::min<Index>(m, 40)}) {
        expect_equal(points, shuffled(m, m, generator), k, m - 1);
      }
    }
  }
  const Matrix same(200, 4);
  expect_equal(same, positions(0, 200), 5, 150);
  expect_equal(same, positions(0, 200), 200, 0);
}

// Squares that vanish or fill float64's range; more blocks than Farthest has threads would take
// 32768 rows, so they are one channel wide.
TEST(DeviceKCenter, ExtremesAndManyRows) {
  std::mt19937_64 generator(4);
  for (const double norm : {1e-43, 1e-30, 1e38}) {
    expect_equal(normal_matrix(150, 3, norm, generator), positions(0, 150), 10, 3);
  }
  const Index m = 128 * 256 + 70;
  expect_equal(normal_matrix(m, 1, 1.0, generator), shuffled(m, m, generator), 6, 1);
}

TEST(DeviceKCenter, NothingToChoose) {
  const Matrix points(3, 2);
  expect_equal(points, {}, 4, 0);
  expect_equal(points, {0, 1}, 0, 0);
  expect_equal(points, {0, 1}, -1, 0);
}

}  // namespace
}  // namespace kvbench
