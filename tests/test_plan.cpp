#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "algorithms/registry.hpp"
#include "core/error.hpp"
#include "make_trace.hpp"
#include "option_changes.hpp"
#include "refusal.hpp"
#include "replay/plan_spec.hpp"
#include "replay/planner.hpp"
#include "report_rows.hpp"

namespace kvbench::test_plan {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;
using testing_rows::test_folder;

class PlanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = test_folder();
    make_trace(folder_ / "a.h5", {.tokens = {40, 24}, .layers = {0, 3}});
    make_trace(folder_ / "b.h5", {.layers = {1}, .q_heads = 6, .kv_heads = 3});
  }

  ReplayOptions options() const {
    ReplayOptions o;
    o.traces = {(folder_ / "a.h5").string(), (folder_ / "b.h5").string()};
    o.out = (folder_ / "out.csv").string();
    o.algorithms = {"exact", "uniform", "local"};
    o.budgets = {0.5, 0.25};
    o.seeds = "5:8";
    o.sink = 4;
    o.recent = 8;
    o.queries = 4;
    return o;
  }

  Plan plan_with(const Change& change) const {
    ReplayOptions o = options();
    change(o);
    return make_plan(o);
  }

  fs::path folder_;
};

TEST_F(PlanTest, ListsEveryHeadOnceInOrder) {
  const Plan plan = make_plan(options());
  // a: 2 prompts x 2 layers x 2 KV heads, b: 1 x 1 x 3.
  ASSERT_EQ(plan.units.size(), 11U);
  std::vector<std::tuple<std::size_t, std::string, Index, Index>> seen;
  for (const Unit& u : plan.units) {
    for (const Index h : u.q_heads) {
      EXPECT_EQ(h / plan.layer_meta(u).group(), u.kv_head);
      seen.emplace_back(u.trace, plan.prompt_meta(u).id, plan.layer_meta(u).layer, h);
    }
  }
  EXPECT_EQ(seen.size(), 4U * 4U + 6U);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), seen.size());
  EXPECT_EQ(plan.trace_names, (std::vector<std::string>{"a.h5", "b.h5"}));
}

TEST_F(PlanTest, EntriesAreVariantsTimesBudgetsTimesSeeds) {
  const Plan plan = make_plan(options());
  std::vector<std::tuple<std::string, double, std::uint64_t>> got;
  for (std::size_t i = 0; i < plan.entries.size(); ++i) {
    const Entry e = plan.entries[i];
    got.emplace_back(plan.variants[e.variant].method->info.name, e.budget.value_or(-1.0), e.seed);
  }
  // A method with one size takes no budget, a deterministic one gets seed 0; budgets fall.
  const decltype(got) expected{
      {"exact", -1.0, 0},   {"uniform", 0.5, 5},  {"uniform", 0.5, 6},
      {"uniform", 0.5, 7},  {"uniform", 0.25, 5}, {"uniform", 0.25, 6},
      {"uniform", 0.25, 7}, {"local", 0.5, 0},    {"local", 0.25, 0},
  };
  EXPECT_EQ(got, expected);
  EXPECT_EQ(plan.jobs(), 11 * 9);
}

TEST_F(PlanTest, NativeParametersTakeNoBudget) {
  const Plan plan = plan_with(
      both(set(&ReplayOptions::algorithms, {"uniform:T=1,2"}), set(&ReplayOptions::seeds, "2")));
  ASSERT_EQ(plan.entries.size(), 4U);
  for (const Entries::Setting& s : plan.entries.settings()) {
    EXPECT_FALSE(s.first.budget.has_value());
  }
}

TEST_F(PlanTest, SelectsLayersHeadsAndPrompts) {
  const Plan plan = plan_with([](auto& o) {
    o.layers = {3, 1};
    o.heads = {3, 2, 5};
    o.prompts = {"p0"};
  });
  std::vector<std::tuple<std::string, Index, Index, std::vector<Index>>> got;
  for (const Unit& u : plan.units) {
    got.emplace_back(plan.trace_names[u.trace], plan.layer_meta(u).layer, u.kv_head, u.q_heads);
  }
  const decltype(got) expected{{"a.h5", 3, 1, {2, 3}}, {"b.h5", 1, 1, {2, 3}}, {"b.h5", 1, 2, {5}}};
  EXPECT_EQ(got, expected);
}

