// A journal keeps whole records through any cut and any damage behind them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "files.hpp"
#include "refusal.hpp"
#include "report/journal.hpp"
#include "report_rows.hpp"

namespace kvbench::test_journal {
namespace {

using testing_rows::test_folder;

namespace fs = std::filesystem;

std::vector<std::byte> bytes(const std::string& text) {
  std::vector<std::byte> out;
  for (const char c : text) {
    out.push_back(static_cast<std::byte>(c));
  }
  return out;
}

std::string text(const std::vector<std::byte>& from) {
  std::string out;
  for (const std::byte b : from) {
    out.push_back(static_cast<char>(b));
  }
  return out;
}

class JournalTest : public ::testing::Test {
 protected:
  // Another file with what this one has up to a byte, or with that byte changed.
  void copy_cut(std::uintmax_t size) const {
    fs::copy_file(file_, copy_, fs::copy_options::overwrite_existing);
    fs::resize_file(copy_, size);
  }
  void copy_damaged(std::uintmax_t at) const {
    std::string bytes = testing_replay::read_bytes(file_);
    bytes.at(at) ^= 0x10;
    testing_replay::write_bytes(copy_, bytes);
  }

  fs::path folder_ = test_folder();
  fs::path file_ = folder_ / "j.part";
  fs::path copy_ = folder_ / "copy.part";
};

TEST_F(JournalTest, GivesBackWhatWasWrittenAlsoWhenOpenedAgain) {
  {
    Journal j(file_, "plan", false);
    EXPECT_FALSE(j.has(3));
    j.append(3, bytes("three"));
    j.append(1, bytes(""));
    j.append(3, bytes("again"));
    EXPECT_EQ(text(j.read(3)), "again");
  }
  Journal j(file_, "plan", true);
  EXPECT_TRUE(j.has(1));
  EXPECT_EQ(text(j.read(1)), "");
  EXPECT_EQ(text(j.read(3)), "again");
  j.clear();
  EXPECT_FALSE(j.has(3));
  j.append(7, bytes("seven"));
  EXPECT_EQ(text(Journal(file_, "plan", true).read(7)), "seven");
  j.remove();
  EXPECT_FALSE(fs::exists(file_));
}

TEST_F(JournalTest, StartsAnewWithoutResumeAndForAnotherPlan) {
  Journal(file_, "plan", false).append(1, bytes("one"));
  EXPECT_FALSE(Journal(file_, "other", true).has(1));
  Journal(file_, "plan", false).append(1, bytes("one"));
  EXPECT_FALSE(Journal(file_, "plan", false).has(1));
}

// Every cut of the file, and every damaged byte: the records before it are there, and no other.
TEST_F(JournalTest, KeepsTheRecordsBeforeACutOrADamagedByte) {
  const std::vector<std::string> records = {"zero", "", "second record"};
  std::vector<std::uintmax_t> ends;
  {
    Journal j(file_, "plan", false);
    for (std::size_t i = 0; i < records.size(); ++i) {
      ends.push_back(fs::file_size(file_));
      j.append(static_cast<Index>(i), bytes(records[i]));
    }
    ends.push_back(fs::file_size(file_));
  }
  const auto expect_until = [&](std::uintmax_t end) {
    Journal j(copy_, "plan", true);
    for (std::size_t i = 0; i < records.size(); ++i) {
      ASSERT_EQ(j.has(static_cast<Index>(i)), ends[i + 1] <= end) << i;
      if (j.has(static_cast<Index>(i))) {
        EXPECT_EQ(text(j.read(static_cast<Index>(i))), records[i]);
      }
    }
    j.append(9, bytes("next"));
    EXPECT_EQ(text(Journal(copy_, "plan", true).read(9)), "next");
  };
  for (std::uintmax_t size = 0; size <= ends.back(); ++size) {
    SCOPED_TRACE(size);
    copy_cut(size);
    expect_until(size);
    if (size < ends.back()) {
      copy_damaged(size);
      // In front of the first record it is another plan's; in a record that one and all behind it.
      expect_until(size < ends.front() ? 0 : size);
    }
  }
}

// Damage before the last record is refused, or only that record is skipped; a torn end is neither.
TEST_F(JournalTest, TellsDamageFromATornEnd) {
  std::vector<std::uintmax_t> ends;
  {
    Journal j(file_, "plan", false);
    for (Index i = 0; i < 4; ++i) {
      ends.push_back(fs::file_size(file_));
      j.append(i, bytes("record " + std::to_string(i)));
    }
    ends.push_back(fs::file_size(file_));
  }
  const auto numbers = [&](Journal::Damage damage) { return Journal(copy_, damage).numbers(); };
  for (std::uintmax_t at = ends[0]; at < ends[4]; ++at) {
    SCOPED_TRACE(at);
    copy_cut(at);
    const Index whole = std::ranges::upper_bound(ends, at) - ends.begin() - 1;
    EXPECT_EQ(std::ssize(numbers(Journal::Damage::refuse)), whole);
    copy_damaged(at);
    std::vector<Index> left{0, 1, 2, 3};
    left.erase(left.begin() + whole);
    EXPECT_EQ(numbers(Journal::Damage::skip), left);
    if (whole < 3) {
      const std::string what = "record " + std::to_string(whole + 1) + " was changed";
      EXPECT_NE(testing_replay::refusal([&] { numbers(Journal::Damage::refuse); }).find(what),
                std::string::npos);
    } else {
      EXPECT_EQ(numbers(Journal::Damage::refuse), left);
    }
  }
  EXPECT_TRUE(Journal::has_records(file_));
  testing_replay::write_bytes(copy_, "a,b\n1,2\n");
  EXPECT_THROW(numbers(Journal::Damage::refuse), InputError);
  EXPECT_FALSE(Journal::has_records(copy_));
}

TEST_F(JournalTest, NamesTheFileThatCannotBeOpenedOrHasChanged) {
  EXPECT_THROW(Journal(folder_ / "absent" / "j.part", "plan", false), IoError);
  Journal j(file_, "plan", false);
  j.append(2, bytes("abc"));
  std::fstream(file_, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(-1, std::ios::end)
      .put('x');
  EXPECT_THROW(j.read(2), IoError);
}

}  // namespace
}  // namespace kvbench::test_journal
