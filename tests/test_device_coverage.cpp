// Facility location as block kernels against the CPU's: integers, so equal or wrong.
#include <gtest/gtest.h>

#include "attention/device_on.hpp"
#include "make_head.hpp"

namespace kvbench {
namespace {

constexpr Similarity kKinds[] = {Similarity::relu, Similarity::one_plus, Similarity::absolute};
constexpr HostMachine::Order kOrders[] = {HostMachine::Order::forward,
                                          HostMachine::Order::backward};

// Everything that can be asked, on the CPU with or without the matrix and on a machine.
void expect_equal(const Matrix& k, const std::vector<Index>& ground, Similarity kind,
                  Index matrix_bytes, HostMachine::Order order) {
  const auto n = static_cast<Index>(ground.size());
  SCOPED_TRACE(testing::Message() << n << " keys of " << k.cols() << ", kind "
                                  << static_cast<int>(kind));
  const KvHead bare;  // coverage works on unit keys that it is handed
  const DeviceHeadOn<HostMachine> head(HostMachine(order), bare);
  FacilityLocation cpu(k, ground, kind, matrix_bytes);
  FacilityLocation device(k, ground, kind, matrix_bytes, &head);
  EXPECT_FALSE(device.has_matrix());
  EXPECT_EQ(device.batch(), FacilityLocation::kDeviceBatch);
  ASSERT_EQ(cpu.total(), device.total());
  ASSERT_EQ(cpu.singletons(), device.singletons());
  std::mt19937_64 generator(static_cast<unsigned>(n));
  for (int step = 0; step < 4 && n > 0; ++step) {
    // Batches of every kind of size: none, a few, some not in order, all.
    for (const Index count : {Index{0}, Index{1}, std::min<Index>(n, 9), n}) {
      std::vector<Index> candidates = positions(0, n);
      std::shuffle(candidates.begin(), candidates.end(), generator);
      candidates.resize(static_cast<std::size_t>(count));
      std::vector<std::int64_t> a(candidates.size(), -1);
      std::vector<std::int64_t> b(candidates.size(), -2);
      cpu.gains(candidates, a);
      device.gains(candidates, b);
      ASSERT_EQ(a, b);
    }
    const auto u = static_cast<Index>(generator() % static_cast<std::uint64_t>(n));
    cpu.add(u);
    device.add(u);
    ASSERT_EQ(cpu.value(), device.value());
  }
  ASSERT_EQ(cpu.singletons(), device.singletons());  // of the empty set, whatever was added
}

struct Size {
  Index n, d;
};

TEST(DeviceCoverage, EqualsTheCpu) {
  for (const Size& s : {Size{0, 4}, Size{1, 1}, Size{2, 3}, Size{7, 64}, Size{63, 80}, Size{64, 96},
                        Size{65, 128}, Size{129, 256}, Size{257, 7}, Size{513, 20}}) {
    for (const Similarity kind : kKinds) {
      for (const auto order : kOrders) {
        const Matrix k = odd_keys(s.n + 3, s.d, static_cast<unsigned>(s.n + s.d));
        expect_equal(k, positions(3, s.n + 3), kind, Index{1} << 30, order);
      }
    }
  }
}

TEST(DeviceCoverage, EqualsTheCpuWithoutMatrixAndOutOfOrder) {
  std::mt19937_64 generator(1);
  for (const Similarity kind : kKinds) {
    const Matrix k = odd_keys(300, 33, 5);
    std::vector<Index> ground = positions(0, 300);
    std::shuffle(ground.begin(), ground.end(), generator);
    ground.resize(191);
    expect_equal(k, ground, kind, 0, HostMachine::Order::backward);
  }
}

TEST(DeviceCoverage, ZeroKeysAlone) {
  const Matrix k(130, 5);
  for (const Similarity kind : kKinds) {
    expect_equal(k, positions(0, 130), kind, Index{1} << 30, HostMachine::Order::forward);
  }
}

}  // namespace
}  // namespace kvbench
