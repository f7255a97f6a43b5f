// A journal keeps whole records through any cut and any damage behind them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
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

  static Journal open(const fs::path& path, bool resume = true,
                      Journal::Damage damage = Journal::Damage::refuse) {
    return Journal(path, "plan", resume, damage);
  }

  fs::path folder_ = test_folder();
  fs::path file_ = folder_ / "j.part";
  fs::path copy_ = folder_ / "copy.part";
};

TEST_F(JournalTest, GivesBackWhatWasWrittenAlsoWhenOpenedAgain) {
  {
    Journal j = open(file_, false);
    EXPECT_FALSE(j.has(3));
    j.append(3, bytes("three"));
    j.append(1, bytes(""));
    j.append(3, bytes("again"));
    EXPECT_EQ(text(j.read(3)), "again");
  }
  Journal j = open(file_);
  EXPECT_EQ(j.numbers(), (std::vector<Index>{1, 3}));
  EXPECT_EQ(text(j.read(1)), "");
  EXPECT_EQ(text(j.read(3)), "again");
  j.clear();
  EXPECT_FALSE(j.has(3));
  j.append(7, bytes("seven"));
  EXPECT_EQ(text(open(file_).read(7)), "seven");
  j.remove();
  EXPECT_FALSE(fs::exists(file_));
}

TEST_F(JournalTest, StartsAnewWithoutResumeAndForAnotherPlan) {
  open(file_, false).append(1, bytes("one"));
  EXPECT_FALSE(Journal(file_, "other", true, Journal::Damage::refuse).has(1));
  open(file_, false).append(1, bytes("one"));
  EXPECT_FALSE(open(file_, false).has(1));
}

// Every cut of the file leaves the records before it. A damaged byte is refused or costs its record
// alone; in the last one it is a torn end.
TEST_F(JournalTest, KeepsWholeRecordsThroughAnyCutAndDamage) {
  const std::vector<std::string> records{"zero", "", "second record", "last"};
  std::vector<std::uintmax_t> ends;
  {
    Journal j = open(file_, false);
    for (std::size_t i = 0; i < records.size(); ++i) {
      ends.push_back(fs::file_size(file_));
      j.append(static_cast<Index>(i), bytes(records[i]));
    }
    ends.push_back(fs::file_size(file_));
  }
  // Then the journal goes on.
  const auto expect_left = [&](const std::vector<Index>& left, Journal::Damage damage) {
    {
      Journal j = open(copy_, true, damage);
      ASSERT_EQ(j.numbers(), left);
      for (const Index i : left) {
        EXPECT_EQ(text(j.read(i)), records[i]);
      }
      j.append(9, bytes("next"));
    }
    EXPECT_EQ(text(open(copy_, true, damage).read(9)), "next");
    EXPECT_EQ(std::ssize(Journal(copy_, damage).numbers()), std::ssize(left) + 1);
  };
  for (std::uintmax_t at = 0; at <= ends.back(); ++at) {
    SCOPED_TRACE(at);
    const Index whole = std::max<Index>(0, std::ranges::upper_bound(ends, at) - ends.begin() - 1);
    std::vector<Index> left{0, 1, 2, 3};
    left.resize(whole);
    copy_cut(at);
    expect_left(left, Journal::Damage::refuse);
    if (at == ends.back()) {
      break;
    }
    copy_damaged(at);
    if (at < ends.front()) {  // another plan's
      expect_left({}, Journal::Damage::skip);
      continue;
    }
    left = {0, 1, 2, 3};
    left.erase(left.begin() + whole);
    if (whole < 3) {
      testing_replay::expect_refusal([&] { Journal(copy_, Journal::Damage::refuse); },
                                     "record " + std::to_string(whole + 1) + " was changed");
    } else {
      EXPECT_EQ(Journal(copy_, Journal::Damage::refuse).numbers(), left);
    }
    expect_left(left, Journal::Damage::skip);
  }
  EXPECT_TRUE(Journal::has_records(file_));
  testing_replay::write_bytes(copy_, "a,b\n1,2\n");
  EXPECT_THROW(Journal(copy_, Journal::Damage::refuse), InputError);
  EXPECT_FALSE(Journal::has_records(copy_));
}

TEST_F(JournalTest, NamesTheFileThatCannotBeOpenedOrHasChanged) {
  EXPECT_THROW(open(folder_ / "absent" / "j.part"), IoError);
  Journal j = open(file_, false);
  j.append(2, bytes("abc"));
  std::fstream(file_, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(-1, std::ios::end)
      .put('x');
  EXPECT_THROW(j.read(2), IoError);
}

}  // namespace
}  // namespace kvbench::test_journal
