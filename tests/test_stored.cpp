// A@Q: how many tokens equal bytes hold, in which order they are coded, what counts as held, what
// is shared, and what cannot be stored.
#include "algorithms/grid.hpp"
#include "algorithms/stored.hpp"
#include "evaluate_run.hpp"
#include "method_checks.hpp"
#include "read_rows.hpp"
#include "reference/quantize.hpp"

namespace kvbench::test_stored {
namespace {

class Stored : public ::testing::Test {
 protected:
  Stored() {
    head_ = make_head({.n = 300, .nq = 300, .d = 16, .dv = 16, .dtype = DType::float16},
                      41);  // numbers of float32: no entry lies half way between two codes
    book_.emplace(head_);
    rope_ = testing_replay::rope_tables(300, 16);
  }

  Compressed run(const std::string& spec, std::optional<Index> budget) const {
    const Variant v = expand_algorithms({spec}).front();
    Task task{head_, tokens_, budget, {0, 290}, {}, Rng(1, {"p", 0, 0}, v.name())};
    task.scores = &*book_;
    task.rope = &rope_;
    Compressed c = v.compress(task);
    check_compressed(c, task);
    return c;
  }
  static Index bytes(const Compressed& c) { return *c.payload_bytes + c.aux_bytes; }

  KvHead head_;
  std::optional<ScoreBook> book_;
  RopeTables rope_;
  std::vector<Index> tokens_ = positions(20, 280);
};

// Keys of `positions` as KIVI codes them by its definition.
reference::Rows coded_keys(const KvHead& head, const std::vector<Index>& positions, int bits,
                           std::size_t group) {
  const reference::Rows rows = reference::rows_at(head.k, positions);
  reference::Rows out;
  for (std::size_t b = 0; b < rows.size(); b += group) {
    const reference::Rows part(
        rows.begin() + static_cast<std::ptrdiff_t>(b),
        rows.begin() + static_cast<std::ptrdiff_t>(std::min(b + group, rows.size())));
    for (const reference::Vec& row : reference::transposed(
             reference::quantized_rows(reference::transposed(part), bits, group))) {
      out.push_back(row);
    }
  }
  return out;
}

// h2o keeps B tokens; KIVI codes them in groups of 32 of these, by their definitions.
TEST_F(Stored, WhatAKeepsAsQHoldsIt) {
  const Compressed plain = run("h2o:tokens=75", {});
  const Compressed c = run("h2o@quant-kivi:tokens=75;k_bits=4;v_bits=3", {});
  EXPECT_TRUE(c.held.tokens.empty());
  EXPECT_EQ(c.counted, plain.held.tokens);
  EXPECT_EQ(c.made.positions, plain.held.tokens);
  EXPECT_EQ(c.quantized, 75);
  EXPECT_TRUE(c.made.weights.empty());
  expect_rows(c.made.k, coded_keys(head_, plain.held.tokens, 4, 32));
  expect_rows(c.made.v,
              reference::quantized_rows(reference::rows_at(head_.v, plain.held.tokens), 3, 32));
  // 75 tokens of 16 channels; keys in groups of 32, 32 and 11, values in one group each.
  EXPECT_EQ(*c.payload_bytes, 75 * 16 * 4 / 8 + 75 * 16 * 3 / 8);
  EXPECT_EQ(c.aux_bytes, 4 * (16 * 3 + 75));
}

// The largest number of tokens whose codes and weights fit: those of one more do not.
TEST_F(Stored, BIsTheLargestThatFits) {
  const Index pair = head_.pair_bytes();
  for (const char* method : {"h2o", "uniform", "attention-matching", "count-merge", "local"}) {
    for (const char* quantizer :
         {"quant-kivi", "quant-rotated:center=mean", "quant-kivi:k_bits=2;v_bits=2"}) {
      const std::string name = quantizer;
      const auto colon = name.find(':');
      const std::string spec = std::string(method) + "@" + name;
      for (const double rho : {0.5, 0.1, 0.03}) {
        const auto budget = static_cast<Index>(rho * static_cast<double>(260 * pair));
        const Compressed c = run(spec, budget);
        EXPECT_LE(bytes(c), budget) << spec;
        const Index count = c.made.k.rows();
        const std::string sized = std::string(method) + "@" + name.substr(0, colon) +
                                  ":tokens=" + std::to_string(count + 1) +
                                  (colon == std::string::npos ? "" : ";" + name.substr(colon + 1));
        if (count < 260) {
          EXPECT_GT(bytes(run(sized, {})), budget) << sized;
        }
      }
    }
  }
}

TEST_F(Stored, LessThanATokenIsInfeasible) {
  // At 4 bits a key and a value of 16 channels: 8 bytes each, and a float16 norm each.
  EXPECT_EQ(needed_bytes([&] { run("local@quant-rotated", 19); }), 20);
  EXPECT_EQ(run("local@quant-rotated", 20).counted, std::vector<Index>{279});
}

TEST_F(Stored, WeightsStayAsTheyAre) {
  const Compressed plain = run("uniform:tokens=65", {});
  const Compressed c = run("uniform@quant-rotated:tokens=65", {});
  ASSERT_EQ(c.made.weights.size(), 65U);
  for (const float w : c.made.weights) {
    EXPECT_EQ(w, plain.held.common);
  }
  EXPECT_EQ(c.aux_bytes, plain.aux_bytes + 65 * 4);  // and two norms a token
}

// Held and merged tokens are coded together, by the positions of those that were kept.
TEST_F(Stored, MergedTokensKeepTheirPlaces) {
  const Compressed plain = run("count-merge:tokens=150", {});
  ASSERT_GT(plain.made.k.rows(), 0);
  ASSERT_GT(plain.held.tokens.size(), 0U);
  const Compressed c = run("count-merge@quant-rotated:tokens=150;k_bits=8;v_bits=8", {});
  ASSERT_EQ(c.made.k.rows(), 150);
  EXPECT_TRUE(std::ranges::is_sorted(c.made.positions));
  EXPECT_EQ(c.counted, plain.held.tokens);
  EXPECT_EQ(c.quantized, static_cast<Index>(plain.held.tokens.size()));
  std::map<Index, float> weights;
  for (std::size_t i = 0; i < plain.held.tokens.size(); ++i) {
    weights[plain.held.tokens[i]] = plain.held.weight(i);
  }
  for (std::size_t i = 0; i < plain.made.positions.size(); ++i) {
    weights[plain.made.positions[i]] = plain.made.weights[i];
  }
  for (std::size_t i = 0; i < 150; ++i) {
    EXPECT_EQ(c.made.weights[i], weights.at(c.made.positions[i])) << i;
  }
}

// Of the first query head's outputs.
double output_error(const KvHead& head, const std::vector<Index>& tokens, Range queries,
                    const Compressed& c) {
  const auto held = reference::entries(reference::rows_of(c.made.k), reference::rows_of(c.made.v),
                                       c.made.weights);
  return static_cast<double>(reference::relative_error(
      reference::rows_at(head.q[0], positions(queries.begin, queries.end)), head.scale,
      reference::entries(reference::rows_at(head.k, tokens), reference::rows_at(head.v, tokens)),
      held, held));
}

// At 2 bits a fit that knows the stored keys reproduces the reference queries better than one that
// does not, and both store the same keys.
TEST_F(Stored, FitAfterKnowsTheStoredKeys) {
  const std::string common = "attention-matching@quant-kivi:tokens=60;k_bits=2;v_bits=8";
  const Compressed before = run(common, {});
  const Compressed after = run(common + ";fit=after", {});
  ASSERT_EQ(before.made.positions, after.made.positions);
  EXPECT_TRUE(
      std::equal(before.made.k.data(), before.made.k.data() + 60 * 16, after.made.k.data()));
  const double b = output_error(head_, tokens_, {34, 290}, before);
  const double a = output_error(head_, tokens_, {34, 290}, after);
  EXPECT_TRUE(a < 0.8 * b) << a << " " << b;
}

TEST_F(Stored, ExactStoredIsTheQuantizerAlone) {
  const Compressed c = run("exact@quant-rotated:rotation=none;k_bits=3;v_bits=3", {});
  const Compressed alone = run("quant-rotated:rotation=none;k_bits=3;v_bits=3", {});
  EXPECT_EQ(bytes(c), bytes(alone));
  EXPECT_TRUE(std::equal(c.made.k.data(), c.made.k.data() + 260 * 16, alone.made.k.data()));
  EXPECT_EQ(c.counted, tokens_);
  EXPECT_TRUE(alone.counted.empty());
}

TEST(StoredSpec, NamesParametersAndRefusals) {
  const Variant v =
      expand_algorithms({"snapkv@quant-kivi:snapkv.window=64;k_bits=2;outliers=0.01"}).front();
  EXPECT_EQ(v.name(), "snapkv@quant-kivi");
  EXPECT_EQ(v.params.canonical(),
            "T=auto;group_size=32;k_bits=2;keys=post;outliers=0.01;snapkv.kernel=5;snapkv.pool=avg;"
            "snapkv.reduce=mean;snapkv.ref=past;snapkv.window=64;tokens=auto;v_bits=4");
  EXPECT_TRUE(v.sees_queries());
  EXPECT_FALSE(v.random());
  for (const auto& [spec, random] : {std::pair{"uniform@quant-kivi", true},
                                     {"h2o@quant-rotated", true},
                                     {"h2o@quant-rotated:rotation=none", false}}) {
    EXPECT_EQ(expand_algorithms({spec}).front().random(), random) << spec;
  }
  EXPECT_FALSE(expand_algorithms({"local@quant-kivi"}).front().sees_queries());
  EXPECT_EQ(expand_algorithms({"h2o@quant-kivi:k_bits=2,3,4,8"}).size(), 4U);
  EXPECT_EQ(expand_algorithms({"adakv@quant-kivi"}).front().scope(), Scope::layer);
  for (const char* bad :
       {"h2o+uniform@quant-kivi", "h2o@quant-kivi+uniform", "duoattention@quant-kivi",
        "clustergen@quant-kivi", "kvreviver@quant-kivi", "quant-kivi@quant-kivi",
        "quant-rotated@quant-kivi", "h2o@uniform", "h2o@", "h2o@nope", "h2o@quant-kivi:residual=0",
        "h2o@quant-kivi:bits=4", "h2o@quant-kivi:window=3", "h2o@quant-kivi:k_bits=auto",
        "kmeans@quant-kivi:keys=pre", "balancekv@quant-kivi:balancekv.denominator=separate",
        "h2o@quant-kivi:fit=after", "h2o@quant-kivi:grid"}) {
    EXPECT_THROW(expand_algorithms({bad}), InputError) << bad;
  }
  EXPECT_THROW(expand_algorithms({"h2o@quant-kivi"}, Protocol::stream), InputError);
}

using testing_caches::CachesTest;

class StoredRuns : public CachesTest {};

const std::vector<std::string> kSpecs = {
    "h2o@quant-kivi",
    "snapkv@quant-kivi:k_bits=2;v_bits=3",
    "attention-matching@quant-kivi",
    "attention-matching@quant-kivi:attention-matching.heads=adakv",
    "adakv@quant-kivi",
    "pyramidkv@quant-kivi",
    "tova@quant-kivi",
    "uniform@quant-kivi",
    "kmeans@quant-kivi",
    "d2o@quant-kivi",
    "cam@quant-kivi",
    "value-merge@quant-kivi",
    "bumblebee@quant-kivi",
    "balancekv@quant-kivi",
    "oracle@quant-kivi",
    "clustergen-kcenter@quant-kivi",
    "h2o@quant-rotated:rotation=orthogonal;keys=post"};

// Every row is within its budget, alone or with those that it shares with; what the caches hold
// evaluates to the same rows.
TEST_F(StoredRuns, BudgetsAndCachesOutAndIn) {
  ReplayOptions o = options();
  o.algorithms = kSpecs;
  o.budgets = {0.6, 0.4};
  run(o);
  const std::vector<Fields> rows = testing_replay::untimed(o.out);
  std::map<std::string, std::pair<double, double>> shared;
  std::set<std::string> seen;
  for (const Fields& row : rows) {
    const auto text = [&](const char* name) { return row[column_index(name)]; };
    const auto number = [&](const char* name) { return std::stod(text(name)); };
    if (text("status").starts_with("infeasible")) {
      continue;
    }
    ASSERT_EQ(text("status"), "ok") << text("algorithm") << " " << text("prompt");
    seen.insert(text("algorithm") + text("params"));
    auto& [held, allowed] =
        shared[text("algorithm") + text("params") + text("budget_requested") + text("prompt")];
    held += number("middle_ratio");
    allowed += number("budget_requested");
    EXPECT_TRUE(std::isfinite(number("rel_error")));
  }
  EXPECT_EQ(seen.size(), kSpecs.size());
  for (const auto& [name, sums] : shared) {
    EXPECT_TRUE(sums.first <= sums.second + 1e-9) << name;
  }
  run(evaluation("again.csv", {"c.h5"}));
  testing_caches::expect_same_tables(at("again.csv"), at("out.csv"));
}

}  // namespace
}  // namespace kvbench::test_stored
