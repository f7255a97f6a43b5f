// Nearest keys on a device against the CPU's: the same places.
#include <gtest/gtest.h>

#include "attention/nearest_keys.hpp"
#include "gpu/operations.cuh"
#include "make_head.hpp"
#include "on_device.hpp"

namespace kvbench::test_gpu_nearest {
namespace {

struct Size {
  Index n, d, to;
};

class GpuNearest : public testing_gpu::OnDevice {};

TEST_F(GpuNearest, EqualsTheCpuForEveryShape) {
  for (const Size& s :
       {Size{2, 1, 1}, Size{3, 8, 2}, Size{40, 130, 33}, Size{64, 7, 1}, Size{130, 16, 64},
        Size{200, 17, 65}, Size{200, 3, 199}, Size{3000, 5, 2950}}) {
    SCOPED_TRACE(testing::Message() << s.n << " " << s.d << " " << s.to);
    const KvHead host = odd_head(s.n, s.d, static_cast<unsigned>(s.n + s.d));
    const gpu::DeviceHead head(gpu::Device(0, 1), host);
    std::vector<Index> tokens = positions(0, s.n);
    std::mt19937_64 generator(5);
    std::shuffle(tokens.begin(), tokens.end(), generator);
    const auto to = std::span(tokens).first(s.to);
    const auto from = std::span(tokens).subspan(to.size());
    const std::vector<Index> cpu = nearest_keys(host, to, from);
    EXPECT_EQ(gpu::nearest_keys(head, to, from), cpu);
    EXPECT_EQ(gpu::nearest_keys(head, to, from), cpu);
    EXPECT_EQ(gpu::nearest_keys(head, to, {}), std::vector<Index>{});
  }
}

TEST_F(GpuNearest, TiesGoToTheLowestPlace) {
  KvHead host = odd_head(300, 6, 1);
  for (Index i = 1; i < 300; ++i) {
    std::copy_n(host.k.row(0), 6, host.k.row(i));
  }
  std::fill_n(host.k.row(299), 6, 0.0F);  // cosine 0 to everything
  const gpu::DeviceHead head(gpu::Device(0, 1), host);
  const std::vector<Index> to = positions(10, 290);
  const std::vector<Index> from{0, 5, 299, 295};
  EXPECT_EQ(gpu::nearest_keys(head, to, from), (std::vector<Index>{0, 0, 0, 0}));
}

// All cosines below 0: the largest is negative.
TEST_F(GpuNearest, OppositeKeys) {
  KvHead host = odd_head(80, 1, 2);
  for (Index i = 0; i < 80; ++i) {
    host.k.row(i)[0] = i < 70 ? 1.0F + static_cast<float>(i) : -1.0F;
  }
  const gpu::DeviceHead head(gpu::Device(0, 1), host);
  const std::vector<Index> to = positions(0, 70);
  const std::vector<Index> from = positions(70, 80);
  EXPECT_EQ(gpu::nearest_keys(head, to, from), nearest_keys(host, to, from));
}

}  // namespace
}  // namespace kvbench::test_gpu_nearest
