#include <gtest/gtest.h>

#include "refusal.hpp"
#include "report/row_filter.hpp"

namespace kvbench::test_row_filter {
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
  EXPECT_TRUE(keeps("compress_ms=nan", "nan"));
  EXPECT_FALSE(keeps("compress_ms=nan", "1"));
  EXPECT_FALSE(keeps("compress_ms!=nan", "nan"));
  EXPECT_TRUE(keeps("compress_ms!=nan", "1"));
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

TEST(RowFilter, ConditionsWithCommas) {
  using Texts = std::vector<std::string>;
  const auto split = [](const std::string& text) {
    Texts out;
    for (const RowFilter& filter : row_filters(text)) {
      out.push_back(filter.text());
    }
    return out;
  };
  EXPECT_EQ(split("algorithm=snap*,layer=0"), (Texts{"algorithm=snap*", "layer=0"}));
  EXPECT_EQ(split("algorithm=snap*,h2o,layer!=0,3:5,budget=0.5"),
            (Texts{"algorithm=snap*,h2o", "layer!=0,3:5", "budget=0.5"}));
  EXPECT_EQ(split("layer=1,2"), (Texts{"layer=1,2"}));
  EXPECT_EQ(split("budget=,layer=1"), (Texts{"budget=", "layer=1"}));
  // A slip is a condition on a column that is absent.
  EXPECT_EQ(split("layer=1,lyaer=2"), (Texts{"layer=1", "lyaer=2"}));
  // Parameters hold equals signs and semicolons.
  EXPECT_EQ(split("params=T=2;tokens=auto,T=4;tokens=auto"),
            (Texts{"params=T=2;tokens=auto,T=4;tokens=auto"}));
  EXPECT_EQ(split("params=T=2;*,dtype=float16"), (Texts{"params=T=2;*", "dtype=float16"}));
  EXPECT_EQ(split("params=x,seed\\=3"), (Texts{"params=x,seed\\=3"}));
  EXPECT_TRUE(row_filters("params=x,seed\\=3").front().keeps("seed=3"));
  // A comma of a value.
  EXPECT_TRUE(RowFilter("status=failed: a\\, b").keeps("failed: a, b"));
  EXPECT_FALSE(RowFilter("status=failed: a\\, b").keeps(" b"));
  EXPECT_TRUE(RowFilter("prompt=a\\b").keeps("a\\b"));
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

}  // namespace
}  // namespace kvbench::test_row_filter
