// Policies: each layer's rows are those of a plain run of its algorithm and budget.
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "algorithms/policy.hpp"
#include "cache_runs.hpp"
#include "replay/verify.hpp"

namespace kvbench::test_policy {
namespace {

using namespace testing_replay;

struct LayerChoice {
  Index layer = 0;
  std::string algorithm;
  double budget = 0.0;
  int bytes = -1;  // none
};

struct HeadChoice {
  std::string algorithm;
  double budget = 0.0;
};

class PolicyTest : public testing_caches::CachesTest {
 protected:
  void SetUp() override {
    CachesTest::SetUp();
    TraceShape shape = small_shape(5);
    shape.residual_norm = true;
    trace_ = make_trace(folder_ / "projected.h5", shape);
  }

  std::string write_text(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }

  // A policy of budget 0.5 with these members.
  std::string write_rest(const std::string& name, const std::string& members) const {
    return write_text(name,
                      R"({"format":"kvbench-policy","version":1,"budget":0.5,)" + members + "}");
  }

  std::string write(const std::string& name, double budget, const std::vector<LayerChoice>& layers,
                    const std::string& model = "") const {
    nlohmann::json out{
        {"format", "kvbench-policy"}, {"version", 1}, {"budget", budget}, {"model", model}};
    for (const LayerChoice& one : layers) {
      out["layers"].push_back(
          {{"layer", one.layer}, {"algorithm", one.algorithm}, {"budget", one.budget}});
      if (one.bytes >= 0) {
        out["layers"].back()["bytes"] = one.bytes;
      }
    }
    return write_text(name, out.dump());
  }

  // A policy that chooses by KV head: `layers` [layer, heads].
  std::string write_heads(
      const std::string& name, double budget,
      const std::vector<std::pair<Index, std::vector<HeadChoice>>>& layers) const {
    nlohmann::json out{{"format", "kvbench-policy"}, {"version", 1}, {"budget", budget}};
    for (const auto& [layer, choices] : layers) {
      nlohmann::json heads;
      for (const HeadChoice& one : choices) {
        heads.push_back(
            {{"kv_head", heads.size()}, {"algorithm", one.algorithm}, {"budget", one.budget}});
      }
      out["layers"].push_back({{"layer", layer}, {"heads", heads}});
    }
    return write_text(name, out.dump());
  }

  ReplayOptions options(const std::string& out, const std::string& algorithm) const {
    ReplayOptions o = basic(out);
    if (!algorithm.empty()) {
      o.algorithms = {algorithm};
    }
    o.seeds = "2";
    o.per_query = PerQuery::all;
    o.kept = true;
    return o;
  }

  ReplayOptions of_policies(const std::string& out, const std::vector<std::string>& files) const {
    ReplayOptions o = options(out, "");
    o.policies = files;
    return o;
  }

