// The common offset of rows against the definition.
#include <gtest/gtest.h>

#include "cluster/offset.hpp"

namespace kvbench::test_offset {
namespace {

TEST(Offset, OfRowsByHand) {
  Matrix m(2, 2);
  m.row(0)[0] = 4.0F;
  m.row(1)[0] = 2.0F;
  m.row(1)[1] = 4.0F;
  // Mean (3, 2): 13. Squared norms 16 and 20: 18.
  const CommonOffset offset = common_offset(*cpu_rows(m));
  EXPECT_DOUBLE_EQ(offset.norm, std::sqrt(13.0));
  EXPECT_DOUBLE_EQ(offset.share, 13.0 / 18.0);
}

TEST(Offset, OfZeroRows) {
  const CommonOffset offset = common_offset(*cpu_rows(Matrix(3, 2)));
  EXPECT_EQ(offset.norm, 0.0);
  EXPECT_EQ(offset.share, 0.0);
}

}  // namespace
}  // namespace kvbench::test_offset
