// Replays of a trace with extra queries and scores: what the rows say, what is refused before the
// first row, what is left out of a set.
#include "extra_traces.hpp"
#include "make_extra.hpp"
#include "replay_run.hpp"
#include "trace/reader.hpp"

namespace kvbench::test_extra_run {
namespace {

using testing_replay::expect_refusal;
using namespace testing_traces;

constexpr Index kQueries = 8;

class ExtraRunTest : public testing_replay::ReplayTest {
 protected:
  // The fixture's trace, with the sets `repeat` (two chunks) and `second` in every layer.
  void SetUp() override {
    ReplayTest::SetUp();
    trace_ = make_trace(folder_ / "t.h5", small_shape(7));
    each_layer([&](const char* path, Index n, unsigned seed) {
      alter(trace_, path, [&](hid_t layer) {
        const Index prompt = n - kQueries;
        put_random_segment(layer, "repeat", 0, 9, prompt, Range{0, 20}, seed);
        put_random_segment(layer, "repeat", 1, 14, prompt, Range{20, prompt}, seed + 1);
        put_random_segment(layer, "second", 0, 5, prompt, {}, seed + 2);
      });
    });
  }

  template <class Act>
  void each_layer(const Act& act) const {
    unsigned seed = 0;
    for (const auto& [prompt, n] : {std::pair{"p0", Index{60}}, {"p1", 37}}) {
      for (const char* layer : {"0", "2"}) {
        const std::string path = std::string("/prompts/") + prompt + "/layers/" + layer;
        act(path.c_str(), n, seed += 10);
      }
    }
  }

  ReplayOptions options(const std::vector<std::string>& algorithms,
                        const std::string& out = "out.csv") const {
    ReplayOptions o = basic(out);
    o.algorithms = algorithms;
    o.budgets = {0.5, 0.25};
    o.queries = kQueries;
    return o;
  }

  Table table(const ReplayOptions& o) const {
    EXPECT_EQ(run(o).failed, 0);
    return read_table(o.out);
  }

