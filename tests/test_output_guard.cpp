// What may be written: never an input, never another output, never a file of somebody else's.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/file_lock.hpp"
#include "core/files.hpp"
#include "core/output_guard.hpp"
#include "files.hpp"
#include "make_trace.hpp"
#include "refusal.hpp"
#include "report/journal.hpp"
#include "report/manifest.hpp"
#include "report/run_files.hpp"
#include "report/summary_table.hpp"
#include "report/table_spec.hpp"
#include "report_rows.hpp"
#include "trace/file_kinds.hpp"
#include "trace/synth.hpp"

namespace kvbench::test_output_guard {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;

SynthOptions small_synth() {
  SynthOptions small;
  small.layers = small.q_heads = small.kv_heads = 1;
  small.n = 8;
  small.d = 16;
  return small;
}

class OutputGuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing_rows::test_folder();
    write_bytes(at("input"), "precious");
    fs::create_directory(at("sub"));
    fs::create_directory_symlink(at("sub"), at("way"));
    fs::create_symlink(at("input"), at("link"));
    fs::create_hard_link(at("input"), at("hard"));
  }

  fs::path at(const std::string& name) const { return folder_ / name; }

  void check(const fs::path& output, const FileKind& kind = text_kind("a test", "a,b")) const {
    check_outputs({at("input")}, {{output, kind}});
  }
  void expect_refused(const fs::path& output, const std::string& words,
                      const FileKind& kind = text_kind("a test", "a,b")) const {
    SCOPED_TRACE(output);
    expect_refusal([&] { check(output, kind); }, words, "expected");
  }

  fs::path folder_;
};

TEST_F(OutputGuardTest, AnInputUnderAnyName) {
  for (const char* name : {"input", "link", "hard", "./input", "sub/../input", "way/../input"}) {
    expect_refused(at(name), "is also what the run reads");
  }
  // Files that are written beside the output and are gone at the end.
  fs::copy_file(at("input"), at("out.csv.tmp"));
  fs::copy_file(at("input"), at("sub/lock.csv.lock"));
  for (const auto& [input, output] :
       {std::pair("out.csv.tmp", "out.csv"), {"sub/lock.csv.lock", "way/lock.csv"}}) {
    expect_refusal(
        [&, in = at(input), out = at(output)] {
          check_outputs({in}, {{out, text_kind("a test", "a")}});
        },
        "what the run reads");
  }
  EXPECT_NO_THROW(check(at("free")));
  EXPECT_NO_THROW(check(at("no/such/folder")));  // the writer says so
}

TEST_F(OutputGuardTest, TwoOutputsThatAreOneFileExistingOrNot) {
  const FileKind kind = text_kind("a test", "a,b");
  write_bytes(at("sub/there"), "a,b\n");
  fs::create_symlink(at("sub/later"), at("dangling"));
  const std::vector<std::pair<const char*, const char*>> same{
      {"sub/new", "way/new"},           {"sub/there", "way/there"}, {"new", "sub/../new"},
      {"sub/later", "dangling"},        {"way/later", "dangling"},  {"new.tmp", "new"},
      {"new", "way/../new.lock/../new"}};
  for (const auto& [a, b] : same) {
    expect_refusal(
        [&, one = at(a), other = at(b)] {
          check_outputs({}, {{one, kind}, {other, kind}});
        },
        "is also a");
  }
  check_outputs({}, {{at("new"), kind}, {at("sub/new"), kind}, {at("new2"), kind}});
}

// The same question asked after making both files, which check_outputs() must not do.
TEST_F(OutputGuardTest, AgreesWithFilesThatExist) {
  std::mt19937 random(7);
  const auto name = [&] {
    std::string out;
    for (std::size_t n = random() % 4; n > 0; --n) {
      const std::vector<std::string> steps{"sub/..", "way", "sub", ".", "way/..", "sub/."};
      out += steps[random() % steps.size()] + "/";
    }
    return out + (random() % 2 == 0 ? "x" : "y");
  };
  int same = 0;
  for (int i = 0; i < 300; ++i) {
    const fs::path a = at(name());
    const fs::path b = at(name());
    if (!fs::is_directory(a.parent_path()) || !fs::is_directory(b.parent_path())) {
      continue;
    }
    bool refused = false;
    try {
      check_outputs({}, {{a, text_kind("a test", "a")}, {b, text_kind("a test", "a")}});
    } catch (const InputError&) {
      refused = true;
    }
    write_bytes(a, "");
    write_bytes(b, "");
    EXPECT_EQ(refused, fs::equivalent(a, b)) << a << " " << b;
    same += refused ? 1 : 0;
    fs::remove(a);
    fs::remove(b);
  }
  EXPECT_GT(same, 20);
}

