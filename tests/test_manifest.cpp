#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "core/error.hpp"
#include "core/sha256.hpp"
#include "refusal.hpp"
#include "report/manifest.hpp"
#include "report_rows.hpp"

namespace kvbench::test_manifest {
namespace {

using testing_rows::test_folder;

/// Every digit as 0.
std::string shape_of(std::string text) {
  for (char& c : text) {
    c = c >= '0' && c <= '9' ? '0' : c;
  }
  return text;
}

TEST(Sha256, KnownVectors) {  // FIPS 180-2, appendix B
  EXPECT_EQ(sha256_text(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_text("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const auto path = test_folder() / "million";
  std::ofstream(path) << std::string(1000000, 'a');
  EXPECT_EQ(sha256_file(path), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  const std::string text(3 * (std::size_t{1} << 20) + 17, 'x');  // several buffers and a rest
  std::ofstream(path) << text;
  EXPECT_EQ(sha256_file(path), sha256_text(text));
  EXPECT_THROW(sha256_file(test_folder() / "none"), InputError);
  const std::filesystem::path folder = path.parent_path();
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::filesystem::path& other : {folder, pipe, std::filesystem::path("/dev/zero")}) {
    EXPECT_EQ(testing_replay::refusal([&] { sha256_file(other); }),
              other.string() + ": not a regular file");
  }
}

TEST(Manifest, RoundTrip) {
  const auto csv = test_folder() / "out.csv";
  Manifest m = begin_manifest(shell_line({"kvbench", "replay", "it's a trace.h5"}),
                              {{"sink", 256}, {"budget", {0.5, 0.25}}});
  std::ofstream(csv.string() + ".h5") << "abc";
  m.traces.push_back({csv.string() + ".h5", sha256_text("abc"), 3});
  m.threads = 4;
  m.plan = PlanInfo{"h", 10, {{0, 4}, {8, 10}}, {{0.25, 0.4}}};
  m.shard = Shard{2, 3};
  write_manifest(csv, m);
  const Manifest running = read_manifest(csv);
  EXPECT_FALSE(running.end.has_value());
  EXPECT_FALSE(running.gpu.has_value());

  m.gpu = "some GPU";
  m.driver = "1.2";
  end_manifest(m, 6, 1, 2.5);
  write_manifest(csv, m);
  const Manifest back = read_manifest(csv);
  EXPECT_EQ(manifest_to_json(back), manifest_to_json(m));
  EXPECT_EQ(back.traces[0].sha256, sha256_text("abc"));
  EXPECT_EQ(back.traces[0].bytes, 3u);
  EXPECT_EQ(back.plan->budgets_of_cache, (std::vector<std::pair<double, double>>{{0.25, 0.4}}));
  EXPECT_EQ(back.plan->row_ranges, (std::vector<Range>{{0, 4}, {8, 10}}));
  EXPECT_EQ(back.shard->index, 2);
  EXPECT_EQ(back.gpu, "some GPU");
  EXPECT_EQ(back.rows, 6);
  EXPECT_EQ(back.failures, 1);
  EXPECT_EQ(back.wall_s, 2.5);
  EXPECT_EQ(back.configuration["sink"], 256);
  EXPECT_FALSE(back.host.empty());
  EXPECT_FALSE(back.cpu.empty());
  EXPECT_GE(back.logical_cpus, 1);
  EXPECT_EQ(shape_of(back.start), "0000-00-00T00:00:00Z");
  EXPECT_EQ(shape_of(*back.end), "0000-00-00T00:00:00Z");
  EXPECT_LE(back.start, *back.end);
}

TEST(Manifest, TracesOfAnotherFormAreRefused) {
  const auto csv = test_folder() / "out.csv";
  Manifest m = begin_manifest("", nullptr);
  m.traces = {{.path = "a.h5", .sha256 = "", .bytes = 1, .model = "llama", .dtype = "bfloat16"}};
  nlohmann::json json = manifest_to_json(m);
  write_file_atomically(manifest_path(csv), json_text(json));
  EXPECT_EQ(read_manifest(csv).traces[0].model, "llama");
  EXPECT_EQ(read_manifest(csv).traces[0].dtype, "bfloat16");
  for (const char* traces : {"7", "[7]", "{}", "[{}]"}) {
    json["traces"] = nlohmann::json::parse(traces);
    write_file_atomically(manifest_path(csv), json_text(json));
    EXPECT_THROW(read_manifest(csv), InputError) << traces;
  }
}

TEST(Manifest, PathsThatAreNotUtf8DoNotLoseIt) {
  const auto csv = test_folder() / "out.csv";
  Manifest m = begin_manifest("kvbench \xFF", nullptr);
  EXPECT_NO_THROW(write_manifest(csv, m));
  EXPECT_NO_THROW(read_manifest(csv));
}

TEST(Manifest, Refusals) {
  const auto csv = test_folder() / "out.csv";
  EXPECT_THROW(read_manifest(csv), InputError);
  for (const char* text :
       {"", "{", "[]", "{\"format\": \"x\"}", "{\"format\": \"kvbench-manifest\"}"}) {
    std::ofstream(manifest_path(csv)) << text;
    EXPECT_THROW(read_manifest(csv), InputError) << text;
  }
  // Copying a value of any depth would overflow the stack.
  const auto deep = [](const char* open, const char* close, int levels) {
    std::string text = R"({"format": "kvbench-manifest", "configuration": )";
    for (int i = 0; i < levels; ++i) {
      text += open;
    }
    text += "1";
    for (int i = 0; i < levels; ++i) {
      text += close;
    }
    return text + "}";
  };
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"a\": ", "}")}) {
    for (const int levels : {63, 64, 200000}) {
      std::ofstream(manifest_path(csv)) << deep(open, close, levels);
      testing_replay::expect_refusal([&] { read_manifest(csv); },
                                     levels == 63 ? "key 'schema' not found" : "levels deep");
    }
  }
  EXPECT_THROW(write_manifest(test_folder() / "no" / "out.csv", begin_manifest("", nullptr)),
               IoError);
}

TEST(Manifest, ShellLineQuotes) {
  EXPECT_EQ(shell_line({"kvbench", "a b", "", "it's", "x=1,2:3"}),
            "kvbench 'a b' '' 'it'\\''s' x=1,2:3");
}

}  // namespace
}  // namespace kvbench::test_manifest