  // Every layer gets scores `reference`: what a reference says of `repeat`.
  void put_reference_scores() const {
    std::vector<std::vector<float>> scores;
    {
      const TraceReader reader(trace_);  // closed before the file is changed
      each_layer([&](const char*, Index, unsigned) {
        const std::size_t at = scores.size();
        std::vector<float>& all = scores.emplace_back();
        for (Index h = 0; h < 2; ++h) {
          const ExtraSet set = reader.read_extra(at / 2, at % 2, "repeat", h);
          const KvHead head = reader.read_head(at / 2, at % 2, h);
          for (const reference::Real x : reference::kvzip(head, reference_rows(set), nullptr)) {
            all.push_back(static_cast<float>(x));
          }
        }
      });
    }
    std::size_t at = 0;
    each_layer([&](const char* path, Index n, unsigned) {
      alter(trace_, path,
            [&](hid_t layer) { put_scores(layer, "reference", 2, n, scores[at++], n - kQueries); });
    });
  }
};

std::string field(const Fields& row, const char* column) {
  return row[column_index(column)];
}

// kvzip, and a selection by a reference's scores: the same tokens, so the same figures.
TEST_F(ExtraRunTest, KvzipIsASelectionByItsScores) {
  put_reference_scores();
  const Table zip = table(options({"kvzip"}));
  const Table scores = table(options({"external-scores:name=reference"}, "scores.csv"));
  ASSERT_EQ(zip.rows.size(), 2U * 2 * 4 * 2);
  ASSERT_EQ(scores.rows.size(), zip.rows.size());
  for (std::size_t i = 0; i < zip.rows.size(); ++i) {
    for (const char* column : {"prompt", "layer", "q_head", "budget_requested", "tokens_kept",
                               "bytes", "rel_error", "mass_kept", "status", "scores"}) {
      EXPECT_EQ(field(zip.rows[i], column), field(scores.rows[i], column)) << column << " " << i;
    }
    EXPECT_EQ(field(zip.rows[i], "status"), "ok");
    EXPECT_EQ(field(zip.rows[i], "scores"), "past");
    EXPECT_EQ(field(zip.rows[i], "scoring_queries"), "23");
    EXPECT_EQ(field(zip.rows[i], "params"), "T=auto;budget=head;plus=false;tokens=auto");
    EXPECT_EQ(field(scores.rows[i], "params"), "T=auto;name=reference;threshold=auto;tokens=auto");
  }
}

TEST_F(ExtraRunTest, EveryUserOfASetRunsAndSaysWhich) {
  ReplayOptions o = options({"kvzip:budget=head,layer,model;plus=false,true", "snapkv:ref=second",
                             "h2o:ref=repeat,second", "attention-matching:ref=repeat",
                             "kvzip+uniform", "attention-matching:keys=kvzip", "kvzip@quant-kivi"});
  o.scores = Scores::all;
  o.memory_limit = std::uint64_t{1} << 30;
  const Table all = table(o);
  for (const Fields& row : all.rows) {
    const std::string params = field(row, "params");
    const std::string name = field(row, "algorithm");
    EXPECT_EQ(field(row, "status").substr(0, 2), "ok") << name << " " << field(row, "status");
    const bool sets_alone =
        name != "attention-matching" || params.find("keys=kvzip") == std::string::npos;
    EXPECT_EQ(field(row, "scores"), sets_alone ? "past" : "all") << name << " " << params;
    if (name == "snapkv") {
      EXPECT_NE(params.find("ref=second"), std::string::npos);
      EXPECT_EQ(field(row, "scoring_queries"), "5");
    }
  }
}

TEST_F(ExtraRunTest, SharedBudgetsAreMetOverLayersAndModel) {
  for (const char* budget : {"layer", "model"}) {
    const Table rows =
        table(options({std::string("kvzip:budget=") + budget}, std::string(budget) + ".csv"));
    std::map<std::string, double> kept;
    for (const Fields& row : rows.rows) {
      if (field(row, "q_head") != "0" && field(row, "q_head") != "2") {
        continue;  // one row of each KV head
      }
      const std::string layer = std::string(budget) == "layer" ? field(row, "layer") : "";
      kept[field(row, "prompt") + layer + "@" + field(row, "budget_requested")] +=
          std::stod(field(row, "tokens_kept")) - 16.0;
    }
    // Middles of 44 and 21 tokens: 22, 11 and 10, 5 a head.
    for (const auto& [where, count] : kept) {
      const double each = where.substr(0, 2) == "p0" ? (where.ends_with("@0.5") ? 22 : 11)
                                                     : (where.ends_with("@0.5") ? 10 : 5);
      EXPECT_EQ(count, each * (std::string(budget) == "layer" ? 2 : 4)) << budget << " " << where;
    }
  }
}

TEST_F(ExtraRunTest, AThresholdIsASizeOfItsOwn) {
  put_reference_scores();
  const Table rows = table(options({"external-scores:threshold=0.05,2"}));
  ASSERT_EQ(rows.rows.size(), 2U * 2 * 4 * 2);
  for (const Fields& row : rows.rows) {
    EXPECT_EQ(field(row, "budget_requested"), "");
    const bool none = field(row, "params").find("threshold=2") != std::string::npos;
    EXPECT_EQ(field(row, "tokens_kept") == "16", none) << field(row, "params");
    EXPECT_NE(field(row, "params").find("name=reference"), std::string::npos);  // resolved
  }
  expect_refusal([&] { run(options({"external-scores:threshold=0.1;tokens=4"}, "x.csv")); },
                 "more than one size");
}

TEST_F(ExtraRunTest, WhatALayerLacksIsRefusedBeforeTheFirstRow) {
  const ReplayOptions o = options({"kvzip"}, "refused.csv");
  alter(trace_, "/prompts/p1/layers/2/extra/repeat/1",
        [](hid_t segment) { put_int(segment, "prefix", 30); });
  expect_refusal([&] { run(o); },
                 "t.h5: prompt p1 layer 2: kvzip: segment 1 of the extra queries 'repeat' had read "
                 "30 tokens (attribute prefix), expected at most n - queries = 29");
  alter(trace_, "/prompts/p1/layers/2/extra",
        [](hid_t extra) { H5Ldelete(extra, "repeat", H5P_DEFAULT); });
  expect_refusal([&] { run(o); }, "the layer has no extra queries 'repeat', has: second");
  expect_refusal([&] { run(options({"snapkv:ref=third"}, "refused.csv")); }, "'third'");
  expect_refusal([&] { run(options({"external-scores"}, "refused.csv")); }, "no scores");
  EXPECT_FALSE(std::filesystem::exists(o.out));
}

TEST_F(ExtraRunTest, RowsOfSetsOfAlgorithmsAreInfeasibleWhereALayerLacksASet) {
  alter(trace_, "/prompts/p1/layers/2/extra",
        [](hid_t extra) { H5Ldelete(extra, "repeat", H5P_DEFAULT); });
  const Plan plan = make_plan(options({"@eviction"}));
  for (const char* text : {"skips external-scores: ", "rows of kvzip are infeasible in 1 of 4"}) {
    EXPECT_TRUE(std::ranges::any_of(plan.notes, [&](const std::string& line) {
      return line.find(text) != std::string::npos;
    })) << text;
  }
  std::set<std::string> names;
  for (const Fields& row : table(options({"@eviction"})).rows) {
    names.insert(field(row, "algorithm"));
    const bool lacks = field(row, "algorithm") == "kvzip" && field(row, "prompt") == "p1" &&
                       field(row, "layer") == "2";
    EXPECT_EQ(field(row, "status").find("no extra queries") != std::string::npos, lacks);
  }
  EXPECT_TRUE(names.contains("kvzip") && names.contains("snapkv"));
  EXPECT_FALSE(names.contains("external-scores"));
}

// A NaN in a set matters only to those that read it.
TEST_F(ExtraRunTest, ASetThatNobodyAsksForIsNotRead) {
  alter(trace_, "/prompts/p0/layers/0/extra/second/0", [](hid_t segment) {
    put_floats(segment, "residual_norm", {5}, {1, 1, -1, 1, 1});
  });
  EXPECT_EQ(run(options({"kvzip", "snapkv"})).failed, 0);
  expect_refusal([&] { run(options({"h2o:ref=second"}, "x.csv")); }, "query 2 is -1");
}

}  // namespace
}  // namespace kvbench::test_extra_run
