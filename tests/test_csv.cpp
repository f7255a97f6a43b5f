#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "files.hpp"
#include "refusal.hpp"
#include "report/csv.hpp"
#include "report/table_reader.hpp"
#include "report_rows.hpp"

namespace kvbench::test_csv {
namespace {

using testing_replay::refusal;
using testing_replay::write_bytes;
using testing_rows::test_folder;

Fields random_fields(std::mt19937& random, std::size_t width) {
  static constexpr std::string_view alphabet = "ab,\"\r\n ;=\xC3\xA9";
  Fields fields;
  for (std::size_t i = 0; i < width; ++i) {
    std::string field(random() % 6, ' ');
    for (char& c : field) {
      c = alphabet[random() % alphabet.size()];
    }
    fields.push_back(field);
  }
  return fields;
}

TEST(Csv, QuotesOnlyWhatNeedsIt) {
  EXPECT_EQ(csv_line(Fields{"plain", "a,b", "say \"hi\"", "two\nlines", "cr\r", ""}),
            "plain,\"a,b\",\"say \"\"hi\"\"\",\"two\nlines\",\"cr\r\",\n");
  EXPECT_EQ(csv_line(Fields{""}), "\"\"\n");
}

TEST(Csv, RandomFieldsRoundTrip) {
  std::mt19937 random(1);
  for (std::size_t width = 1; width < 6; ++width) {
    std::vector<Fields> records;
    const Fields names = [&] {
      Fields out;
      for (std::size_t i = 0; i < width; ++i) {
        out.push_back(std::to_string(i));
      }
      return out;
    }();
    std::string text = csv_line(names);
    for (int i = 0; i < 300; ++i) {
      records.push_back(random_fields(random, width));
      text += csv_line(records.back());
    }
    const Table table = parse_table(text, "f.csv");
    ASSERT_EQ(table.header, names);
    ASSERT_EQ(table.rows, records);
  }
}

TEST(Csv, ReadsWhatOthersWrite) {
  for (const char* text : {"a,b\r\n1,\r\n\r\n,2\r\n",
                           "\xEF\xBB\xBF"
                           "a,b\n1,\n,2",
                           "a,b\n,2\n1,"}) {
    Table table = parse_table(text, "f.csv");
    std::sort(table.rows.begin(), table.rows.end());
    EXPECT_EQ(table.header, (Fields{"a", "b"}));
    EXPECT_EQ(table.rows, (std::vector<Fields>{{"", "2"}, {"1", ""}})) << text;
  }
}

TEST(Csv, ErrorsNameFileLineGotAndExpected) {
  EXPECT_EQ(refusal([] { parse_table("a,b\n1,x\"y\n", "f.csv"); }),
            "f.csv: line 2: got a quote inside an unquoted field, expected the whole field in "
            "quotes");
  EXPECT_EQ(refusal([] { parse_table("a\n\"x\ny\"z\n", "f.csv"); }),
            "f.csv: line 3: got `z` after a closing quote, expected a comma or a line end");
  EXPECT_EQ(refusal([] { parse_table("a\n\"x\ny", "f.csv"); }),
            "f.csv: line 2: got the end of the file inside quotes, expected a closing quote");
  EXPECT_EQ(refusal([] { parse_table("a\rb\n", "f.csv"); }),
            "f.csv: line 1: got a CR without LF, expected LF or CRLF at the end of a line");
}

TEST(Csv, ReadTableRefusals) {
  const auto folder = test_folder();
  const auto path = folder / "t.csv";
  const auto error_for = [&](const std::string& text) {
    write_bytes(path, text);
    return refusal([&] { read_table(path); });
  };
  const std::string file = path.string();
  EXPECT_EQ(error_for(""), file + ": the file is empty, expected a header");
  EXPECT_EQ(error_for("a,b\n1\n"), file + ": line 2: got 1 fields, expected 2 as in the header");
  EXPECT_EQ(error_for("a,a\n"), file + ": line 1: duplicate column `a` in the header");
  EXPECT_EQ(refusal([&] { read_table(folder / "none.csv"); }),
            (folder / "none.csv").string() + ": no such file");
  EXPECT_EQ(refusal([&] { read_table(folder); }), folder.string() + ": not a regular file");
  write_bytes(path, "a,b\n1,2\n");
  EXPECT_EQ(refusal([&] { read_table(path).column("z"); }),
            file + ": column `z` is missing; there are a, b");
}

}  // namespace
}  // namespace kvbench::test_csv
