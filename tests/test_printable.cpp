#include <gtest/gtest.h>

#include <string>

#include "core/printable.hpp"

namespace kvbench::test_printable {
namespace {

TEST(Printable, LeavesText) {
  for (const std::string text : {"", "p0", "caf\u00e9", "\u65e5\u672c", "\U0001f600", "a\u00a0b"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, ReplacesWhatCommandsATerminal) {
  EXPECT_EQ(printable("a\x1b[2Jb\x7f\n\r\t"), "a?[2Jb????");
  EXPECT_EQ(printable("\u0080\u009b31m\u009f"), "??31m?");
  EXPECT_EQ(printable("a\u202eb\u202ac\u2066d\u2069\u200e\u200f\u061c\u2028"), "a?b?c?d?????");
}

TEST(Printable, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("\x9b\x33"), "?3");
  EXPECT_EQ(printable("a\xff\xfe"), "a??");
  EXPECT_EQ(printable("\xc3"), "?");  // cut off
  EXPECT_EQ(printable("\xe2\x80"), "??");
  EXPECT_EQ(printable("\xc0\x80\xc1\xbf"), "????");  // overlong
  EXPECT_EQ(printable("\xe0\x80\xaf"), "???");
  EXPECT_EQ(printable("\xf0\x80\x80\xaf"), "????");
  EXPECT_EQ(printable("\xed\xa0\x80"), "???");            // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80\xf5"), "?????");  // beyond Unicode
}

}  // namespace
}  // namespace kvbench::test_printable
