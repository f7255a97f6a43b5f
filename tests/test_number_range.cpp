#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "core/number_range.hpp"
#include "refusal.hpp"

namespace kvbench::test_number_range {
namespace {

using testing_replay::refusal;

template <class T>
std::vector<T> numbers(std::string_view text) {
  const NumberRange<T> range = parse_range<T>("--x", text, 1000);
  std::vector<T> out;
  for (std::uint64_t i = 0; i < range.size(); ++i) {
    out.push_back(range[i]);
  }
  return out;
}

TEST(NumberRange, LeavesItsEndOut) {
  EXPECT_EQ(numbers<Index>("1:4"), (std::vector<Index>{1, 2, 3}));
  EXPECT_EQ(numbers<Index>("0:9:3"), (std::vector<Index>{0, 3, 6}));
  EXPECT_EQ(numbers<Index>("0:10:3"), (std::vector<Index>{0, 3, 6, 9}));
  EXPECT_EQ(numbers<double>("1:4"), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(numbers<double>("0.5:2:0.5"), (std::vector<double>{0.5, 1, 1.5}));
  EXPECT_EQ(numbers<std::uint64_t>("18446744073709551613:18446744073709551615"),
            (std::vector<std::uint64_t>{18446744073709551613U, 18446744073709551614U}));
  // (0.7 - 0) / 0.1 is 6.999999999999999, and (0.3 - 0) / 0.1 is 2.9999999999999996.
  EXPECT_EQ(numbers<double>("0:0.7:0.1").size(), 7U);
  EXPECT_EQ(numbers<double>("0:0.3:0.1").size(), 3U);
  EXPECT_EQ(numbers<double>("0:1:0.1").size(), 10U);
  EXPECT_EQ(numbers<double>("0:1.05:0.1").size(), 11U);
}

// numpy.arange in whole steps, where nothing is rounded.
TEST(NumberRange, AgreesWithASlowReference) {
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    const Index begin = static_cast<Index>(random() % 20);
    const Index end = begin + 1 + static_cast<Index>(random() % 20);
    const Index step = 1 + static_cast<Index>(random() % 6);
    std::vector<Index> expected;
    for (Index x = begin; x < end; x += step) {
      expected.push_back(x);
    }
    const std::string text =
        std::to_string(begin) + ":" + std::to_string(end) + ":" + std::to_string(step);
    EXPECT_EQ(numbers<Index>(text), expected) << text;
    EXPECT_EQ(numbers<double>(text), (std::vector<double>{expected.begin(), expected.end()}))
        << text;
  }
}

TEST(NumberRange, RefusalsNameTheOptionAndWhatIsWrong) {
  const auto said = [](std::string_view text) {
    return refusal([&] { parse_range<Index>("--x", text, 1000); }, std::string(text));
  };
  for (const char* empty : {"2:2", "4:1", "0:0:3"}) {
    EXPECT_EQ(said(empty),
              "--x: got '" + std::string(empty) +
                  "', which is empty (ranges exclude their end), expected A:B with A < B");
  }
  for (const char* wrong : {"", ":", "1", "1:", ":2", "a:b", "-1:2", "01:3", "1:2:0", "1:2:-1",
                            "1:2:1:1", "1.5:2", "1:99999999999999999999", " 1:2", "1:2 "}) {
    EXPECT_NE(said(wrong).find("', expected A:B or A:B:STEP of integers"), std::string::npos)
        << wrong;
  }
  EXPECT_EQ(said("0:1001"), "--x: got '0:1001', which has 1001 values, expected at most 1000");
  for (const char* wrong : {"1:nan", "1:inf", "0:1:nan", "0:1:0", "0:0", "0:1e-12"}) {
    refusal([&] { parse_range<double>("--x", wrong, 1000); }, wrong);
  }
}

}  // namespace
}  // namespace kvbench::test_number_range
