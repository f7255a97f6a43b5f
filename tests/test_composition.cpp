// A+B: what each part is given, what the whole holds, and what cannot be composed.
#include <fmt/format.h>

#include <tuple>

#include "algorithms/composition.hpp"
#include "algorithms/grid.hpp"
#include "extra_traces.hpp"
#include "method_checks.hpp"
#include "replay_run.hpp"

namespace kvbench::test_composition {
namespace {

class Composition : public ::testing::Test {
 protected:
  Composition() {
    shape_.n = 300;
    head_ = make_head(shape_, 31);
    tokens_ = positions(20, 280);
    mass_.resize(300);
    for (std::size_t i = 0; i < mass_.size(); ++i) {
      mass_[i] = static_cast<double>((i * 7919) % 300);
    }
  }

  Compressed run(const std::string& spec, std::optional<Index> budget) const {
    const Variant v = expand_algorithms({spec}).front();
    const Task task{head_, tokens_, budget, {0, 0}, mass_, Rng(1, {"p", 0, 0}, v.name())};
    Compressed c = v.compress(task);
    check_compressed(c, task);
    return c;
  }

  HeadShape shape_;
  KvHead head_;
  std::vector<Index> tokens_;
  std::vector<double> mass_;
};

TEST_F(Composition, PartsShareTokensAndBytes) {
  const Index pair = head_.pair_bytes();
  for (const double share : {0.0, 0.25, 0.5, 1.0}) {
    const Index budget = 100 * pair;
    const Compressed c = run("oracle+uniform:share=" + std::to_string(share), budget);
    const auto heavy = static_cast<Index>(share * 100);
    // The heaviest have weight 1; the others stand for all that is left.
    std::vector<double> middle(mass_.begin() + 20, mass_.begin() + 280);
    std::vector<double> sorted = middle;
    std::sort(sorted.rbegin(), sorted.rend());
    Index ones = 0;
    for (std::size_t i = 0; i < c.held.tokens.size(); ++i) {
      const bool is_heavy = heavy > 0 && mass_[c.held.tokens[i]] >= sorted[heavy - 1];
      ones += is_heavy ? 1 : 0;
      if (is_heavy) {
        EXPECT_EQ(c.held.weight(i), 1.0F);
      }
    }
    EXPECT_EQ(ones, heavy);
    if (share < 1.0) {
      EXPECT_NEAR(weight_sum(c.held), 260.0,
                  1e-3);  // float32 weights: nothing of the middle is lost
    }
    EXPECT_LE(*c.payload_bytes + c.aux_bytes, budget);
  }
}

// 0.7 times the bytes of 90 tokens is just below those of 63 in float64, 0.29 times those of 100
// below those of 29.
TEST_F(Composition, AShareThatIsWholeUpToRoundingIsWhole) {
  for (const auto& [share, tokens, first] : {std::tuple("0.7", 90, 63), {"0.29", 100, 29}}) {
    const Compressed c = run(fmt::format("local+streamingllm:share={};streamingllm.n_sink=1000;"
                                         "tokens={}",
                                         share, tokens),
                             {});
    std::vector<Index> expected = positions(20, 20 + tokens - first);
    const std::vector<Index> last = positions(280 - first, 280);
    expected.insert(expected.end(), last.begin(), last.end());
    EXPECT_EQ(c.held.tokens, expected) << share;
  }
}

TEST_F(Composition, EveryDenominatorKeepsTheHeavyTokensAtWeightOne) {
  for (const char* kind : {"shared", "uniform", "separate"}) {
    const Compressed c = run(std::string("oracle+balancekv:balancekv.denominator=") + kind,
                             120 * head_.pair_bytes());
    EXPECT_LE(*c.payload_bytes + c.aux_bytes, 120 * head_.pair_bytes());
    const HeldTokens& d = c.denominator ? c.denominator->held : c.held;
    Index ones = 0;
    for (std::size_t i = 0; i < d.tokens.size(); ++i) {
      ones += d.weight(i) == 1.0F ? 1 : 0;
    }
    EXPECT_GE(ones, 60) << kind;
  }
}

TEST_F(Composition, PartsDrawFromStreamsOfTheirOwn) {
  // Both parts sample under the same purpose; the second must not repeat the first one's luck.
  const Compressed c = run("random-local+uniform:share=0.5", 200 * head_.pair_bytes());
  const Compressed alone = run("random-local", 100 * head_.pair_bytes());
  EXPECT_FALSE(std::includes(c.held.tokens.begin(), c.held.tokens.end(), alone.held.tokens.begin(),
                             alone.held.tokens.end()));
}

TEST_F(Composition, NativeSizesOfTheWhole) {
  const Compressed c = run("oracle+uniform:T=1;share=0.5", {});
  EXPECT_EQ(c.held.tokens.size(), 65U + 64U);  // uniform pays for its weight
  EXPECT_TRUE(expand_algorithms({"oracle+uniform:T=1"}).front().sized());
  EXPECT_FALSE(expand_algorithms({"oracle+uniform"}).front().sized());
}

TEST(CompositionSpec, NamesParametersAndRefusals) {
  const Variant v =
      expand_algorithms({"streamingllm+balancekv:share=0.25;balancekv.step=self"}).front();
  EXPECT_EQ(v.name(), "streamingllm+balancekv");
  EXPECT_NE(v.params.canonical().find("balancekv.step=self"), std::string::npos);
  EXPECT_NE(v.params.canonical().find("streamingllm.n_sink=4"), std::string::npos);
  EXPECT_EQ(v.params.canonical().find("balancekv.T"), std::string::npos);
  EXPECT_TRUE(v.random());
  EXPECT_TRUE(expand_algorithms({"oracle+uniform"}).front().sees_evaluated());
  EXPECT_EQ(expand_algorithms({"oracle+uniform:share=0.25,0.5,0.75"}).size(), 3U);
  for (const char* bad :
       {"uniform+balancekv", "exact+uniform", "oracle+exact", "oracle+oracle", "oracle+nope",
        "oracle+uniform:step=self", "oracle+uniform:share=2", "oracle+uniform+local", "h2o+adakv",
        "adakv+pyramidkv", "h2o+kvreviver:kvreviver.layer_budget=fisher",
        "h2o+snapkv:snapkv.kernel=8"}) {
    EXPECT_THROW(expand_algorithms({bad}), InputError) << bad;
  }
}

TEST(CompositionSpec, CommasBeforeTheFirstColonSeparateAlgorithms) {
  const auto names = [](const std::vector<std::string>& specs) {
    std::vector<std::string> out;
    for (const Variant& v : expand_algorithms(specs)) {
      out.push_back(v.name() + " " + v.params.canonical());
    }
    return out;
  };
  EXPECT_EQ(names({"h2o,local,uniform:T=1,2"}), names({"h2o", "local", "uniform:T=1,2"}));
  EXPECT_EQ(names({"all,h2o+uniform"}), names({"all", "h2o+uniform"}));
  for (const char* bad : {"h2o,,local", ",h2o", "h2o,", "h2o,T=1", ""}) {
    EXPECT_THROW(expand_algorithms({bad}), InputError) << bad;
  }
}

// A shares its part over the layer; B gets the head's own other part, and what A left unused.
class SharedComposition : public testing_replay::ReplayTest {
 protected:
  std::vector<Fields> rows(const std::string& algorithm, double budget, bool kept = false) {
    ReplayOptions o = basic("out.csv");
    o.algorithms = {algorithm};
    o.budgets = {budget};
    o.prompts = {"p0"};
    o.sink = 2;
    o.overwrite = true;
    o.kept = kept;
    EXPECT_EQ(run(o).failed, 0);
    return testing_replay::untimed(o.out);
  }
  static double number(const Fields& row, const char* column) {
    return std::stod(row[column_index(column)]);
  }
};

TEST_F(SharedComposition, MeetsTheBudgetOverTheHeadsThatShare) {
  for (const char* name : {"adakv+balancekv", "pyramidkv+kmeans", "simlayerkv+kmeans",
                           "tova+uniform", "duoattention+uniform", "adakv+quant-kivi"}) {
    for (const double budget : {0.8, 0.5, 0.2, 0.0}) {
      std::map<std::string, double> bytes;  // by layer, or all together
      std::map<std::string, double> full;
      std::set<std::string> seen;
      bool measured = true;
      for (const Fields& row : rows(name, budget)) {
        measured = measured && row[column_index("status")] == "ok";
        const std::string layer = row[column_index("layer")];
        if (!measured || !seen.insert(layer + "/" + row[column_index("kv_head")]).second) {
          continue;
        }
        const bool all_layers = std::string(name).starts_with("pyramidkv") ||
                                std::string(name).starts_with("simlayerkv");
        const std::string group = all_layers ? "" : layer;
        const double pair = number(row, "full_bytes") / number(row, "n_tokens");
        bytes[group] += number(row, "bytes") - 14 * pair;
        full[group] += number(row, "full_bytes") - 14 * pair;
      }
      for (const auto& [group, held] : bytes) {
        EXPECT_TRUE(!measured || held <= budget * full[group]) << name << " " << budget;
      }
    }
  }
}

// Whatever keeps tokens goes with whatever takes a set of tokens and a budget.
TEST_F(SharedComposition, EveryPairRuns) {
  std::vector<std::string> pairs;
  std::vector<std::string> specs;
  for (const Method& a : methods()) {
    for (const Method& b : methods()) {
      if (a.info.holds == Holds::tokens && &a != &b && b.compress != nullptr &&
          !b.info.sizes.empty() && b.info.usual_facts().scope == Scope::head) {
        pairs.push_back(a.info.name + "+" + b.info.name);
        specs.push_back(pairs.back() + (b.info.name == "quant-rotated"  // no power of two here
                                            ? ":quant-rotated.rotation=orthogonal"
                                            : ""));
      }
    }
  }
  EXPECT_GT(pairs.size(), 200U);
  testing_replay::TraceShape shape;  // with all that some method cannot do without
  shape.hidden = 12;
  shape.tokens = {60};
  shape.rope = testing_replay::rope_tables(60 + 512, 8);
  ReplayOptions o = basic("pairs.csv");
  o.traces = {testing_replay::make_trace(folder_ / "rope.h5", shape)};
  testing_traces::alter(o.traces[0], "/prompts/p0/layers/0", [](hid_t layer) {
    testing_traces::put_random_segment(layer, "repeat", 0, 9, 52, Range{0, 52}, 1);
    testing_traces::put_scores(layer, "s", 2, 60, std::vector<float>(120, 1.0F), 52);
  });
  o.algorithms = specs;
  o.budgets = {1.0, 0.4, 0.1};
  o.prompts = {"p0"};
  o.layers = {0};
  o.heads = {0};
  o.sink = 2;
  EXPECT_EQ(run(o).failed, 0);
  std::set<std::string> measured;
  for (const Fields& row : testing_replay::untimed(o.out)) {
    const std::string& status = row[column_index("status")];
    EXPECT_NE(status_kind(status), "failed") << row[column_index("algorithm")] << " " << status;
    if (status == "ok") {
      const std::string& name = row[column_index("algorithm")];
      measured.insert(name);
      const std::string first = name.substr(0, name.find('+'));
      EXPECT_TRUE(find_method(first).info.usual_facts().scope != Scope::head ||
                  number(row, "middle_ratio") <= number(row, "budget_requested") + 1e-9)
          << name << " " << number(row, "middle_ratio");
      EXPECT_TRUE(number(row, "rel_error") >= 0.0) << name;
    }
  }
  // With all of the bytes there is nothing that B could not meet, but where A cannot use its half:
  // no head fits whole, and B has all tokens and half of the bytes; nor does the only layer, and
  // the rows are degenerate.
  for (const std::string& pair : pairs) {
    EXPECT_TRUE(measured.count(pair) > 0 || pair.starts_with("simlayerkv+") ||
                pair == "duoattention+quant-kivi" || pair == "duoattention+kvreviver" ||
                pair == "duoattention+think")
        << pair;
  }
}

// With all of the bytes for A it is A; with none it is B, in every head.
TEST_F(SharedComposition, TheExtremesAreThePartsAlone) {
  const auto a = rows("adakv", 0.5);
  const auto all = rows("adakv+uniform:share=1", 0.5);
  const auto b = rows("knorm", 0.5);
  const auto none = rows("adakv+knorm:share=0", 0.5);
  ASSERT_EQ(a.size(), all.size());
  ASSERT_EQ(b.size(), none.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(number(a[i], "mass_kept"), number(all[i], "mass_kept"));
    EXPECT_EQ(number(b[i], "mass_kept"), number(none[i], "mass_kept"));
    EXPECT_EQ(number(b[i], "rel_error"), number(none[i], "rel_error"));
  }
}

// What a head holds: A's share of it, and floor of the rest for B, token by token.
TEST_F(SharedComposition, EachHeadsRestGoesToB) {
  const auto alone = rows("adakv", 0.25);
  const auto both = rows("adakv+knorm:share=0.5", 0.5);
  ASSERT_EQ(alone.size(), both.size());
  std::set<double> different;
  for (std::size_t i = 0; i < alone.size(); ++i) {
    const double a = number(alone[i], "tokens_kept") - 14;
    const double ab = number(both[i], "tokens_kept") - 14;
    const double middle = 60 - 14;
    // B's part: the head's bytes less A's part of them, in whole tokens.
    EXPECT_TRUE(std::abs(ab - a - (std::floor(0.5 * middle) - std::floor(0.25 * middle))) <= 1.0)
        << a << " " << ab;
    different.insert(a);
  }
  EXPECT_GT(different.size(), 1U);  // the shares do differ between heads
}

}  // namespace
}  // namespace kvbench::test_composition
