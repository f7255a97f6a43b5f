// The example of docs/new_algorithm.md, cut out of the page and compiled by the build.
#include <gtest/gtest.h>

#include "algorithms/contract.hpp"
#include "make_head.hpp"

namespace kvbench {

Method method_stride();

namespace {

TEST(NewAlgorithm, TheDocumentedExampleWorks) {
  const Method m = method_stride();
  const KvHead head = make_head({}, 1);
  const std::vector<Index> tokens = positions(10, 50);
  const Task task{head, tokens, 10 * head.pair_bytes() + 4, {0, 0}, {}, Rng()};
  const Compressed c = m.compress(task, Params(m.info.name, m.info.params, {}));
  EXPECT_EQ(c.held.tokens, (std::vector<Index>{12, 16, 20, 24, 28, 32, 36, 40, 44, 48}));
  EXPECT_EQ(c.held.common, 4.0F);
  EXPECT_EQ(c.aux_bytes, 4);
}

}  // namespace
}  // namespace kvbench
