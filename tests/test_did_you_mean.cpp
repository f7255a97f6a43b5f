#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/did_you_mean.hpp"

namespace kvbench::test_did_you_mean {
namespace {

TEST(DidYouMean, NamesTheNearestWordOrNone) {
  const std::vector<std::string> known{"snapkv", "pyramidkv", "h2o", "tova", "T", "--budget"};
  EXPECT_EQ(did_you_mean("snpakv", known), " (did you mean snapkv?)");
  EXPECT_EQ(did_you_mean("pyramid", known), " (did you mean pyramidkv?)");
  EXPECT_EQ(did_you_mean("--bugdet", known), " (did you mean --budget?)");
  EXPECT_EQ(did_you_mean("h20", known), " (did you mean h2o?)");
  EXPECT_EQ(did_you_mean("SnapKV", known), " (did you mean snapkv?)");
  EXPECT_EQ(did_you_mean("PYRAMIDkvv", known), " (did you mean pyramidkv?)");
  EXPECT_EQ(did_you_mean("t", known), " (did you mean T?)");
  for (const char* far : {"", "X", "nosuch", "quantisation", "kv"}) {
    EXPECT_EQ(did_you_mean(far, known), "") << far;
  }
  EXPECT_EQ(did_you_mean(std::string(1000000, 'a'), known), "");  // at once
  EXPECT_EQ(did_you_mean("a", {}), "");
}

}  // namespace
}  // namespace kvbench::test_did_you_mean
