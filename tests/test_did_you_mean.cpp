#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "core/did_you_mean.hpp"

namespace kvbench::test_did_you_mean {
namespace {

/// The same by trying every edit at the front: no table, no shared work.
std::size_t slow_distance(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) {
    return a.size() + b.size();
  }
  std::size_t best = std::min(slow_distance(a.substr(1), b), slow_distance(a, b.substr(1))) + 1;
  best = std::min(best, slow_distance(a.substr(1), b.substr(1)) + (a[0] == b[0] ? 0 : 1));
  if (a.size() > 1 && b.size() > 1 && a[0] == b[1] && a[1] == b[0]) {
    best = std::min(best, slow_distance(a.substr(2), b.substr(2)) + 1);
  }
  return best;
}

TEST(DidYouMean, DistanceIsThatOfTheBestEdits) {
  std::mt19937_64 random(7);
  const auto word = [&] {
    std::string out(random() % 7, 'a');
    std::ranges::generate(out, [&] { return static_cast<char>('a' + random() % 3); });
    return out;
  };
  for (int i = 0; i < 500; ++i) {
    const std::string a = word();
    const std::string b = word();
    EXPECT_EQ(edit_distance(a, b), slow_distance(a, b)) << a << " " << b;
  }
  EXPECT_EQ(edit_distance("snpakv", "snapkv"), 1U);  // a swap is one edit
}

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