TEST_F(PlanTest, RowRangesCountTheReplayedHeads) {
  // Groups of 2 with one head left out: units of 2, of 1 and of no rows.
  const Plan plan = plan_with(set(&ReplayOptions::heads, {0, 1, 2}));
  std::vector<Index> before{0};
  for (Index job = 0; job < plan.jobs(); ++job) {
    before.push_back(before.back() + static_cast<Index>(plan.unit_of(job).q_heads.size()));
  }
  for (Index begin = 0; begin <= plan.jobs(); ++begin) {
    for (Index end = begin; end <= plan.jobs(); ++end) {
      const Range got = plan.row_range({begin, end});
      ASSERT_EQ(got.begin, before[begin]);
      ASSERT_EQ(got.end, before[end]);
    }
  }
}

TEST_F(PlanTest, ShardsCoverAllJobsExactlyOnce) {
  Plan plan = make_plan(options());
  const Index jobs = plan.jobs();
  std::vector<Index> counts{1, 2, 3, 7, 11, jobs - 1, jobs, jobs + 1, 3 * jobs, 1000000};
  for (Index n = 1; n <= 40; ++n) {
    counts.push_back(n);
  }
  for (const Index n : counts) {
    plan.options.shard_count = n;
    Index next = 0;
    Index rows = 0;
    const Index step = n > 1000 ? n / 997 : 1;  // of a million shards a sample and the ends
    for (Index i = 1; i <= n; i += step) {
      plan.options.shard_index = i;
      const Range part = plan.shard_jobs();
      EXPECT_LE(part.begin, part.end);
      if (step == 1) {
        EXPECT_EQ(part.begin, next) << i << "/" << n;
        EXPECT_LE(part.end - part.begin, jobs / n + 1);
        EXPECT_GE(part.end - part.begin, jobs / n);
        EXPECT_EQ(plan.row_range(part).begin, rows);
        rows = plan.row_range(part).end;
        next = part.end;
      }
    }
    plan.options.shard_index = n;
    EXPECT_EQ(plan.shard_jobs().end, jobs);
    if (step == 1) {
      EXPECT_EQ(rows, plan.row_range({0, jobs}).end);
    }
  }
}

TEST_F(PlanTest, HashChangesWithWhatDecidesTheRows) {
  fs::create_directories(folder_ / "longer");
  const std::string other =
      make_trace(folder_ / "longer" / "a.h5", {.tokens = {41, 24}, .layers = {0, 3}});
  fs::copy_file(folder_ / "a.h5", folder_ / "renamed.h5");
  const std::string renamed = (folder_ / "renamed.h5").string();
  const std::vector<std::pair<std::string, Change>> changes{
      {"sink", set(&ReplayOptions::sink, 5)},
      {"recent", set(&ReplayOptions::recent, 9)},
      {"queries", set(&ReplayOptions::queries, 3)},
      {"scores", set(&ReplayOptions::scores, Scores::all)},
      {"more algorithms", [](auto& o) { o.algorithms.emplace_back("oracle"); }},
      {"fewer algorithms", [](auto& o) { o.algorithms.pop_back(); }},
      {"parameters", [](auto& o) { o.algorithms.back() = "local:T=1"; }},
      {"one budget", set(&ReplayOptions::budgets, {0.5})},
      {"another budget", set(&ReplayOptions::budgets, {0.5, 0.26})},
      {"close budget", set(&ReplayOptions::budgets, {0.5, 0.25 + 1e-15})},
      {"seeds", set(&ReplayOptions::seeds, "5:9")},
      {"other seeds", set(&ReplayOptions::seeds, "6:9")},
      {"layers", set(&ReplayOptions::layers, {0, 1})},
      {"heads", set(&ReplayOptions::heads, {0, 1, 2, 3, 4})},
      {"prompts", set(&ReplayOptions::prompts, {"p0"})},
      {"fewer traces", [](auto& o) { o.traces.pop_back(); }},
      {"order of traces", [](auto& o) { std::swap(o.traces[0], o.traces[1]); }},
      {"name of a trace", [&](auto& o) { o.traces[0] = renamed; }},
      {"length of a prompt", [&](auto& o) { o.traces[0] = other; }},
  };
  std::set<std::string> hashes{make_plan(options()).hash()};
  for (const auto& [what, change] : changes) {
    EXPECT_TRUE(hashes.insert(plan_with(change).hash()).second) << what;
  }
}

