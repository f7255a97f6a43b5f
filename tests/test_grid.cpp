#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "algorithms/grid.hpp"
#include "algorithms/registry.hpp"
#include "refusal.hpp"

namespace kvbench::test_grid {
namespace {

using testing_replay::expect_refusal;
using Texts = std::vector<std::string>;

/// "name:canonical parameters" of each variant.
Texts expanded(const Texts& specs) {
  Texts out;
  for (const Variant& v : expand_algorithms(specs)) {
    out.push_back(v.method->info.name + ":" + v.params.canonical());
  }
  return out;
}

/// The values of one parameter, in the variants' order.
Texts values_of(const std::string& spec, const std::string& key) {
  Texts out;
  for (const Variant& v : expand_algorithms({spec})) {
    out.push_back(v.params.text(key));
  }
  return out;
}

// Ends and steps of ranges: test_number_range.cpp.
TEST(Grid, ListsAndRangesAreOrderedByValue) {
  EXPECT_EQ(values_of("uniform:tokens=10,9,100,2", "tokens"), (Texts{"2", "9", "10", "100"}));
  EXPECT_EQ(values_of("uniform:T=8,1:3,5:7", "T"), (Texts{"1", "2", "5", "6", "8"}));
  EXPECT_EQ(values_of("uniform:T=0:9:3", "T"), (Texts{"0", "3", "6"}));
}

TEST(Grid, FractionalRangesMakeTheNumbersThatOneWouldWrite) {
  // 3 * 0.1 is 0.30000000000000004, and (0.7 - 0) / 0.1 is 6.999999999999999.
  EXPECT_EQ(values_of("balancekv:T=1;gamma=0:0.7:0.1", "gamma"),
            (Texts{"0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6"}));
}

TEST(Grid, CombinesEveryValueWithEveryOther) {
  const Texts all = expanded({"balancekv:T=1:4;step=greedy,fixed;rescale=true,false"});
  EXPECT_EQ(all.size(), 12U);
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), 12U);
}

TEST(Grid, OrderAndRepetitionOfSpecsDoNotMatter) {
  Texts specs{"balancekv:T=1:4;step=fixed,greedy", "uniform:T=2", "exact", "uniform", "local:T=1"};
  const Texts expected = expanded(specs);
  std::mt19937_64 random(7);
  for (int i = 0; i < 20; ++i) {
    std::shuffle(specs.begin(), specs.end(), random);
    Texts repeated = specs;
    repeated.insert(repeated.end(), specs.begin(), specs.begin() + i % 5);
    EXPECT_EQ(expanded(repeated), expected);
  }
}

TEST(Grid, KeepsOneOfWhatIsWrittenInTwoWays) {
  EXPECT_EQ(expanded({"uniform:T=1", "uniform:T=1.0", "uniform:T=1,1", "uniform:T=1:2"}).size(),
            1U);
  // A default written out is the default.
  EXPECT_EQ(expanded({"streamingllm:T=1", "streamingllm:T=1;n_sink=4"}).size(), 1U);
  EXPECT_EQ(expanded({"streamingllm:T=1", "streamingllm:T=1;n_sink=5"}).size(), 2U);
}

TEST(Grid, AllIsEveryMethodInTheRegistrysOrder) {
  for (const Protocol protocol : kProtocols) {
    Texts names;
    for (const Method& m : methods()) {
      const std::map<Protocol, bool> runs = {{Protocol::prefill, m.compress != nullptr},
                                             {Protocol::stream, m.open_stream != nullptr},
                                             {Protocol::retrieval, m.open_reads != nullptr}};
      if (runs.at(protocol)) {
        names.push_back(m.info.name);
      }
    }
    Texts got;
    for (const Variant& v : expand_algorithms({"all"}, protocol)) {
      got.push_back(v.name());
    }
    EXPECT_EQ(got, names);
    EXPECT_GT(names.size(), 5U);
  }
  EXPECT_EQ(expanded({"all", "exact", "all"}), expanded({"all"}));
}

TEST(Grid, WhatIsNamedBesidesAllIsAskedForByName) {
  LayerFacts facts{.n = 1000, .d = 32, .dv = 32, .rope_positions = 1000, .hidden = 1};
  const std::vector<ExtraSetInfo> extra{{"repeat", {{1, 0, Range{0, 0}, false}}}};
  const std::vector<ScoresInfo> scores{{"s", 0}};
  facts.extra = extra;
  facts.scores = scores;
  for (const Texts& specs : {Texts{"all", "leverage"}, {"leverage", "all"}, {"all,leverage,all"}}) {
    for (const Variant& v : expand_algorithms(specs)) {
      EXPECT_EQ(v.by_set, v.name() != "leverage" ? "all" : "") << v.name();
      EXPECT_EQ(v.resolved(facts).by_set, v.by_set);
    }
  }
  for (const Variant& v : expand_algorithms({"all", "uniform:T=2"})) {
    EXPECT_EQ(v.by_set.empty(), v.params.canonical() == "T=2;tokens=auto") << v.name();
  }
}

