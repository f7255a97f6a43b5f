// `kvbench evaluate`: caches that are not of the trace or the run, refused by name before the first
// row; exit codes of the program.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "evaluate_run.hpp"

namespace kvbench::test_evaluate_refusals {
namespace {

namespace fs = std::filesystem;
using namespace testing_caches;
using namespace testing_replay;

Make some() {
  return [](const KvHead& head, const CachePlace&) { return held(head, 6, 9); };
}

TEST_F(EvaluateTest, WhatIsNotOfThisTraceIsRefusedBeforeTheFirstRow) {
  const auto refused_with = [&](const std::function<void(ReplayOptions&)>& change,
                                const std::string& part) {
    ReplayOptions e = again();
    change(e);
    expect_refusal([&] { run(e); }, part);
    EXPECT_FALSE(fs::exists(e.out)) << part;
  };
  const auto refused = [&](const std::string& part) { refused_with([](auto&) {}, part); };
  const auto with = [&](const std::function<void(CachesMeta&)>& change) {
    CachesMeta m = meta();
    change(m);
    write({{named("mine"), some()}}, "c.h5", m);
  };
  with([](CachesMeta& m) { m.trace_sha256 = {std::string(64, 'b'), "c"}; });
  refused("t.h5: SHA-256 " + sha256_file(trace_) + " is not in");
  with([](CachesMeta& m) { m.trace_sha256.insert(m.trace_sha256.begin(), "another"); });
  run(again("good.csv"));
  with([](CachesMeta& m) { m.protocol = "stream"; });
  refused("c.h5: protocol is stream");
  with([](CachesMeta& m) { m.recent = 7; });
  refused("recent 7 and queries 8, expected 1 <= queries <= recent");
  with([](CachesMeta& m) { m.queries = 0; });
  refused("queries 0");

  write({{named("mine"), some()}}, "other.h5", [&] {
    CachesMeta m = meta();
    m.sink = 3;
    return m;
  }());
  write({{named("mine"), some()}});
  refused_with([&](ReplayOptions& e) { e.caches.push_back(at("other.h5")); },
               "other.h5: sink 3, expected 4 as in ");
  write({{named("mine"), some()}}, "other.h5");
  refused_with([&](ReplayOptions& e) { e.caches.push_back(at("other.h5")); },
               "other.h5: /mine/prompts/p0/layers/0/0: also in ");
  CacheGroup group = named("mine");
  group.scores = "all";
  write({{group, some()}}, "other.h5");
  refused_with([&](ReplayOptions& e) { e.caches.push_back(at("other.h5")); },
               "other.h5: /mine: scores all and scope head, expected none and head");
  group.seed = 1;
  group.name = "more of mine";
  write({{named("mine"), some()}, {group, some()}});
  refused("scores is all, expected none as in the other groups of mine");

  const Make one = [](const KvHead& head, const CachePlace& place) -> std::optional<HeadCache> {
    return place.prompt == "p0" ? std::optional(held(head, 6, 9)) : std::nullopt;
  };
  write({{named("mine"), one}});
  refused_with([](ReplayOptions& e) { e.prompts = {"p1"}; },
               "c.h5: no cache for the selected prompts, layers and heads");
  refused_with([](ReplayOptions& e) { e.layers = {1}; }, "--layers");
  EXPECT_EQ(run(again("p0.csv")).rows, 8);  // prompts that no group has are left out

  const auto changed = [](const std::function<void(HeadCache&)>& change) {
    return [=](const KvHead& head, const CachePlace& place) {
      HeadCache c = held(head, 6, 9);
      if (place.prompt == "p1" && place.layer == 2 && place.kv_head == 1) {
        change(c);
      }
      return c;
    };
  };
  const std::string where = "c.h5: /mine/prompts/p1/layers/2/1";
  write({{named("mine"), changed([](HeadCache& c) { c.token[0] = 2; })}});
  refused(where + ": token: row 0 is 2, expected a position of the middle, 4 to 24");
  write({{named("mine"), changed([](HeadCache& c) { c.v.row(1)[2] *= -2.0F; })}});
  refused(where + ": v: row 1 is marked as token 7, but channel 2 is");
  write({{named("mine"), changed([](HeadCache& c) { c.quantized = 1; })}});
  refused(where + ": quantised is 1, expected at most the 0");
  write({{named("mine"), changed([](HeadCache& c) { c.v = Matrix(3, 5); })}});
  refused(where + "/v: shape is [3, 5], expected [3, 6]");
  write({{named("mine"), changed([](HeadCache& c) {
            c.k = Matrix(22, 8);
            c.v = Matrix(22, 6);
            c.token.clear();
          })}});
  refused(where + "/k: shape is [22, 8], expected [at most 21, 8]");
}

// ----------------------------------------------------------------------------------- the program

struct Ended {
  int code = -1;
  std::string text;  // of both streams
};

TEST_F(EvaluateTest, TheProgramsExitCodes) {
  const std::string program = KVBENCH_PROGRAM;
  if (program.empty()) {
    GTEST_SKIP() << "built without the program";
  }
  const auto call = [&](const std::string& arguments) {
    const std::string command =
        "'" + program + "' evaluate " + arguments + " > '" + at("text") + "' 2>&1";
    const int status = std::system(command.c_str());  // NOLINT(cert-env33-c,concurrency-mt-unsafe)
    return Ended{WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_bytes(at("text"))};
  };
  const std::string files = "'" + trace_ + "' --caches '" + at("c.h5") + "' -o ";
  write({{named("mine"), some()}});
  Ended end = call(files + "'" + at("good.csv") + "'");
  EXPECT_EQ(end.code, 0) << end.text;
  EXPECT_NE(end.text.find("good.csv: 16 rows in "), std::string::npos) << end.text;

  const Make lacks = [](const KvHead& head, const CachePlace& place) -> std::optional<HeadCache> {
    return place.layer == 2 ? std::optional(held(head, 6, 9)) : std::nullopt;
  };
  write({{named("mine"), some()}, {named("other"), lacks}});
  end = call(files + "'" + at("lacks.csv") + "'");
  EXPECT_EQ(end.code, 1) << end.text;
  EXPECT_NE(end.text.find("8 FAILED"), std::string::npos) << end.text;
  Index failed = 0;
  for (const Fields& row : untimed(at("lacks.csv"))) {
    if (row[column_index("algorithm")] == "other" && row[column_index("layer")] == "0") {
      EXPECT_EQ(row[column_index("status")],
                "failed: the caches of other hold nothing for this head");
      EXPECT_EQ(row[column_index("rel_error")], "");
      ++failed;
    } else {
      EXPECT_EQ(row[column_index("status")], "ok");
    }
  }
  EXPECT_EQ(failed, 8);

  const auto refused = [&](const std::string& arguments, const std::string& part) {
    const Ended ended = call(arguments);
    EXPECT_EQ(ended.code, 2) << ended.text;
    EXPECT_EQ(std::count(ended.text.begin(), ended.text.end(), '\n'), 1) << ended.text;
    EXPECT_EQ(ended.text.rfind("kvbench: error: ", 0), 0U) << ended.text;
    EXPECT_NE(ended.text.find(part), std::string::npos) << ended.text;
  };
  refused("'" + trace_ + "' --caches '" + trace_ + "' -o '" + at("x.csv") + "'",
          "t.h5: /: format is \"kvbench-trace\", expected \"kvbench-caches\"");
  refused("'" + at("c.h5") + "' --caches '" + at("c.h5") + "' -o '" + at("x.csv") + "'", "SHA-256");
  refused("'" + trace_ + "' --caches '" + at("none.h5") + "' -o '" + at("x.csv") + "'",
          "none.h5: cannot be opened");
  refused(files + "'" + at("c.h5") + "' --overwrite", "c.h5: is also what the run reads");
  refused(files + "'" + trace_ + "' --overwrite", "t.h5: is also what the run reads");
  EXPECT_FALSE(fs::exists(at("x.csv")));
}

}  // namespace
}  // namespace kvbench::test_evaluate_refusals