TEST_F(PlanTest, HashDoesNotChangeWithAnythingElse) {
  fs::create_directories(folder_ / "elsewhere");
  fs::copy_file(folder_ / "a.h5", folder_ / "elsewhere" / "a.h5");
  const std::string moved = (folder_ / "elsewhere" / "a.h5").string();
  const std::vector<std::pair<std::string, Change>> changes{
      {"threads", set(&ReplayOptions::threads, 3)},
      {"memory limit", set(&ReplayOptions::memory_limit, 1ULL << 40U)},
      {"shard", shard(2, 3)},
      {"output", set(&ReplayOptions::out, "somewhere_else.csv")},
      {"resume", set(&ReplayOptions::resume, true)},
      {"overwrite", set(&ReplayOptions::overwrite, true)},
      {"order of algorithms",
       set(&ReplayOptions::algorithms, {"local", "exact", "uniform", "exact"})},
      {"order of budgets", set(&ReplayOptions::budgets, {0.25, 0.5, 0.25})},
      {"seeds as a list", set(&ReplayOptions::seeds, "7,5,6")},
      {"all heads by name", set(&ReplayOptions::heads, {5, 4, 3, 2, 1, 0})},
      {"all layers by name", set(&ReplayOptions::layers, {3, 1, 0})},
      {"all prompts by name", set(&ReplayOptions::prompts, {"p1", "p0"})},
      {"folder of a trace", [&](auto& o) { o.traces[0] = moved; }},
  };
  const std::string hash = make_plan(options()).hash();
  EXPECT_EQ(hash.size(), 64U);
  for (const auto& [what, change] : changes) {
    EXPECT_EQ(plan_with(change).hash(), hash) << what;
  }
}

// Others: tests/cli/bad_usage.sh.
TEST_F(PlanTest, RefusesBadOptionsInOneLineThatNamesThem) {
  fs::create_directories(folder_ / "elsewhere");
  const std::string reference = make_trace(folder_ / "elsewhere" / "a.h5");
  write_bytes(folder_ / "text.h5", "no trace at all\n");
  const std::string text = (folder_ / "text.h5").string();
  const std::vector<std::pair<std::string, Change>> cases{
      {"no trace", [](auto& o) { o.traces.clear(); }},
      {"nowhere.h5", [](auto& o) { o.traces[0] = "nowhere.h5"; }},
      {"text.h5", [&](auto& o) { o.traces[1] = text; }},
      {"duplicate trace name a.h5", [&](auto& o) { o.traces[1] = reference; }},
      {"--algorithm", [](auto& o) { o.algorithms.clear(); }},
      {"tokens, T",
       [](auto& o) {
         o.budgets.clear();
         o.algorithms = {"uniform"};
       }},
      {"--layers: no trace has 2", set(&ReplayOptions::layers, {0, 2})},
      {"--heads: no trace has -1", set(&ReplayOptions::heads, {-1})},
      {"select nothing", both(set(&ReplayOptions::layers, {0}), set(&ReplayOptions::heads, {5}))},
      {"--shard", set(&ReplayOptions::shard_count, 0)},
      {"--shard", set(&ReplayOptions::shard_count, std::numeric_limits<Index>::max())},
  };
  for (const auto& [says, change] : cases) {
    expect_refusal([&, &with = change] { plan_with(with); }, says);
  }
}

std::set<std::string> names_of(const Plan& plan) {
  std::set<std::string> out;
  for (Index job = 0; job < plan.jobs(); ++job) {
    out.insert(plan.variant_of(plan.unit_of(job), plan.entry_of(job)).name());
  }
  return out;
}

// The plan's note on a method that it skips; empty: none.
std::string line_of(const Plan& plan, const std::string& name) {
  const auto line = std::ranges::find_if(plan.notes, [&](const std::string& text) {
    return text.find("skips " + name + ": ") != std::string::npos;
  });
  return line == plan.notes.end() ? "" : *line;
}