  // Rows of a layer by what distinguishes them within it, without the columns that name the run.
  static std::map<std::string, Fields> rows_of(const std::string& path, Index layer) {
    std::map<std::string, Fields> out;
    for (Fields row : untimed(path)) {
      if (row[column_index("layer")] != std::to_string(layer)) {
        continue;
      }
      const std::string key = row[column_index("prompt")] + " " + row[column_index("q_head")] +
                              " " + row[column_index("seed")];
      for (const char* name : {"algorithm", "params", "budget_requested", "scores"}) {
        row[column_index(name)].clear();
      }
      EXPECT_TRUE(out.emplace(key, row).second) << key;
    }
    return out;
  }
};

TEST_F(PolicyTest, AUniformPolicyIsThePlainRun) {
  for (const std::string algorithm :
       {"snapkv", "adakv", "balancekv", "h2o@quant-kivi", "snapkv+uniform", "kmeans"}) {
    SCOPED_TRACE(algorithm);
    ReplayOptions plain = options("plain.csv", algorithm);
    plain.budgets = {0.5};
    plain.overwrite = true;
    run(plain);
    ReplayOptions mine = of_policies(
        "policy.csv", {write("same.json", 0.5, {{0, algorithm, 0.5}, {2, algorithm, 0.5}})});
    mine.overwrite = true;
    run(mine);
    for (const Index layer : {0, 2}) {
      const auto expected = rows_of(plain.out, layer);
      ASSERT_FALSE(expected.empty());
      EXPECT_EQ(rows_of(mine.out, layer), expected);
    }
    const auto tables = {".layers.csv", ".queries.csv", ".kept.csv"};
    for (const std::string end : tables) {
      const Table got = read_table(folder_ / ("policy" + end));
      const Table expected = read_table(folder_ / ("plain" + end));
      ASSERT_EQ(got.rows.size(), expected.rows.size()) << end;
      for (std::size_t c = 0; c < got.header.size(); ++c) {
        const std::string& name = got.header[c];
        if (name == "algorithm" || name == "params" || name == "scores" || name == "run_id") {
          continue;
        }
        for (std::size_t i = 0; i < got.rows.size(); ++i) {
          ASSERT_EQ(got.rows[i][c], expected.rows[i][c]) << end << " row " << i << " " << name;
        }
      }
    }
  }
}

TEST_F(PolicyTest, EachLayerHasItsAlgorithmAndBudget) {
  const std::vector<LayerChoice> layers = {{0, "snapkv@quant-kivi", 0.75}, {2, "balancekv", 0.25}};
  const std::string file = write("mixed.json", 0.5, layers);
  ReplayOptions mine = of_policies("policy.csv", {file});
  run(mine);
  for (const LayerChoice& one : layers) {
    ReplayOptions plain = options("plain.csv", one.algorithm);
    plain.budgets = {one.budget};
    plain.layers = {one.layer};
    plain.overwrite = true;
    run(plain);
    const auto expected = rows_of(plain.out, one.layer);
    const auto got = rows_of(mine.out, one.layer);
    ASSERT_FALSE(expected.empty());
    for (const auto& [key, row] : expected) {  // a method without draws has the first seed alone
      ASSERT_TRUE(got.contains(key)) << key;
      EXPECT_EQ(got.at(key), row) << key;
    }
  }
  const Policy policy = read_policy(file);
  for (const Fields& row : read_table(mine.out).rows) {
    EXPECT_EQ(row[column_index("algorithm")], "policy");
    EXPECT_EQ(row[column_index("params")], "name=mixed;sha256=" + policy.sha256.substr(0, 8));
    EXPECT_EQ(row[column_index("budget_requested")], "0.5");
    EXPECT_EQ(row[column_index("scores")], "past");
  }
}

TEST_F(PolicyTest, EachHeadHasItsAlgorithmAndBudget) {
  const std::vector<HeadChoice> heads = {{"snapkv@quant-kivi", 0.75}, {"balancekv", 0.25}};
  const std::string file = write_heads("heads.json", 0.5, {{0, heads}, {2, {heads[1], heads[1]}}});
  for (const int threads : {1, 3}) {
    ReplayOptions mine = of_policies("policy.csv", {file});
    mine.overwrite = true;
    mine.threads = threads;
    run(mine);
    std::size_t compared = 0;
    for (const Index layer : {0, 2}) {
      const auto got = rows_of(mine.out, layer);
      for (const Index head : {0, 1}) {
        const HeadChoice& one = heads[layer == 0 ? head : 1];
        ReplayOptions plain = options("plain.csv", one.algorithm);
        plain.budgets = {one.budget};
        plain.layers = {layer};
        plain.heads = {2 * head, 2 * head + 1};
        plain.overwrite = true;
        run(plain);
        for (const auto& [key, row] : rows_of(plain.out, layer)) {
          ASSERT_TRUE(got.contains(key)) << key;
          EXPECT_EQ(got.at(key), row) << key;
          ++compared;
        }
      }
    }
    // Prompts and query heads; those of balancekv's three KV heads have two seeds.
    EXPECT_EQ(compared, 2U * (2U + 3U * 2U * 2U));
  }
}

TEST_F(PolicyTest, PoliciesStandBesideAlgorithmsAndEachOther) {
  ReplayOptions o =
      of_policies("both.csv", {write("a.json", 0.5, {{0, "local", 0.5}, {2, "h2o", 0.5}}),
                               write("b.json", 0.4, {{0, "h2o", 0.3}, {2, "h2o", 0.5}})});
  o.algorithms = {"h2o"};
  o.budgets = {0.5};
  const RunResult done = run(o);
  EXPECT_EQ(done.failed, 0);
  std::map<std::string, Index> counts;
  for (const Fields& row : read_table(o.out).rows) {
    ++counts[row[column_index("algorithm")] + " " + row[column_index("params")].substr(0, 6)];
  }
  ASSERT_EQ(counts.size(), 3U);
  EXPECT_EQ(counts.at("policy name=a"), counts.at("policy name=b"));
  EXPECT_EQ(counts.at("policy name=a"), Index{2 * 2 * 4});  // prompts, layers, query heads
}

TEST_F(PolicyTest, CachesOfAPolicyAreOneGroup) {
  for (const std::string& file : {write("p.json", 0.5, {{0, "snapkv", 0.75}, {2, "h2o", 0.25}}),
                                  write_heads("q.json", 0.5,
                                              {{0, {{"snapkv", 0.75}, {"kmeans", 0.25}}},
                                               {2, {{"h2o@quant-kivi", 0.25}, {"h2o", 0.75}}}})}) {
    SCOPED_TRACE(file);
    ReplayOptions o = of_policies("out.csv", {file});
    o.per_query = PerQuery::none;
    o.kept = false;
    o.overwrite = true;
    o.export_caches = at("c.h5");
    run(o);
    ReplayOptions again = evaluation("again.csv", {"c.h5"});
    again.overwrite = true;
    run(again);
    testing_caches::expect_same_tables(folder_ / "again.csv", o.out);
  }
}

// Its layer may have more than the mean over all.
TEST_F(PolicyTest, CachesOfOneLayerOfAPolicyAreEvaluated) {
  ReplayOptions o =
      of_policies("out.csv", {write("p.json", 0.5, {{0, "snapkv", 0.75}, {2, "h2o", 0.25}})});
  o.per_query = PerQuery::none;
  o.kept = false;
  o.layers = {0};
  o.export_caches = at("c.h5");
  run(o);
  const ReplayOptions again = evaluation("again.csv", {"c.h5"});
  run(again);
  testing_caches::expect_same_tables(again.out, o.out);
}

TEST_F(PolicyTest, AChangedFileIsAnotherRun) {
  ReplayOptions o =
      of_policies("out.csv", {write("p.json", 0.5, {{0, "snapkv", 0.5}, {2, "h2o", 0.5}})});
  run(o);
  o.resume = true;
  EXPECT_EQ(run(o).resumed, static_cast<Index>(read_table(o.out).rows.size()));
  write("p.json", 0.5, {{0, "snapkv", 0.5}, {2, "local", 0.5}});
  expect_refusal([&] { run(o); }, "--algorithm: missing policy:name=p;sha256=");
}

TEST_F(PolicyTest, VerifySaysThatTheFileWasChanged) {
  const std::string file = write("p.json", 0.5, {{0, "snapkv", 0.5}, {2, "h2o", 0.5}});
  const ReplayOptions o = of_policies("out.csv", {file});
  run(o);
  EXPECT_EQ(verify_sample(o.out, 1, 1, 1, kGoOn).different, 0);
  const auto again = [&] { verify_sample(o.out, 1, 1, 1, kGoOn); };
  write("p.json", 0.5, {{0, "snapkv", 0.5}, {2, "local", 0.5}});
  expect_refusal(again, "p.json: the policy was changed after the run of ");
  write_text("p.json", "{");
  expect_refusal(again, "p.json: the policy was changed after the run of ");
}

// `made up` is what the trace names.
TEST_F(PolicyTest, IsForItsModel) {
  const auto plan = [&](const std::string& model) {
    make_plan(
        of_policies("o.csv", {write("m.json", 0.5, {{0, "h2o", 0.5}, {2, "h2o", 0.5}}, model)}));
  };
  for (const char* same : {"", "made up", "Made Up", "somebody/made up @ 1a2b"}) {
    EXPECT_NO_THROW(plan(same)) << same;
  }
  for (const char* other : {"made", "made up/other", "made up 2"}) {
    expect_refusal([&] { plan(other); }, "policy m: model: got " + std::string(other) +
                                             ", expected that of projected.h5, made up");
  }
}

TEST_F(PolicyTest, Refusals) {
  const auto plan = [&](const std::string& file) { make_plan(of_policies("o.csv", {file})); };
  // Small layers can have more.
  EXPECT_NO_THROW(plan(write("w.json", 0.5, {{0, "h2o", 0.75, 100}, {2, "h2o", 0.25, 300}})));
  const LayerChoice good{0, "snapkv", 0.5};
  const std::vector<std::pair<std::string, std::string>> cases = {
      {write("l.json", 0.5, {good}), "policy l: no layer 2, which the plan replays"},
      {write("m.json", 0.5, {good, {2, "h2o", 0.6}}),
       "got a mean budget of 0.55, expected at most"},
      {write("we.json", 0.5, {{0, "h2o", 0.25, 100}, {2, "h2o", 0.75, 300}}),
       "got a mean budget of 0.625, expected at most"},
      {write("wa.json", 0.5, {{0, "h2o", 0.25}, {2, "h2o", 0.75, 300}}),
       "layers: got `bytes` of 1 of 2 layers, expected all or none"},
      {write("wz.json", 0.5, {{0, "h2o", 0.25, 0}}),
       "layer 0: bytes: got 0, expected a number above 0"},
      {write("t.json", 0.5, {good, {0, "h2o", 0.5}}), "layer 0: duplicate layer"},
      {write("n.json", 0.5, {good, {2, "snapkvv", 0.5}}), "layer 2: "},
      {write("s.json", 0.5, {good, {2, "snapkv,h2o", 0.5}}), "got 2 algorithms, expected one"},
      {write("g.json", 0.5, {good, {2, "uniform:T=1", 0.5}}), "has a size of its own"},
      {write("p.json", 0.5, {good, {2, "pyramidkv", 0.5}}), "shares its budget over layers"},
      {write("b.json", 0.5, {good, {2, "h2o", 1.5}}), "layer 2: budget: got 1.5"},
      {write("c.json", -1.0, {good}), "budget: got -1.0"},
      {write("a b.json", 0.5, {good}), "expected a file name of letters"},
      {write_heads("ha.json", 0.5, {{0, {{"h2o", 0.5}, {"adakv", 0.5}}}}),
       "layer 0: KV head 1: adakv: shares its budget over heads"},
      {write_heads("hb.json", 0.5, {{0, {{"h2o", 0.5}, {"h2o", 0.6}}}}),
       "got a mean budget of 0.55, expected at most"},
      {write_heads("hc.json", 0.5, {{0, {{"h2o", 0.5}}}, {2, {{"h2o", 0.5}}}}),
       "policy hc: layer 0: got 1 heads, expected the trace's 2"},
      {write_heads("hd.json", 0.5, {{0, {}}}), "layer 0: heads: expected a list"},
      {write_rest(
           "he.json",
           R"("layers":[{"layer":0,"heads":[{"kv_head":1,"algorithm":"h2o","budget":0.5}]}])"),
       "layer 0: heads: got kv_head 1, expected 0"},
      {write_rest("hf.json", R"("layers":[{"layer":0,"algorithm":"h2o","heads":[{"kv_head":0}]}])"),
       "layer 0: got `heads` and `algorithm`, expected one of them"},
      {write_text("da.json", R"({"budget":0.5,"layers":[{"layer":0},{"layer":1,"layer":2}]})"),
       "da.json: layers[1].layer: duplicate key"},
      {write_rest("de.json", R"("layers":)" + std::string(200000, '[') + std::string(200000, ']')),
       "nested more than 64 levels deep"},
      {write_rest("mo.json", R"("model":7)"), "model: got 7, expected text"},
      {write_text("x.json", "{"), "x.json: not readable as JSON: "},
      {write_text("y.json", "[]"), "expected a JSON object with \"format\""},
      {write_text("z.json", R"({"format":"kvbench-policy","version":2})"), "\"version\": 1"},
      {write_rest("w.json", R"("model":"")"), "layers: expected a list"},
      {write_rest("v.json", R"("layers":[{"layer":-1}])"), "an integer of at least 0"},
      {write_rest("u.json", R"("layers":[{"layer":0}])"), "layer 0: algorithm: expected text"},
      {write_text("q.json", R"({"format":"kvbench-policy","version":1,"budget":"x","layers":[1]})"),
       "budget: got \"x\""},
  };
  for (const auto& [file, message] : cases) {
    expect_refusal([&, &path = file] { plan(path); }, message);
  }
  const std::string file = write("p.json", 0.5, {good, {2, "h2o", 0.5}});
  expect_refusal([&] { make_plan(of_policies("o.csv", {file, file})); }, "duplicate name p");
  ReplayOptions stream = of_policies("o.csv", {file});
  stream.protocol = Protocol::stream;
  stream.per_query = PerQuery::none;
  expect_refusal([&] { make_plan(stream); }, "--policy: got --protocol stream");
  expect_refusal([&] { plan((folder_ / "none.json").string()); }, "none.json: cannot be read");
  expect_refusal([&] { plan("/dev/zero"); }, "/dev/zero: not a regular file");
  const std::filesystem::path pipe = folder_ / "pipe.json";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_refusal([&] { plan(pipe.string()); }, "pipe.json: not a regular file");
  expect_refusal([&] { plan(write_text("big.json", std::string((1U << 24U) + 1, ' '))); },
                 "big.json: got more than");
}

}  // namespace
}  // namespace kvbench::test_policy
