// What a backend of a device refuses.
#include <stdexcept>

#include "make_head.hpp"
#include "on_device.hpp"

namespace kvbench::test_gpu_backend {
namespace {

class GpuBackend : public testing_gpu::OnDevice {};

TEST_F(GpuBackend, AnotherHeadThanItsOwnIsRefused) {
  const KvHead head = make_head({20, 20, 4, 4, 1}, 1);
  const KvHead same = head;
  const auto backend = open_gpu(head, 0, 1 << 20);
  EXPECT_EQ(backend->attention_sums(head, {0, 20}).size(), 1U);
  EXPECT_THROW(backend->attention_sums(same, {0, 20}), std::logic_error);
  EXPECT_THROW(backend->rows(same, HeadRows::keys, {}), std::logic_error);
}

}  // namespace
}  // namespace kvbench::test_gpu_backend