TEST_F(PlanTest, AllLeavesOutWhatATraceCannotFeedAndSaysSo) {
  const auto all = set(&ReplayOptions::algorithms, {"all"});
  const Plan bare = plan_with(all);
  const std::set<std::string> names = names_of(bare);
  for (const char* name : {"leverage", "compactor", "criticalkv", "kvzip", "external-scores"}) {
    EXPECT_EQ(names.count(name), 0U) << name;
  }
  for (const char* name : {"exact", "expected-attention", "curdkv", "value-merge", "kvreviver"}) {
    EXPECT_EQ(names.count(name), 1U) << name;
  }
  EXPECT_EQ(line_of(bare, "leverage"),
            "note: --algorithm all skips leverage: a.h5: prompt p0 layer 0: leverage: needs "
            "the trace's rotary tables (/rope) to un-rotate keys, which this layer does not have; "
            "expected a trace dumped with them");
  EXPECT_NE(line_of(bare, "compactor"), "");
  EXPECT_NE(line_of(bare, "criticalkv").find("output projection (o_proj)"), std::string::npos);
  EXPECT_NE(line_of(bare, "kvzip").find("no extra queries 'repeat'"), std::string::npos);
  EXPECT_NE(line_of(bare, "external-scores").find("the layer has no scores"), std::string::npos);
  // What is resolved belongs to the variant that is left in its place.
  for (const auto& [where, variant] : bare.resolved) {
    EXPECT_EQ(variant.method, bare.variants[std::get<std::size_t>(where)].method);
  }
  // The jobs are those of a plan that names what is left.
  std::vector<std::string> rest(names.begin(), names.end());
  EXPECT_EQ(plan_with(set(&ReplayOptions::algorithms, rest)).hash(), bare.hash());
}

TEST_F(PlanTest, WhatOneLayerOfSeveralLacksIsInfeasibleThere) {
  make_trace(folder_ / "rope.h5", {.rope = rope_tables(48 + 512, 8)});
  const auto with = [&](const std::vector<std::string>& traces) {
    return plan_with([&](auto& o) {
      o.algorithms = {"all"};
      o.traces.clear();
      for (const std::string& name : traces) {
        o.traces.push_back((folder_ / name).string());
      }
    });
  };
  const Plan fed = with({"rope.h5"});
  EXPECT_EQ(names_of(fed).count("leverage"), 1U);
  EXPECT_EQ(names_of(fed).count("compactor"), 1U);
  EXPECT_EQ(line_of(fed, "leverage"), "");
  EXPECT_NE(line_of(fed, "criticalkv"), "");  // no output projection
  const Plan mixed = with({"rope.h5", "b.h5"});
  EXPECT_EQ(names_of(mixed).count("leverage"), 1U);
  EXPECT_EQ(line_of(mixed, "leverage"), "");
  EXPECT_TRUE(std::ranges::any_of(mixed.notes, [](const std::string& line) {
    return line.starts_with("note: rows of leverage are infeasible in ") &&
           line.find("rotary tables") != std::string::npos;
  }));
  for (const Unit& unit : mixed.units) {
    const bool lacks = mixed.trace_names[unit.trace] == "b.h5";
    for (std::size_t v = 0; v < mixed.variants.size(); ++v) {
      if (mixed.variants[v].name() == "leverage") {
        EXPECT_EQ(mixed.lacks(unit, v) != nullptr, lacks);
      }
    }
  }
}

TEST_F(PlanTest, WhatIsNamedIsRefusedWhereALayerLacksIt) {
  for (const std::vector<std::string>& algorithms : {std::vector<std::string>{"leverage"},
                                                     {"all", "leverage"},
                                                     {"all,leverage:sketch=0"},
                                                     {"leverage+uniform"},
                                                     {"h2o+leverage"}}) {
    expect_refusal([&] { plan_with(set(&ReplayOptions::algorithms, algorithms)); },
                   "a.h5: prompt p0 layer 0: ", "needs the trace's rotary tables");
  }
}

// Columns `algorithm` and `params` of the first unit's rows.
std::vector<std::string> settings_of(const Plan& plan) {
  std::vector<std::string> out;
  for (std::size_t v = 0; v < plan.variants.size(); ++v) {
    const Variant& variant = plan.variant_of(plan.units.front(), v);
    out.push_back(variant.label() + ":" + variant.label_params());
  }
  std::ranges::sort(out);
  return out;
}

class GridWidths : public PlanTest {
 protected:
  std::string trace_of(Index d) const {
    const fs::path path = folder_ / fmt::format("d{}.h5", d);
    return fs::exists(path)
               ? path.string()
               : make_trace(path, {.d = d, .dv = d, .rope = rope_tables(48 + 512, d), .hidden = 3});
  }

