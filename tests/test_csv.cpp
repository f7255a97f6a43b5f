#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>

#include "core/error.hpp"
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

const Fields header{"a", "b", "c"};

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

TEST(CsvWriter, AppendsToANewFile) {
  const auto path = test_folder() / "t.csv";
  const std::vector<Fields> rows{{"1", "x,y", ""}, {"2", "\"", "\n"}};
  {
    CsvWriter writer(path, header);
    writer.append(rows);
    EXPECT_EQ(read_table(path).rows, rows);  // visible before the end
    EXPECT_THROW(writer.append(std::vector<Fields>{{"too", "short"}}), InputError);
  }
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".lock"));
  EXPECT_EQ(read_table(path).rows, rows);
  EXPECT_THROW(CsvWriter(path, header), InputError);
  EXPECT_EQ(read_table(path).rows, rows);
}

TEST(CsvWriter, TwoWritersOfOneFileConflict) {
  const auto folder = test_folder();
  const auto path = folder / "t.csv";
  std::filesystem::create_symlink(path, folder / "alias.csv");
  const CsvWriter writer(path, header);
  for (const auto& name : {path, folder / "alias.csv"}) {
    EXPECT_NE(
        refusal([&] { CsvWriter(name, header); }).find("another run is writing " + path.string()),
        std::string::npos);
  }
}

TEST(CsvWriter, AKilledHoldersLockDoesNotBlock) {
  const auto path = test_folder() / "t.csv";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    CsvWriter writer(path, header);
    ::_exit(0);  // no destructor: the lock file stays behind
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(std::filesystem::exists(path.string() + ".lock"));
  std::filesystem::remove(path);
  EXPECT_NO_THROW(CsvWriter(path, header));
}

TEST(CsvWriter, ThreadsLeaveWholeRows) {
  const auto path = test_folder() / "t.csv";
  constexpr int per_thread = 200;
  {
    CsvWriter writer(path, header);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&writer, t] {
        for (int i = 0; i < per_thread; ++i) {
          const Fields row{std::to_string(t), std::to_string(i), "\n"};
          writer.append(std::vector<Fields>{row, row});
        }
      });
    }
  }
  const Table table = read_table(path);
  ASSERT_EQ(table.rows.size(), 4u * per_thread * 2u);
  for (std::size_t i = 0; i < table.rows.size(); i += 2) {
    EXPECT_EQ(table.rows[i], table.rows[i + 1]);  // one append is never split
  }
}

TEST(CsvWriter, UnwritablePlacesAreIoErrors) {
  const auto folder = test_folder();
  EXPECT_THROW(CsvWriter(folder / "no" / "such" / "t.csv", header), IoError);
  EXPECT_THROW(CsvWriter(folder, header), InputError);
}

// Somebody puts a link to another file in the table's place while it is written.
TEST(CsvWriter, DoesNotFollowALinkThatComesLater) {
  const auto folder = test_folder();
  const auto path = folder / "t.csv";
  const auto victim = folder / "victim";
  std::ofstream(victim) << "precious";
  CsvWriter writer(path, header);
  writer.append(std::vector<Fields>{{"1", "2", "3"}});
  std::filesystem::remove(path);
  std::filesystem::create_symlink(victim, path);
  writer.append(std::vector<Fields>{{"4", "5", "6"}});
  EXPECT_THROW(writer.sync(), IoError);
  EXPECT_EQ(read_text_file(victim), "precious");
  EXPECT_TRUE(std::filesystem::is_symlink(path));
}

TEST(CsvWriter, FullDiskLeavesWholeRows) {
  const auto path = test_folder() / "t.csv";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // A file size limit stands in for a full disk; its signal must not end the process.
    CsvWriter writer(path, header);
    writer.append(std::vector<Fields>{{"1", "2", "3"}});
    const rlimit limit{20, 20};
    ::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int code = 1;
    try {
      writer.append(std::vector<Fields>{{std::string(100, 'x'), "", ""}});
    } catch (const IoError&) {
      code = 0;
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_table(path).rows, (std::vector<Fields>{{"1", "2", "3"}}));
}

}  // namespace
}  // namespace kvbench::test_csv
