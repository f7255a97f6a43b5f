#include <gtest/gtest.h>

#include <random>

#include "refusal.hpp"
#include "report/row_filter.hpp"

namespace kvbench {
namespace {

using testing_replay::refusal;

TEST(RowFilter, Values) {
  const auto keeps = [](const std::string& filter, std::string_view cell) {
    return RowFilter(filter).keeps(cell);
  };
  EXPECT_TRUE(keeps("layer=3", "3"));
  EXPECT_FALSE(keeps("layer=3", "13"));
  EXPECT_TRUE(keeps("layer=1,3:5", "4"));
  EXPECT_FALSE(keeps("layer=1,3:5", "5"));
  EXPECT_FALSE(keeps("layer=1,3:5", "2"));
  EXPECT_TRUE(keeps("layer!=1,3:5", "2"));
  EXPECT_FALSE(keeps("layer!=1,3:5", "3"));
  EXPECT_TRUE(keeps("budget=0.25", "0.25"));
  EXPECT_TRUE(keeps("budget=.125:0.25", "0.125"));
  EXPECT_FALSE(keeps("budget=0.25", ""));
  EXPECT_TRUE(keeps("budget=", ""));
  EXPECT_FALSE(keeps("budget=", "0.25"));
  EXPECT_FALSE(keeps("rel_error=0:1", "nan"));
  EXPECT_TRUE(keeps("algorithm=snap*,h2o", "snapkv"));
  EXPECT_FALSE(keeps("algorithm=snap*", "h2o+snapkv"));
  EXPECT_TRUE(keeps("prompt=prose-?", "prose-2"));
  EXPECT_FALSE(keeps("prompt=prose-?", "prose-22"));
  EXPECT_TRUE(keeps("prompt=007", "007"));
  EXPECT_FALSE(keeps("prompt=7", "007"));  // text, though it looks like a number
  EXPECT_TRUE(keeps("params=*T=2*", "T=2;step=fixed"));
  EXPECT_TRUE(keeps("model=llama*", "llama-3"));
  EXPECT_EQ(RowFilter("budget=0.5").column(), "budget_requested");
}

TEST(RowFilter, SlipsAreRefused) {
  const auto said = [](const std::string& text) {
    return refusal([&] { const RowFilter filter(text); });
  };
  EXPECT_EQ(said("layer"), "--where: got `layer`, expected COLUMN=VALUE[,VALUE...]");
  EXPECT_EQ(said("=3"), "--where: got `=3`, expected COLUMN=VALUE[,VALUE...]");
  EXPECT_EQ(said("!=3"), "--where: got `!=3`, expected COLUMN=VALUE[,VALUE...]");
  EXPECT_EQ(said("layer=1,x"),
            "--where layer=1,x: got `x`, expected a number or a range A:B (from A to below B)");
  EXPECT_EQ(said("layer=5:3"),
            "--where layer=5:3: got `5:3`, expected a number or a range A:B (from A to below B)");
  RowFilter filter("algorithm=h2o,snapvk");
  filter.keeps("h2o");
  filter.keeps("snapkv");
  EXPECT_EQ(refusal([&] { filter.check_met(); }),
            "--where algorithm=h2o,snapvk: no row has algorithm snapvk");
  const RowFilter negated("algorithm!=h2o");
  negated.check_met();
}

// Numbers against a plain reading of the rule.
TEST(RowFilter, AgreesWithASlowTwin) {
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    const int a = static_cast<int>(random() % 6);
    const int b = a + 1 + static_cast<int>(random() % 4);
    const int c = static_cast<int>(random() % 9);
    const int cell = static_cast<int>(random() % 9);
    const bool negated = random() % 2 == 0;
    RowFilter filter("layer" + std::string(negated ? "!=" : "=") + std::to_string(a) + ":" +
                     std::to_string(b) + "," + std::to_string(c));
    bool one = cell == c;
    for (int v = a; v < b; ++v) {
      one = one || v == cell;
    }
    EXPECT_EQ(filter.keeps(std::to_string(cell)), one != negated);
  }
}

}  // namespace
}  // namespace kvbench