TEST_F(OutputGuardTest, NodesThatAreNoFiles) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const fs::path before = fs::current_path();
  fs::current_path(folder_);  // an address is short
  std::strcpy(address.sun_path, "socket");
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  fs::current_path(before);
  expect_refused(at("pipe"), "a pipe");
  expect_refused(at("socket"), "a socket");
  expect_refused(at("sub"), "a folder");
  expect_refused(at("way"), "a folder");
  expect_refused("/dev/null", "a device");
  expect_refused("/dev/full", "not a regular file");
  ::close(fd);
  // Nor is one written through on the way.
  fs::create_symlink(at("elsewhere"), at("out.tmp"));
  expect_refused(at("out"), "a link");
  fs::create_directory(at("other.tmp"));
  expect_refused(at("other"), "a folder");
}

TEST_F(OutputGuardTest, TextsOfAKind) {
  const FileKind kind = text_kind("a test", "alpha,beta");
  for (const char* own : {"", "alpha,beta\n1,2\n", "alpha,beta,gamma\n", "alpha\n1\n", "alp",
                          "alpha,beta", "alpha,beta,ga"}) {
    write_bytes(at("out"), own);
    EXPECT_NO_THROW(check(at("out"), kind)) << own;
    fs::rename(at("out"), at("out.tmp"));
    EXPECT_NO_THROW(check(at("out"), kind)) << own;
    fs::remove(at("out.tmp"));
  }
  for (const char* foreign : {"notes", "\nalpha,beta\n", "alp\n", "alphA,beta\n", "beta,alpha\n",
                              "alpha,be\n", "\"alpha\",beta\n"}) {
    write_bytes(at("out"), foreign);
    expect_refused(at("out"), "exists and is not a test", kind);
    EXPECT_EQ(read_bytes(at("out")), foreign);
    fs::rename(at("out"), at("out.tmp"));
    expect_refused(at("out"), "not the beginning of a test", kind);
    fs::remove(at("out.tmp"));
  }
}

// Every kind takes its own files and nobody else's.
TEST_F(OutputGuardTest, KindsTellEachOtherApart) {
  struct Made {
    FileKind kind;
    std::string bytes;
  };
  std::vector<Made> all;
  const auto add = [&](const FileKind& kind, const fs::path& path) {
    all.push_back({kind, read_bytes(path)});
  };
  synth(small_synth(), at("t.h5").string());
  add(synthetic_trace_kind(), at("t.h5"));
  write_manifest(at("m"), begin_manifest("kvbench", {}));
  add(manifest_kind(), at("m.json"));
  {
    Journal journal(at("j"), "plan", false, Journal::Damage::refuse);
    add(journal_kind(), at("j"));
  }
  for (const Output& file : run_files(at("out.csv"))) {
    for (const TableSpec* table : all_side_tables()) {
      if (file.path == table->path(at("out.csv"))) {
        all.push_back({file.kind, csv_line(table->header()) + "x\n"});
      }
    }
  }
  all.push_back({run_files("out.csv").front().kind, csv_line(schema_header()) + "x\n"});
  all.push_back({summary_kind(), "algorithm,params,budget_requested,layer,count\n"});
  ASSERT_EQ(all.size(), 9U);
  for (std::size_t i = 0; i < all.size(); ++i) {
    write_bytes(at("out"), all[i].bytes);
    for (std::size_t j = 0; j < all.size(); ++j) {
      EXPECT_EQ(all[j].kind.matches(at("out")), i == j) << all[i].kind.name << all[j].kind.name;
    }
    EXPECT_TRUE(all[i].kind.begins(first_bytes(at("out"), 64)));
    EXPECT_TRUE(all[i].kind.begins(all[i].bytes.substr(0, 3)));
    EXPECT_FALSE(all[i].kind.begins("no such thing"));
  }
  // A trace of a model may be hours of work.
  const std::string dumped = make_trace(at("model.h5"));
  EXPECT_FALSE(synthetic_trace_kind().matches(dumped));
}

