// Gains of facility location on a device against the CPU's: the same integers.
#include <gtest/gtest.h>

#include "attention/backend.hpp"
#include "gpu/operations.cuh"
#include "make_head.hpp"
#include "on_device.hpp"

namespace kvbench::test_gpu_facility {
namespace {

constexpr Similarity kKinds[] = {Similarity::relu, Similarity::one_plus, Similarity::absolute};

std::vector<std::int64_t> gains(FacilityGains& of, const std::vector<Index>& candidates) {
  std::vector<std::int64_t> out(candidates.size(), -1);
  of.gains(candidates, out);
  return out;
}

// Adds members one by one, and asks for all gains, forwards and backwards, before each.
void expect_equal(FacilityGains& a, FacilityGains& b, Index n) {
  std::vector<Index> all = positions(0, n);
  std::mt19937_64 generator(static_cast<unsigned>(n));
  EXPECT_EQ(a.total(), b.total());
  EXPECT_EQ(a.all_gains(), b.all_gains());
  for (int i = 0; i < 6 && n > 0; ++i) {
    std::reverse(all.begin(), all.end());
    EXPECT_EQ(gains(a, all), gains(b, all));
    const auto u = static_cast<Index>(generator() % static_cast<std::uint64_t>(n));
    a.add(u);
    b.add(u);
    EXPECT_EQ(a.value(), b.value());
    EXPECT_EQ(gains(a, {u}), gains(b, {u}));
  }
  EXPECT_EQ(a.all_gains(), b.all_gains());
}

struct Size {
  Index n, d;
};

class GpuFacility : public testing_gpu::OnDevice {};

TEST_F(GpuFacility, EqualsTheCpuForEveryShapeAndKind) {
  for (const Size& s : {Size{1, 1}, Size{2, 130}, Size{33, 8}, Size{64, 5}, Size{65, 16},
                        Size{129, 17}, Size{300, 3}}) {
    KvHead host = odd_head(s.n + 4, s.d, static_cast<unsigned>(s.n));
    std::vector<Index> ground = positions(2, s.n + 2);
    std::mt19937_64 generator(1);
    std::shuffle(ground.begin(), ground.end(), generator);
    for (const Precision precision : {Precision::float32, Precision::float64}) {
      host.precision = precision;
      const gpu::DeviceHead head(gpu::Device(0, 1), host);
      for (const Similarity kind : kKinds) {
        SCOPED_TRACE(testing::Message() << s.n << " " << s.d << " " << static_cast<int>(kind) << " "
                                        << name(precision));
        for (const Index matrix_bytes : {Index{0}, Index{1} << 20}) {
          const auto cpu = cpu_backend().facility_location(host, ground, kind, matrix_bytes);
          const auto device = gpu::facility_location(head, ground, kind);
          EXPECT_EQ(device->batch(), 256);
          expect_equal(*device, *cpu, s.n);
        }
      }
    }
  }
}

TEST_F(GpuFacility, ZeroKeysAndAnEmptyGround) {
  KvHead host = odd_head(70, 4, 2);
  std::fill_n(host.k.data(), 70 * 4, 0.0F);
  const gpu::DeviceHead head(gpu::Device(0, 1), host);
  for (const Similarity kind : kKinds) {
    for (const Index n : {Index{0}, Index{70}}) {
      const std::vector<Index> ground = positions(0, n);
      const auto cpu = cpu_backend().facility_location(host, ground, kind, 0);
      expect_equal(*gpu::facility_location(head, ground, kind), *cpu, n);
    }
  }
}

}  // namespace
}  // namespace kvbench::test_gpu_facility
