// stride against the definition.
#include "algorithms/methods.hpp"
#include "method_checks.hpp"

namespace kvbench::test_stride {
namespace {

TEST(Stride, KeepsTheMiddleOfEveryStride) {
  const Method method = method_stride::make();
  const KvHead head = make_head({}, 1);
  const JobOf job(method, head, positions(10, 50), {});
  const Compressed c = job.run(10 * head.pair_bytes() + 4);
  EXPECT_EQ(c.held.tokens, (std::vector<Index>{12, 16, 20, 24, 28, 32, 36, 40, 44, 48}));
  EXPECT_EQ(c.held.common, 4.0F);
  EXPECT_EQ(c.aux_bytes, 4);
}

TEST(Stride, BudgetsThatHoldNoWeightAreRefused) {
  const Method method = method_stride::make();
  const JobOf job(method, make_head({}, 2), positions(10, 50), {});
  EXPECT_THROW(job.run(3), Infeasible);
  EXPECT_TRUE(job.run(4).held.tokens.empty());
}

}  // namespace
}  // namespace kvbench::test_stride
