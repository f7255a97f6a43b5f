// `replay --export-caches` and back: evaluated again, what was exported gives the rows that it came
// from, for every method, whatever threads, shards and devices; the stream's file has its end.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cache_runs.hpp"
#include "report/merge.hpp"

namespace kvbench::test_cache_export {
namespace {

namespace fs = std::filesystem;
using namespace testing_caches;
using namespace testing_replay;
using testing_rows::read_without_run;

using CacheExportTest = CachesTest;

// Everything that some method needs: rotary tables and output projections.
TraceShape full_shape() {
  const TraceShape shape{.tokens = {60, 16},  // of the second nothing lies between the windows
                         .layers = {0, 2},
                         .rope = rope_tables(640, 8),
                         .hidden = 10,
                         .residual_norm = true};
  return shape;
}

std::vector<TraceShape> shapes() {
  std::vector<TraceShape> out(3, full_shape());
  out[1].q_heads = 3;
  out[1].kv_heads = 1;
  out[1].dv = 11;
  out[1].nq = 20;
  out[1].dtype = DType::bfloat16;
  out[2].q_heads = 2;
  out[2].dv = 8;
  out[2].nq = 8;  // the evaluated queries alone: nothing to score with
  out[2].dtype = DType::float32;
  return out;
}

TEST_F(CacheExportTest, EvaluatedAgainEveryMethodGivesItsRows) {
  Index infeasible = 0;
  Index degenerate = 0;
  for (const TraceShape& shape : shapes()) {
    trace_ = make_trace(folder_ / "t.h5", shape);
    ReplayOptions o = options();
    o.algorithms = {"all", "h2o+balancekv", "balancekv:T=2;denominator=separate",
                    "attention-matching:keys=h2o"};
    o.budgets = {0.5, 0.1, 0.0};
    o.seeds = "1:2";
    o.kept = true;
    o.per_query = PerQuery::bins;
    o.overwrite = true;
    o.threads = 2;
    const RunResult was = run(o);
    EXPECT_EQ(was.failed, 0);
    infeasible += was.infeasible;
    degenerate += was.degenerate;
    EXPECT_FALSE(fs::exists(at("out.csv.log")));
    ReplayOptions e = evaluation("again.csv", {"c.h5"});
    e.kept = true;
    e.per_query = PerQuery::bins;
    e.overwrite = true;
    const RunResult is = run(e);
    EXPECT_EQ(is.failed, 0);
    EXPECT_EQ(is.infeasible, was.infeasible);
    EXPECT_EQ(is.degenerate, was.degenerate);
    expect_same_tables(e.out, o.out);
    EXPECT_TRUE(read_without_run(kept_table().path(e.out)).rows ==
                read_without_run(kept_table().path(o.out)).rows);
    expect_same_tables(queries_table().path(e.out), queries_table().path(o.out));
    expect_same_tables(layers_table().path(e.out), layers_table().path(o.out));
  }
  EXPECT_GT(infeasible, 0);
  EXPECT_GT(degenerate, 0);
}

// Where no weight is stored nothing is rounded: the same sums in the same order.
TEST_F(CacheExportTest, WithoutWeightsEveryFigureIsTheSame) {
  ReplayOptions o = options();
  o.algorithms = {"exact", "local", "snapkv", "h2o", "streamingllm"};
  run(o);
  const ReplayOptions e = evaluation("again.csv", {"c.h5"});
  run(e);
  expect_same_tables(e.out, o.out, 0.0, 0.0);
}

TEST_F(CacheExportTest, AStreamsFileHasItsEnd) {
  trace_ = make_trace(folder_ / "t.h5", full_shape());
  ReplayOptions o = options();
  o.protocol = Protocol::stream;
  o.algorithms = {"all"};
  o.kept = true;
  const RunResult result = run(o);
  EXPECT_EQ(result.failed, 0);
  // By row without its query head: the tokens of the last step.
  std::map<std::string, std::string> kept;
  const Table table = read_table(kept_table().path(o.out));
  const auto key_of = [](const auto& text) {
    return text("prompt") + " " + text("layer") + " " + text("kv_head") + " " + text("algorithm") +
           " " + text("params") + " " + text("budget_requested") + " " + text("seed");
  };
  for (const Fields& line : table.rows) {
    const auto text = [&](const char* name) { return line[table.column(name)]; };
    kept[key_of(text)] = text("tokens");  // steps ascend
  }
  const CacheReader reader(o.export_caches);
  EXPECT_EQ(reader.meta().protocol, "stream");
  const Plan plan = make_plan(o);
  std::map<std::string, std::size_t> groups;
  for (std::size_t g = 0; g < reader.groups().size(); ++g) {
    const CacheGroup& group = reader.groups()[g];
    groups[group.algorithm + " " + group.params + " " +
           (group.budget ? number_text(*group.budget) : "") + " " + std::to_string(group.seed)] = g;
  }
  std::size_t compared = 0;
  for (const Fields& row : read_table(o.out).rows) {
    const auto text = [&](const char* name) { return row[column_index(name)]; };
    const Index n = std::stol(text("n_tokens"));
    const CachePlace place{text("prompt"), std::stol(text("layer")), std::stol(text("kv_head"))};
    const auto cache = reader.read(groups.at(text("algorithm") + " " + text("params") + " " +
                                             text("budget_requested") + " " + text("seed")),
                                   place, {n, 8, 6});
    ASSERT_TRUE(cache.has_value());
    if (status_kind(text("status")) == "infeasible") {
      EXPECT_EQ("infeasible: " + cache->infeasible, text("status"));
      continue;
    }
    const Index exact = std::min<Index>(n, 4 + 12);  // sinks and window
    const Index held = bytes_of(*cache, 8, 6, DType::float16).sum();
    EXPECT_EQ(std::to_string(exact * 14 * 2 + held), text("bytes")) << text("algorithm");
    std::vector<Index> tokens;
    for (Index t = 0; t < n; ++t) {
      if (t < 4 || t >= n - 12 ||
          std::find(cache->token.begin(), cache->token.end(), t) != cache->token.end()) {
        tokens.push_back(t);
      }
    }
    EXPECT_EQ(ranges_text(tokens), kept.at(key_of(text))) << text("algorithm");
    ++compared;
  }
  EXPECT_GT(compared, 100U);
  expect_refusal([&] { run(evaluation("again.csv", {"c.h5"})); }, "c.h5: protocol is stream");
  EXPECT_FALSE(fs::exists(at("again.csv")));
}

TEST_F(CacheExportTest, ShardsAreOneRun) {
  ReplayOptions whole = options("whole.csv", "whole.h5");
  // With budgets that heads and layers share.
  whole.algorithms = {"pyramidkv", "adakv", "balancekv:T=2;block=8", "kmeans", "kvreviver"};
  run(whole);
  run(evaluation("whole-again.csv", {"whole.h5"}));
  std::vector<std::string> files;
  MergeOptions merge;
  merge.output = at("merged.csv");
  for (Index i = 1; i <= 3; ++i) {
    const std::string number = std::to_string(i);
    ReplayOptions o = whole;
    o.out = at("shard" + number + ".csv");
    o.export_caches = at("shard" + number + ".h5");
    o.shard_index = i;
    o.shard_count = 3;
    run(o);
    files.push_back("shard" + number + ".h5");
  }
  run(evaluation("from-shards.csv", files));
  expect_same_tables(at("from-shards.csv"), at("whole.csv"));
  expect_same_tables(at("from-shards.csv"), at("whole-again.csv"), 0.0, 0.0);
  for (Index i = 3; i >= 1; --i) {
    ReplayOptions e = evaluation("part" + std::to_string(i) + ".csv", {"whole.h5"});
    e.shard_index = i;
    e.shard_count = 3;
    run(e);
    merge.inputs.emplace_back(e.out);
  }
  merge_runs(merge);
  expect_same_tables(merge.output, at("whole-again.csv"), 0.0, 0.0);
}

// Heads that share a budget are weighed together, whichever of them are looked at.
TEST_F(CacheExportTest, SomeLayersAndHeadsOfASharedBudget) {
  ReplayOptions o = options();
  o.algorithms = {"pyramidkv", "adakv", "uniform"};
  run(o);
  const Table all = read_table(o.out);
  ReplayOptions e = evaluation("some.csv", {"c.h5"});
  e.layers = {0};
  e.heads = {1};
  run(e);
  const Table some = read_table(e.out);
  std::vector<Fields> expected;
  for (const Fields& row : all.rows) {
    if (row[column_index("layer")] == "0" && row[column_index("q_head")] == "1") {
      expected.push_back(row);
    }
  }
  ASSERT_EQ(some.rows.size(), expected.size());
  ASSERT_FALSE(expected.empty());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(main_table().key(some.rows[i]), main_table().key(expected[i]));
    EXPECT_EQ(some.rows[i][column_index("bytes")], expected[i][column_index("bytes")]);
  }
}

TEST_F(CacheExportTest, AnEvaluationHasAMemoryLimit) {
  const ReplayOptions o = options();
  run(o);
  ReplayOptions e = evaluation("again.csv", {"c.h5"});
  e.memory_limit = 1000;
  expect_refusal([&] { run(e); }, "--memory-limit: got 1000 bytes, expected at least");
  const Plan plan = make_plan(e);
  e.memory_limit = memory_need(plan, plan.units.front()).total(1, 1);
  run(e);
  expect_same_tables(e.out, o.out);
}

}  // namespace
}  // namespace kvbench::test_cache_export
