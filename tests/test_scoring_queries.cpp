// What a method sees of the queries: scores=none where it looks at none, how many it had to score
// with, and that too few or none are never silent.

#include <map>

#include "algorithms/registry.hpp"
#include "replay/job.hpp"
#include "replay_run.hpp"

namespace kvbench::test_scoring_queries {
namespace {

using namespace testing_replay;

std::string cell(const Fields& row, std::string_view column) {
  return row[column_index(column)];
}

class ScoringQueries : public ReplayTest {
 protected:
  // 60 tokens, of which the last `nq` have queries; middle [4, 44), evaluated [52, 60).
  ReplayOptions options(Index nq, const std::vector<std::string>& algorithms) {
    ReplayOptions o = basic("out.csv");
    o.traces = {make_trace(folder_ / ("q" + std::to_string(nq) + ".h5"),
                           {.tokens = {60}, .nq = nq, .rope = rope_tables(60 + 512, 8)})};
    o.algorithms = algorithms;
    o.budgets = {0.5};
    o.heads = {0};
    o.recent = 16;
    o.overwrite = true;
    return o;
  }

  std::map<std::string, Fields> rows(const ReplayOptions& o) {
    run(o);
    std::map<std::string, Fields> out;
    for (const Fields& row : untimed(o.out)) {
      out[cell(row, "algorithm")] = row;
    }
    return out;
  }
};

// A method that looks ahead counts from the prompt's end, also where evaluated queries score.
TEST_F(ScoringQueries, TheEvaluatedPositionsAreTheTasksUnderEitherScores) {
  for (const Scores scores : {Scores::past, Scores::all}) {
    ReplayOptions o = options(60, {"triattention"});
    o.scores = scores;
    const Plan plan = make_plan(o);
    const HeadContext context(plan, plan.units.front(), 1);
    const Task task = context.task(plan.entries[0]);
    EXPECT_EQ(task.evaluated, (Range{52, 60}));
    EXPECT_EQ(task.scoring.end, scores == Scores::past ? 52 : 60);
  }
}

TEST_F(ScoringQueries, NoneWhereAMethodLooksAtNoQuery) {
  const auto sees = [](const Method& m) {
    return Variant{&m, Params(m.info.name, m.info.params, {})}.sees_queries();
  };
  for (const char* name :
       {"exact", "uniform", "local", "random-local", "streamingllm", "knorm", "keydiff", "lagkv",
        "quant-kivi", "balancekv", "clustergen", "balancekv-stream", "clustergen-kcenter", "kmeans",
        "leverage", "curdkv", "lowrank", "wildcat"}) {
    EXPECT_FALSE(sees(find_method(name))) << name;
  }
  for (const char* name : {"oracle", "h2o", "snapkv", "tova", "expected-attention", "bumblebee",
                           "kvreviver", "attention-matching", "compactor", "think"}) {
    EXPECT_TRUE(sees(find_method(name))) << name;
  }
  const auto got = rows(options(60, {"all", "lagkv+balancekv", "lagkv+h2o"}));
  for (const auto& [name, row] : got) {
    const bool none =
        name == "lagkv+balancekv" || (name != "lagkv+h2o" && !sees(find_method(name)));
    EXPECT_EQ(cell(row, "scores"), none ? "none" : "past") << name;
    EXPECT_EQ(cell(row, "scoring_queries").empty(), none) << name;
  }
  const auto weighted = rows(options(60, {"lowrank:weight=queries"}));
  EXPECT_EQ(cell(weighted.at("lowrank"), "scores"), "past");
  EXPECT_EQ(cell(weighted.at("lowrank"), "scoring_queries"), "52");
  ReplayOptions all = options(60, {"h2o", "knorm"});
  all.scores = Scores::all;
  EXPECT_EQ(cell(rows(all)["h2o"], "scores"), "all");
  EXPECT_EQ(cell(rows(all)["h2o"], "scoring_queries"), "60");
  EXPECT_EQ(cell(rows(all)["knorm"], "scores"), "none");
}

TEST_F(ScoringQueries, ARowSaysHowManyItHad) {
  auto got = rows(options(60, {"h2o,snapkv,tova,oracle,uniform,h2o+snapkv"}));
  EXPECT_EQ(cell(got["h2o"], "scoring_queries"), "52");
  EXPECT_EQ(cell(got["snapkv"], "scoring_queries"), "32");
  EXPECT_EQ(cell(got["tova"], "scoring_queries"), "1");
  EXPECT_EQ(cell(got["oracle"], "scoring_queries"), "8");
  EXPECT_EQ(cell(got["h2o+snapkv"], "scoring_queries"), "52");
  for (const auto& [name, row] : got) {
    EXPECT_EQ(cell(row, "status"), "ok") << name;
    EXPECT_EQ(cell(row, "diag").find("scoring_queries_asked"), std::string::npos) << name;
  }
}

TEST_F(ScoringQueries, FewerThanAskedForAreSaid) {
  const ReplayOptions o = options(28, {"h2o,snapkv,tova,uniform,snapkv+h2o"});  // [32, 52) score
  auto got = rows(o);
  EXPECT_EQ(cell(got["h2o"], "scoring_queries"), "20");
  EXPECT_NE(cell(got["h2o"], "diag").find("scoring_queries_asked=52"), std::string::npos);
  EXPECT_NE(cell(got["snapkv"], "diag").find("scoring_queries_asked=32"), std::string::npos);
  EXPECT_NE(cell(got["snapkv+h2o"], "diag").find("scoring_queries_asked=52"), std::string::npos);
  EXPECT_EQ(cell(got["tova"], "diag").find("scoring_queries_asked"), std::string::npos);
  for (const auto& [name, row] : got) {
    EXPECT_EQ(cell(row, "status"), "ok") << name;
  }
  const std::vector<std::string> notes = scoring_notes(make_plan(o));
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_EQ(
      notes[0],
      "note: 20 of the 32 queries that snapkv would score with are in the trace (1 KV heads)");
  EXPECT_EQ(notes[1],
            "note: 20 of the 52 queries that h2o, snapkv+h2o would score with are in the trace (1 "
            "KV heads)");
  EXPECT_TRUE(scoring_notes(make_plan(options(60, {"all"}))).empty());
}

TEST_F(ScoringQueries, NoneIsDegenerate) {
  const ReplayOptions o = options(8, {"h2o,snapkv,tova,oracle,uniform,lagkv+h2o"});
  for (const auto& [name, row] : rows(o)) {
    const bool scores = name == "h2o" || name == "snapkv" || name == "tova" || name == "lagkv+h2o";
    EXPECT_EQ(cell(row, "status"), scores ? "degenerate: no scoring queries" : "ok") << name;
    EXPECT_FALSE(cell(row, "rel_error").empty()) << name;
  }
  EXPECT_NE(scoring_notes(make_plan(o)).front().find("these rows are degenerate"),
            std::string::npos);
}

// cam and kvreviver stream the middle, compactor compares its tokens: queries behind it are of no
// use to them.
TEST_F(ScoringQueries, AStreamedMiddleNeedsItsOwnQueries) {
  auto got = rows(options(
      16, {"cam",
           "kvreviver:prefill=stream;slack=0;recent_ratio=0.3;candidate_ratio=0.3;vague_ratio=0.4",
           "compactor"}));
  EXPECT_EQ(cell(got["compactor"], "status"), "degenerate: no scoring queries");
  EXPECT_EQ(cell(got["kvreviver"], "status"), "degenerate: no scoring queries");
  const ReplayOptions o = options(28, {"cam", "compactor"});
  for (const auto& [name, row] : rows(o)) {
    EXPECT_EQ(cell(row, "scoring_queries"), "12") << name;  // [32, 44) of the middle
    EXPECT_NE(cell(row, "diag").find("scoring_queries_asked=40"), std::string::npos) << name;
  }
}

TEST_F(ScoringQueries, AStreamSeesAllQueries) {
  ReplayOptions o = options(60, {"h2o,uniform"});
  o.protocol = Protocol::stream;
  auto got = rows(o);
  EXPECT_EQ(cell(got["h2o"], "scoring_queries"), "60");
  EXPECT_EQ(cell(got["h2o"], "scores"), "past");
  EXPECT_EQ(cell(got["uniform"], "scores"), "none");
}

TEST_F(ScoringQueries, AnEmptyMiddleIsDegenerate) {
  ReplayOptions o = options(60, {"h2o,uniform,exact"});
  o.recent = 56;
  o.precision = Precision::float64;
  for (const auto& [name, row] : rows(o)) {
    EXPECT_EQ(cell(row, "status"), "degenerate: empty middle") << name;
    EXPECT_LE(std::stod(cell(row, "rel_error")), 1e-12) << name;
  }
}

}  // namespace
}  // namespace kvbench::test_scoring_queries
