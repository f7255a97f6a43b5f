// The retrieval protocol through the whole replay, on tests/data/small.h5.
#include <cmath>
#include <map>

#include "algorithms/grid.hpp"
#include "algorithms/registry.hpp"
#include "replay_run.hpp"

namespace kvbench::test_retrieval_run {
namespace {

class RetrievalRun : public testing_replay::ReplayTest {
 protected:
  ReplayOptions options(const std::vector<std::string>& algorithms,
                        Protocol protocol = Protocol::retrieval) const {
    ReplayOptions o;
    o.traces = {KVBENCH_TEST_DATA_DIR "/small.h5"};
    o.out = (folder_ / (std::string(name(protocol)) + ".csv")).string();
    o.algorithms = algorithms;
    o.protocol = protocol;
    o.budgets = {0.25};
    o.layers = {3};
    o.overwrite = true;
    o.threads = 2;
    return o;
  }

  static Table table_of(const ReplayOptions& o) {
    run(o);
    return read_table(o.out);
  }

  static std::string cell(const Fields& row, const char* column) {
    return row[column_index(column)];
  }
  static double number(const Fields& row, const char* column) {
    double x = std::nan("");
    EXPECT_TRUE(parse_number(cell(row, column), x)) << column << ": " << cell(row, column);
    return x;
  }
};

TEST_F(RetrievalRun, RowsAreCompleteAndWithinTheirBudgets) {
  ReplayOptions o =
      options({"all", "topk:union=group", "quest:union=group", "h2o+quest", "adakv+topk:share=0.3",
               "snapkv+magicpig:magicpig.bits=3", "h2o+rocketkv", "snapkv+vattention",
               "topk@quant-kivi", "quest@quant-rotated", "vattention@quant-rotated"});
  o.budgets = {0.5, 0.25, 0.01};
  std::map<std::string, int> measured;
  for (const Fields& row : table_of(o).rows) {
    const std::string label = cell(row, "algorithm") + " " + cell(row, "params");
    ASSERT_EQ(cell(row, "protocol"), "retrieval");
    if (status_kind(cell(row, "status")) == "infeasible") {
      EXPECT_EQ(cell(row, "read_bytes"), "");
      EXPECT_EQ(number(row, "budget_requested"), 0.01) << label;
      continue;
    }
    ASSERT_EQ(cell(row, "status"), "ok") << label;
    ++measured[cell(row, "algorithm")];
    const double budget = cell(row, "algorithm") == "exact" ? 1.0 : number(row, "budget_requested");
    // A middle of 1520 tokens of 2 * 64 float16.
    const double most = label.starts_with("adakv") ? 1.0 : budget;  // a layer's budget
    EXPECT_LE(number(row, "read_bytes"), std::floor(most * 1520 * 2 * 64 * 2) + 1e-6) << label;
    EXPECT_NEAR(number(row, "read_ratio"), number(row, "read_bytes") / (1520 * 2 * 64 * 2), 1e-12);
    if (cell(row, "algorithm").find('@') == std::string::npos) {
      EXPECT_EQ(number(row, "bytes"), number(row, "full_bytes") + number(row, "index_bytes"))
          << label;
      EXPECT_EQ(number(row, "aux_bytes"), number(row, "index_bytes"));
    } else {
      EXPECT_LT(number(row, "middle_ratio"), 0.6) << label;  // 4 bits, and an index
      EXPECT_GE(number(row, "aux_bytes"), number(row, "index_bytes"));
    }
    EXPECT_EQ(number(row, "tokens_kept"), number(row, "n_tokens"));
    for (const char* column : {"recall", "mass_kept"}) {
      EXPECT_TRUE(number(row, column) >= 0.0 && number(row, column) <= 1.0 + 1e-12) << label;
    }
    if (cell(row, "algorithm") == "topk" || cell(row, "algorithm") == "topp") {
      EXPECT_EQ(number(row, "recall"), 1.0) << label;
    }
    for (const char* column : {"rel_error", "eps_fro", "log_z_error", "cosine", "amnesia_mass"}) {
      EXPECT_TRUE(std::isfinite(number(row, column))) << label << " " << column;
    }
  }
  for (const Variant& v : expand_algorithms({"all"}, Protocol::retrieval)) {
    EXPECT_GE(measured[v.name()], 2) << v.name();
  }
}

TEST_F(RetrievalRun, AFixedSetEqualsItsMethodUnderPrefillToTheBit) {
  ReplayOptions prefill = options({"all"}, Protocol::prefill);
  prefill.seeds = "2";
  ReplayOptions retrieval = options({});
  retrieval.seeds = "2";
  for (const Variant& v : expand_algorithms({"all"})) {
    if (!v.facts().o_proj && v.named_scores().empty() && v.extra_sets().empty() &&
        !v.method->info.sizes.empty()) {
      retrieval.algorithms.push_back("static:A=" + v.name());
    }
  }
  std::map<std::string, Fields> by_name;
  const auto place = [&](const Fields& row, const std::string& algorithm) {
    return algorithm + " " + cell(row, "q_head") + " " + cell(row, "seed");
  };
  for (const Fields& row : table_of(prefill).rows) {
    by_name[place(row, cell(row, "algorithm"))] = row;
  }
  int compared = 0;
  for (const Fields& row : table_of(retrieval).rows) {
    const std::string params = cell(row, "params");
    const std::string of = params.substr(2, params.find(';') - 2);
    const Fields& expected = by_name.at(place(row, of));
    for (const char* column :
         {"rel_error", "rel_error_mean", "rel_error_p50", "rel_error_p95", "rel_error_max",
          "eps_fro", "eps_op", "log_z_error", "cosine", "mass_kept", "amnesia_count",
          "amnesia_mass", "status", "diag", "scoring_queries", "scores", "seed"}) {
      ASSERT_EQ(cell(row, column), cell(expected, column)) << of << " " << column;
    }
    if (status_kind(cell(row, "status")) != "infeasible") {
      ++compared;
      EXPECT_EQ(number(row, "read_ratio"), number(expected, "middle_ratio")) << of;
      const MethodInfo& info = find_method(of).info;
      EXPECT_TRUE(number(row, "index_bytes") == 0.0 || info.holds != Holds::tokens) << of;
    }
  }
  EXPECT_GT(compared, 100);
}

TEST_F(RetrievalRun, EverythingReadIsExact) {
  ReplayOptions o = options({"topk", "topk:union=group"});
  o.budgets = {1.0};
  for (const Fields& row : table_of(o).rows) {
    EXPECT_LT(number(row, "rel_error"), 1e-6);  // float32 products
    EXPECT_EQ(number(row, "read_ratio"), 1.0);
    EXPECT_EQ(number(row, "mass_kept"), 1.0);
    EXPECT_EQ(number(row, "amnesia_count"), 0.0);
  }
}

TEST_F(RetrievalRun, ACodedCacheThatIsReadWholeEqualsItsQuantizer) {
  ReplayOptions o = options({"topk@quant-kivi:tokens=100000;k_bits=4;v_bits=4"});
  o.budgets = {};
  const Table reads = table_of(o);
  ReplayOptions prefill = options({"quant-kivi:k_bits=4;v_bits=4;residual=0"}, Protocol::prefill);
  prefill.budgets = {};
  const Table held = table_of(prefill);
  ASSERT_EQ(reads.rows.size(), held.rows.size());
  ASSERT_FALSE(reads.rows.empty());
  for (std::size_t i = 0; i < held.rows.size(); ++i) {
    for (const char* column : {"rel_error", "log_z_error", "bytes", "ratio", "middle_ratio"}) {
      EXPECT_EQ(cell(reads.rows[i], column), cell(held.rows[i], column)) << column;
    }
    EXPECT_EQ(number(reads.rows[i], "recall"), 1.0);
    EXPECT_EQ(number(reads.rows[i], "mass_kept"), 1.0);
  }
}

TEST_F(RetrievalRun, RefusesWhatItHasNot) {
  const auto refuses = [](const ReplayOptions& o, const std::string& words) {
    testing_replay::expect_refusal([&] { make_plan(o); }, words);
  };
  ReplayOptions kept = options({"topk"});
  kept.kept = true;
  refuses(kept, "whose cache stays whole");
  ReplayOptions caches = options({"topk"});
  caches.export_caches = "c.h5";
  refuses(caches, "whose cache stays whole");
  ReplayOptions policy = options({});
  policy.policies = {"p.json"};
  refuses(policy, "--policy: got --protocol retrieval");
  ReplayOptions steps = options({"topk"});
  steps.eval_every = 4;
  refuses(steps, "--eval-every: got --protocol retrieval");
  refuses(options({"snapkv"}), "expected --protocol prefill or static:A=snapkv");
  refuses(options({"topk"}, Protocol::prefill), "expected --protocol retrieval");
  refuses(options({"static:A=topk"}), "does not run under --protocol prefill");
  refuses(options({"topk+h2o"}), "cannot be part of a composition");
  refuses(options({"h2o+static"}), "cannot be part of a composition");
  refuses(options({"static@quant-kivi"}), "reads one set for all queries");
  refuses(options({"h2o@quant-kivi"}), "does not run");
  refuses(options({"h2o+topk"}, Protocol::prefill), "expected --protocol retrieval");
  refuses(options({"static:A=exact"}), "exact takes no budget");
  refuses(options({"pq:parts=5"}), "expected a divisor of head_dim 64");
  ReplayOptions unsized = options({"topk"});
  unsized.budgets = {};
  refuses(unsized, "no size");
}

}  // namespace
}  // namespace kvbench::test_retrieval_run