  Plan plan_of(const std::vector<Index>& widths, const std::string& spec, Protocol protocol) const {
    return plan_with([&](auto& o) {
      o.traces.clear();
      std::ranges::transform(widths, std::back_inserter(o.traces),
                             [&](Index d) { return trace_of(d); });
      o.algorithms = {spec};
      o.protocol = protocol;
    });
  }
};

// Settings that a head width makes equal run once.
TEST_F(GridWidths, EveryGridRunsEachOfItsSettingsOnce) {
  // Need extra queries or scores, which the traces lack.
  const std::set<std::string> unfed{"external-scores", "kvzip"};
  int grids = 0;
  int merged = 0;
  for (const Index d : {16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256}) {
    for (const Protocol protocol : kProtocols) {
      const auto expect_each_once = [&](const std::string& spec, const Plan& plan) {
        SCOPED_TRACE(fmt::format("{} {} {}", spec, name(protocol), d));
        const std::vector<std::string> got = settings_of(plan);
        std::set<std::string> expected;
        const std::vector<Variant> variants = expand_algorithms({spec}, protocol);
        for (const Variant& v : variants) {
          try {
            const Variant one = v.resolved(layer_facts(plan, plan.units.front()));
            expected.insert(one.label() + ":" + one.label_params());
          } catch (const InputError&) {
            EXPECT_EQ(spec, "all:grid");  // which skips what the trace lacks
          }
        }
        EXPECT_EQ(got, std::vector<std::string>(expected.begin(), expected.end()));
        merged += spec != "all:grid" && got.size() < variants.size() ? 1 : 0;
      };
      for (const Method& m : methods()) {
        const std::string& name = m.info.name;
        const bool fits =
            (name != "quant-rotated" || std::has_single_bit(static_cast<std::uint64_t>(d))) &&
            (name != "quant-format" || d % 32 == 0);
        if (Variant{&m, {}}.runs_under(protocol) && fits && !unfed.contains(name)) {
          expect_each_once(name + ":grid", plan_of({d}, name + ":grid", protocol));
          ++grids;
        }
      }
      expect_each_once("all:grid", plan_of({d}, "all:grid", protocol));
    }
  }
  EXPECT_GT(grids, 11 * 40);
  EXPECT_GE(merged, 3);  // pq:grid at 32, 64 and 128
}

TEST_F(GridWidths, OfSettingsThatAreEqualInSomeLayersOneIsSkipped) {
  // parts=auto is 4 where d = 64, and 3 where d = 48.
  for (const std::string spec : {"pq:grid", "@retrieval:grid"}) {
    const Plan plan = plan_of({48, 64}, spec, Protocol::retrieval);
    const std::string set = spec == "pq:grid" ? spec : "@retrieval";
    EXPECT_EQ(line_of(plan, "pq").find("note: --algorithm " + set + " skips pq: duplicate "), 0U);
    EXPECT_EQ(names_of(plan).count("pq"), 1U);
  }
}

TEST_F(GridWidths, TypedSettingsThatAreEqualAreRefused) {
  for (const std::vector<Index>& widths : {std::vector<Index>{64}, {48, 64}}) {
    expect_refusal([&] { plan_of(widths, "pq:parts=auto,4", Protocol::retrieval); },
                   "--algorithm pq: duplicate");
  }
  // Named beside a set, one of two equal settings counts as named.
  const Plan both = plan_with([&](auto& o) {
    o.traces = {trace_of(64)};
    o.algorithms = {"@retrieval", "pq:parts=4"};
    o.protocol = Protocol::retrieval;
  });
  EXPECT_EQ(
      std::ranges::count_if(both.variants,
                            [](const Variant& v) { return v.name() == "pq" && v.by_set.empty(); }),
      1);
}

TEST_F(PlanTest, AcceptsTheEdgesOfEveryRange) {
  EXPECT_NO_THROW(plan_with([](auto& o) {
    o.sink = 0;
    o.recent = 4;
    o.queries = 4;
    o.budgets = {0.0, 1.0};
    o.shard_index = 7;
    o.shard_count = 7;
  }));
  EXPECT_NO_THROW(plan_with([](auto& o) {
    o.sink = std::numeric_limits<Index>::max();
    o.recent = std::numeric_limits<Index>::max();
    o.queries = std::numeric_limits<Index>::max();
  }));
}

}  // namespace
}  // namespace kvbench::test_plan