TEST_F(OutputGuardTest, AnUnfinishedFileIsNotWrittenThrough) {
  fs::create_symlink(at("input"), at("out.csv.tmp"));
  write_file_atomically(at("out.csv"), "new");
  EXPECT_EQ(read_bytes(at("input")), "precious");
  EXPECT_EQ(read_bytes(at("out.csv")), "new");
  fs::create_hard_link(at("input"), at("t.h5.tmp"));
  synth(small_synth(), at("t.h5").string());
  EXPECT_EQ(read_bytes(at("input")), "precious");
  EXPECT_FALSE(fs::exists(fs::symlink_status(at("t.h5.tmp"))));
}

TEST_F(OutputGuardTest, StagedTextsAreWholeOrAbsent) {
  write_bytes(at("out"), "old");
  {
    const StagedFile dropped(at("out"), "new");
    EXPECT_EQ(read_bytes(at("out")), "old");
    EXPECT_EQ(read_bytes(at("out.tmp")), "new");
  }
  EXPECT_FALSE(fs::exists(at("out.tmp")));
  EXPECT_EQ(read_bytes(at("out")), "old");
  fs::create_symlink(at("sub/target"), at("name"));
  StagedFile(at("name"), "through the link").publish();
  EXPECT_TRUE(fs::is_symlink(at("name")));
  EXPECT_EQ(read_bytes(at("sub/target")), "through the link");
}

// Even where nobody asked check_outputs().
TEST_F(OutputGuardTest, NoNodeIsReplacedOrRemoved) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  EXPECT_THROW(write_file_atomically(at("pipe"), "text"), IoError);
  EXPECT_FALSE(fs::exists(at("pipe.tmp")));
  EXPECT_THROW(synth(small_synth(), at("pipe").string()), IoError);
  remove_files(
      {{at("pipe"), journal_kind()}, {at("sub"), journal_kind()}, {at("none"), journal_kind()}});
  EXPECT_TRUE(fs::is_fifo(at("pipe")));
  EXPECT_TRUE(fs::is_directory(at("sub")));
}

TEST_F(OutputGuardTest, ALockFileOfSomebodyElseStays) {
  write_bytes(at("out.csv.lock"), "notes");
  expect_refusal([&] { const FileLock lock(at("out.csv")); }, "expected a lock file");
  EXPECT_EQ(read_bytes(at("out.csv.lock")), "notes");
  ASSERT_EQ(::mkfifo(at("pipe.csv.lock").c_str(), 0600), 0);
  expect_refusal([&] { const FileLock lock(at("pipe.csv")); }, "is no regular file");
  EXPECT_TRUE(fs::is_fifo(at("pipe.csv.lock")));
  write_bytes(at("free.csv.lock"), "");
  { const FileLock lock(at("free.csv")); }
  EXPECT_FALSE(fs::exists(at("free.csv.lock")));
}

// What an output leads to is decided when it is checked.
TEST_F(OutputGuardTest, LinksThatComeLaterAreNotFollowed) {
  const fs::path path = at("out.csv");
  const fs::path victim = at("input");
  const std::vector<Output> outputs = run_files(path);
  check_outputs({}, outputs);
  for (const Output& output : outputs) {
    fs::remove(output.path);
    fs::create_symlink(victim, output.path);
    EXPECT_THROW(write_file_atomically(output.path, "ours"), IoError) << output.path;
    EXPECT_EQ(fs::read_symlink(output.path), victim);
  }
  EXPECT_EQ(first_bytes(victim, 100), "precious");
  remove_files(outputs);  // removes no link
  EXPECT_TRUE(fs::is_symlink(path));
  // A link that was there before is a name of its file, as ever.
  fs::remove(path);
  fs::create_symlink(folder_ / "target.csv", path);
  check_outputs({}, {outputs.front()});
  write_file_atomically(path, "ours");
  EXPECT_EQ(first_bytes(folder_ / "target.csv", 100), "ours");
  EXPECT_TRUE(fs::is_symlink(path));
}

// Another file got the name after the check.
TEST_F(OutputGuardTest, RemovesNoFileThatCameLater) {
  const fs::path path = folder_ / "out.csv";
  const std::vector<Output> outputs = run_files(path);
  check_outputs({}, outputs);
  std::ofstream(path) << "a diary\n";
  EXPECT_THROW(remove_files(outputs), IoError);
  EXPECT_EQ(first_bytes(path, 100), "a diary\n");
}

}  // namespace
}  // namespace kvbench::test_output_guard