TEST(Grid, EveryMethodDeclaresAGridThatHoldsItsDefaultAndItsAuthorsSetting) {
  std::size_t tuned = 0;
  for (const Method& m : methods()) {
    const Protocol protocol = m.compress != nullptr      ? Protocol::prefill
                              : m.open_stream != nullptr ? Protocol::stream
                                                         : Protocol::retrieval;
    const auto texts = [&](const std::string& spec) {
      std::set<std::string> out;
      for (const Variant& v : expand_algorithms({spec}, protocol)) {
        EXPECT_EQ(v.method, &m);
        EXPECT_EQ(v.sized(), m.info.sizes.empty() && !m.info.must_fit)
            << v.params.canonical();  // a budget applies
        EXPECT_EQ(v.by_set, "");
        out.insert(v.params.canonical());
      }
      return out;
    };
    const std::set<std::string> grid = texts(m.info.name + ":grid");
    const std::set<std::string> authors = texts(m.info.name + ":authors");
    const std::set<std::string> usual = texts(m.info.name);
    EXPECT_EQ(authors.size(), 1U);
    EXPECT_EQ(authors == usual, m.info.authors.empty()) << m.info.name;
    EXPECT_EQ(grid.count(*usual.begin()), 1U) << m.info.name;
    EXPECT_EQ(grid.count(*authors.begin()), 1U) << m.info.name;
    for (const std::string& settings : m.info.grid) {
      for (const std::string& one : texts(m.info.name + ":" + settings)) {
        EXPECT_EQ(grid.count(one), 1U) << m.info.name << " " << one;
      }
    }
    EXPECT_EQ(grid.size() > 1, !m.info.grid.empty()) << m.info.name;
    EXPECT_LE(grid.size(), 12U) << m.info.name;  // as many trials as any other has
    tuned += grid.size() > 1 ? 1U : 0U;
  }
  EXPECT_GT(tuned, 20U);
}

TEST(Grid, AllGridIsEveryMethodsGrid) {
  for (const std::string what : {"grid", "authors"}) {
    Texts each;
    for (const Method& m : methods()) {
      if (m.compress != nullptr) {
        each.push_back(m.info.name + ":" + what);
      }
    }
    EXPECT_EQ(expanded({"all:" + what}), expanded(each));
    for (const Variant& v : expand_algorithms({"all:" + what})) {
      EXPECT_EQ(v.by_set, "all");
    }
  }
  // Named besides, one is asked for by name.
  for (const Variant& v : expand_algorithms({"all:grid", "criticalkv:grid"})) {
    EXPECT_EQ(v.by_set.empty(), v.method->info.name == "criticalkv");
  }
  expect_refusal([] { expand_algorithms({"h2o+kmeans:grid"}); }, "A+B and A@Q declare no settings");
  expect_refusal([] { expand_algorithms({"nosuch:authors"}); }, "nosuch");
}

TEST(Grid, ASetIsTheMethodsThatItSays) {
  std::map<std::string, Texts> sets;  // each told from what the methods state, one by one
  for (const Method& m : methods()) {
    if (m.compress == nullptr) {
      continue;
    }
    const std::string& name = m.info.name;
    sets[fmt::format("@{}", kvbench::name(*m.info.family))].push_back(name);
    if (!m.info.usual_facts().sees_queries()) {
      sets["@agnostic"].push_back(name);
    }
    if (name.starts_with("k")) {
      sets["k*"].push_back(name);
    }
  }
  EXPECT_EQ(sets.size(), 7U);
  EXPECT_GT(sets["k*"].size(), 2U);
  for (const auto& [set, names] : sets) {
    EXPECT_GE(names.size(), 1U) << set;
    EXPECT_EQ(expanded({set}), expanded(names)) << set;
    EXPECT_EQ(expanded({set + ",exact"}), expanded({"exact", set}));
    for (const Variant& v : expand_algorithms({set, "knorm"})) {
      EXPECT_EQ(v.by_set, v.name() == "knorm" ? "" : set);
    }
  }
  EXPECT_EQ(expanded({"h?o"}), expanded({"h2o"}));
  EXPECT_EQ(expanded({"[ht]*o*"}), expanded({"h2o", "tova", "triattention"}));
  EXPECT_EQ(expanded({"snap*:grid"}), expanded({"snapkv:grid"}));
  EXPECT_EQ(expand_algorithms({"*-stream"}, Protocol::stream).size(), 2U);
}

TEST(Grid, ASetOfNoMethodIsRefused) {
  for (const std::string spec : {"snapp*", "@quantisation", "@", "*+uniform", "*-stream"}) {
    expect_refusal([&] { expand_algorithms({spec}); }, "--algorithm " + spec + ": ");
  }
  expect_refusal([] { expand_algorithms({"@evictoin"}); }, "did you mean @eviction?");
  expect_refusal([] { expand_algorithms({"snap*:window=4"}); }, "snap*:grid or snap*:authors");
}

TEST(Grid, AMethodOfTheOtherProtocolIsRefusedInOneLine) {
  for (const auto& [spec, protocol] : {std::pair{"snapkv", Protocol::stream},
                                       {"balancekv-stream", Protocol::prefill},
                                       {"h2o+uniform", Protocol::stream}}) {
    expect_refusal([&, s = spec, p = protocol] { expand_algorithms({s}, p); },
                   "does not run under --protocol " + std::string(name(protocol)));
  }
}

TEST(Grid, KnowsWhatFixesASize) {
  EXPECT_TRUE(expand_algorithms({"exact"}).front().sized());
  EXPECT_FALSE(expand_algorithms({"uniform"}).front().sized());
  EXPECT_TRUE(expand_algorithms({"uniform:T=2"}).front().sized());
  EXPECT_TRUE(expand_algorithms({"uniform:tokens=0"}).front().sized());
  EXPECT_FALSE(expand_algorithms({"streamingllm:n_sink=2"}).front().sized());
}

// Others: tests/cli/bad_usage.sh.
TEST(Grid, RefusesInOneLineThatNamesTheTrouble) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"nosuch", "balancekv"},  // all names are listed
      {"", "algorithm"},
      {"Uniform", "Uniform"},
      {"all:T=1", "got all with 'T=1', expected all, all:grid or all:authors; give other methods"},
      {"h2o:grid,snapkv:grid",
       "expected key=value (after ':' commas separate values; repeat --algorithm if snapkv"},
      {"h2o:tokens=4,snapkv", "got 'snapkv', expected an integer"},
      {"h2o:tokens=4,snapkv@quant-kivi:tokens=4",
       "repeat --algorithm if snapkv is another algorithm)"},
      {"h2o:tokens=4,all", "repeat --algorithm if all is another algorithm)"},
      {"all:grid,h2o", "got all with 'grid,h2o'"},
      {"exact:T=1", "'T'"},
      {"uniform:T=1.5", "'1.5'"},
      {"uniform:T=", "'T='"},
      {"uniform:=1", "'=1'"},
      {"uniform:T=1;", "''"},
      {"uniform:T=1,,2", "''"},
      {"uniform:T=4:1", "--algorithm uniform:T=4:1: T: got '4:1', which is empty"},
      {"uniform:T=1:4:0", "'1:4:0'"},
      {"balancekv:step=nosuch", "greedy"},
      {"balancekv:rescale=maybe", "true|false"},
      {"uniform:tokens=1:1e9", "999999999 values"},
      {"uniform:tokens=1:2001;T=1:63", "combinations"},
      // Refused while it grows, not after 10^10 combinations were made.
      {"uniform:tokens=1:100001;T=1:100001", "combinations"},
  };
  for (const auto& [spec, says] : cases) {
    expect_refusal([&, one = spec] { expand_algorithms({one}); }, says);
  }
  expect_refusal([] { expand_algorithms({}); }, "algorithm");
}

TEST(Seeds, CountRangeAndList) {
  using Seeds = std::vector<std::uint64_t>;
  EXPECT_EQ(parse_seeds("3"), (Seeds{0, 1, 2}));
  EXPECT_EQ(parse_seeds("3:6"), (Seeds{3, 4, 5}));
  EXPECT_EQ(parse_seeds("3:10:3"), (Seeds{3, 6, 9}));
  EXPECT_EQ(parse_seeds("9,1,5,1"), (Seeds{1, 5, 9}));
  EXPECT_EQ(parse_seeds("7,1:3"), (Seeds{1, 2, 7}));
  EXPECT_EQ(parse_seeds("18446744073709551614:18446744073709551615"),
            (Seeds{18446744073709551614U}));
  EXPECT_EQ(parse_seeds("1000000").size(), 1000000U);
}

TEST(Seeds, TextsReadBack) {
  using Seeds = std::vector<std::uint64_t>;
  for (const Seeds& seeds :
       {Seeds{0}, Seeds{7}, Seeds{3, 4, 5}, Seeds{1, 5, 9}, Seeds{18446744073709551615U},
        Seeds{18446744073709551614U, 18446744073709551615U}}) {
    EXPECT_EQ(parse_seeds(seeds_text(seeds)), seeds) << seeds_text(seeds);
  }
  EXPECT_EQ(seeds_text(parse_seeds("1000000")), "0:1000000");
}

TEST(Seeds, RefusesEverythingElse) {
  for (const char* text : {"", "0", "-1", "1.5", "abc", "3:3", "4:3", "1:2:0", ":", "1:", ":2", ",",
                           "1,", "1,x", "1, 2", " 1", "1000001", "18446744073709551616", "1,3:3"}) {
    SCOPED_TRACE(text);
    expect_refusal([&] { parse_seeds(text); }, "--seeds");
  }
}

}  // namespace
}  // namespace kvbench::test_grid
