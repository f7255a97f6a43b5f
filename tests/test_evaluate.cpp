// `kvbench evaluate` on caches made by hand: figures against slow loops, bytes and budgets by hand.
// Refusals and exit codes: test_evaluate_refusals.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "caches_files.hpp"
#include "evaluate_run.hpp"
#include "held_sets.hpp"
#include "make_head.hpp"

namespace kvbench::test_evaluate {
namespace {

namespace fs = std::filesystem;
using namespace testing_caches;
using testing_replay::expect_refusal;
using testing_replay::untimed;

// ----------------------------------------------------------------------------- the slow references

// Entries of a file as a weighted set; of a denominator without values.
void add_entries(const Matrix& k, const Matrix* v, const std::vector<float>& logs,
                 std::vector<reference::Weighted>& to) {
  const reference::Rows keys = reference::rows_of(k);
  const reference::Rows values =
      v == nullptr ? reference::Rows(keys.size()) : reference::rows_of(*v);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const reference::Real log_weight = logs.empty() ? 0.0F : logs[i];
    to.push_back({keys[i], values[i], std::exp(log_weight)});
  }
}

SlowErrors slow_errors_of(const KvHead& head, Index g, const HeadCache& c) {
  return slow_errors(head, g, kQueries, [&](Index j) {
    std::vector<Index> exact = positions(0, kSink);
    for (Index i = head.n() - kRecent; i <= j; ++i) {
      exact.push_back(i);
    }
    HeldSets sets = held_sets(head, exact, {});
    add_entries(c.k, &c.v, c.log_weight, sets.numerator);
    if (c.denominator) {
      const Matrix& keys = c.denominator->k ? *c.denominator->k : c.k;
      add_entries(keys, nullptr, c.denominator->log_weight, sets.denominator);
    } else {
      sets.denominator = sets.numerator;
    }
    return sets;
  });
}

// Each row's figures against the slow loops over what `make` gives.
void expect_figures(const std::string& trace, const std::string& table, const Make& make,
                    double tolerance) {
  const TraceReader reader(trace);
  const std::vector<Fields> rows = untimed(table);
  ASSERT_EQ(rows.size(), 16U);
  for (const Fields& row : rows) {
    const auto text = [&](const char* name) { return row[column_index(name)]; };
    const CachePlace place{text("prompt"), std::stol(text("layer")), std::stol(text("kv_head"))};
    const KvHead head =
        reader.read_head(place.prompt == "p0" ? 0 : 1, place.layer == 0 ? 0 : 1, place.kv_head);
    const Index g = std::stol(text("q_head")) - 2 * place.kv_head;
    const SlowErrors expected = slow_errors_of(head, g, *make(head, place));
    double error = -1.0;
    double log_error = -1.0;
    ASSERT_TRUE(parse_number(text("rel_error"), error));
    ASSERT_TRUE(parse_number(text("log_z_error"), log_error));
    EXPECT_EQ(text("status"), "ok");
    EXPECT_LE(std::abs(error - expected.rel_error), tolerance);
    EXPECT_LE(std::abs(log_error - expected.log_z_error), tolerance);
  }
}

// Parameters are text of another program, whatever they mean in kvbench.
TEST_F(EvaluateTest, ParametersAreNotThoseOfOwnMethods) {
  CacheGroup group = named("mine", 1.0);
  group.params =
      "note=gr\xc3\xb6\xc3\x9f"
      "er;store=query-head";
  write({{group, [](const KvHead& head, const CachePlace&) {
            return held(head, kSink, head.n() - kRecent);
          }}});
  EXPECT_EQ(run(again()).failed, 0);
  EXPECT_EQ(untimed(at("out.csv")).front()[column_index("params")], group.params);
}

TEST_F(EvaluateTest, WhoKeepsEverythingIsExact) {
  const Make all = [](const KvHead& head, const CachePlace&) {
    return held(head, kSink, head.n() - kRecent);
  };
  write({{named("mine", 1.0), all}});
  run(again());
  ReplayOptions o = options("exact.csv", "");
  o.algorithms = {"exact"};
  o.precision = Precision::float64;
  run(o);
  const auto rows = untimed(at("out.csv"));
  const auto exact = untimed(o.out);
  ASSERT_EQ(rows.size(), exact.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const char* name :
         {"trace",       "prompt",     "layer",           "q_head",    "kv_head",
          "protocol",    "sink",       "recent",          "n_tokens",  "n_queries",
          "tokens_kept", "bytes",      "full_bytes",      "ratio",     "middle_ratio",
          "aux_bytes",   "peak_bytes", "transient_bytes", "mass_kept", "amnesia_count",
          "status"}) {
      EXPECT_EQ(rows[i][column_index(name)], exact[i][column_index(name)]) << name;
    }
    double error = 1.0;
    ASSERT_TRUE(parse_number(rows[i][column_index("rel_error")], error));
    EXPECT_LE(error, 1e-12);  // float64 sums of 60 terms in two orders
    EXPECT_EQ(rows[i][column_index("algorithm")], "mine");
    EXPECT_EQ(rows[i][column_index("budget_requested")], "1");
    EXPECT_EQ(rows[i][column_index("scores")], "none");
  }
  expect_figures(trace_, at("out.csv"), all, 1e-12);
}

TEST_F(EvaluateTest, WhoKeepsNothingHasSinksAndRecentTokens) {
  const Make none = [](const KvHead& head, const CachePlace&) { return held(head, kSink, kSink); };
  write({{named("none", 0.0), none}});
  run(again());
  expect_figures(trace_, at("out.csv"), none, 1e-12);
  for (const Fields& row : untimed(at("out.csv"))) {
    EXPECT_EQ(row[column_index("tokens_kept")], "16");
    EXPECT_EQ(row[column_index("bytes")], std::to_string(16 * 14 * 2));
    EXPECT_EQ(row[column_index("middle_ratio")], "0");
  }
}

// Made and held entries under weights, with denominators of all three forms. A weight is a float:
// exp of its logarithm is rounded to 2^-24 of itself, a quotient to twice that.
constexpr double kWeightRounding = 4 * 0x1p-24;

TEST_F(EvaluateTest, WeightsAndDenominatorsAsTheDocumentationSays) {
  for (const int form : {0, 1, 2, 3}) {
    const Make make = [form](const KvHead& head, const CachePlace& place) {
      std::mt19937_64 random(static_cast<unsigned>(form * 100 + place.layer * 10 + place.kv_head));
      std::normal_distribution<float> normal;
      HeadCache c = held(head, 10, 16);
      for (const Index i : {1, 4}) {  // two of the six are made
        c.token[i] = -1;
        for (Index j = 0; j < head.d(); ++j) {
          c.k.row(i)[j] = round_to(DType::float16, normal(random));
        }
      }
      for (Index i = 0; i < 6; ++i) {
        c.log_weight.push_back(i == 2 ? -std::numeric_limits<float>::infinity() : normal(random));
      }
      if (form > 0) {
        CacheDenominator& den = c.denominator.emplace();
        if (form > 1) {
          den.k = random_rows(9, head.d(), DType::float16, random);
        }
        for (Index i = 0; i < (form > 1 ? 9 : 6) && form < 3; ++i) {
          den.log_weight.push_back(normal(random));
        }
      }
      return c;
    };
    write({{named("mine"), make}});
    ReplayOptions e = again();
    e.overwrite = true;
    run(e);
    expect_figures(trace_, at("out.csv"), make, kWeightRounding);
    // aux_bytes is absent: 4 bytes for each weight that is stored; keys alone weigh 8 * 2 bytes.
    const Index aux = 24 + (form == 1 ? 24 : form == 2 ? 36 : 0);
    const Index keys = form > 1 ? 9 * 16 : 0;
    for (const Fields& row : untimed(at("out.csv"))) {
      EXPECT_EQ(row[column_index("aux_bytes")], std::to_string(aux));
      EXPECT_EQ(row[column_index("bytes")], std::to_string((16 + 6) * 28 + keys + aux));
      EXPECT_EQ(row[column_index("tokens_kept")], "20");
      EXPECT_EQ(row[column_index("budget_requested")], "");
    }
  }
}

TEST_F(EvaluateTest, WhatTheFileSaysStandsInTheRow) {
  const Make make = [](const KvHead& head, const CachePlace&) {
    HeadCache c = held(head, 10, 12);
    c.token.assign(2, -1);
    c.log_weight = {1.0F, 1.0F};
    c.aux_bytes = 9;
    c.payload_bytes = 30;
    c.quantized = 2;
    c.transient_bytes = 77;
    c.compress_ms = 1.25;
    c.scoring_queries = 6;
    c.degenerate = "one cell";
    c.diag = "a=1;b=x y";
    return c;
  };
  CacheGroup group{"any name", "h2o+mine", "T=3;x=a b", 0.5, 12345678901234567890U, "all", "head"};
  write({{group, make}});
  EXPECT_EQ(run(again()).degenerate, 16);
  for (const Fields& row : read_table(at("out.csv")).rows) {
    const auto text = [&](const char* name) { return row[column_index(name)]; };
    EXPECT_EQ(text("algorithm"), "h2o+mine");
    EXPECT_EQ(text("params"), "T=3;x=a b");
    EXPECT_EQ(text("budget_requested"), "0.5");
    EXPECT_EQ(text("seed"), "12345678901234567890");
    EXPECT_EQ(text("scores"), "all");
    EXPECT_EQ(text("aux_bytes"), "9");
    EXPECT_EQ(text("bytes"), std::to_string(16 * 28 + 39));
    EXPECT_EQ(text("peak_bytes"), text("bytes"));
    EXPECT_EQ(text("tokens_kept"), "18");
    EXPECT_EQ(text("transient_bytes"), "77");
    EXPECT_EQ(text("compress_ms"), "1.25");
    EXPECT_EQ(text("scoring_queries"), "6");
    EXPECT_EQ(text("status"), "degenerate: one cell");
    EXPECT_EQ(text("diag"), "a=1;b=x y");
    EXPECT_EQ(text("model"), "made up");
    EXPECT_EQ(text("dtype"), "float16");
    EXPECT_EQ(text("precision"), name(again().precision));
  }
}

// -------------------------------------------------------------------------------------- budgets

// Middles: 44 tokens of p0, 21 of p1, 28 bytes each. A quarter of p0's is 11 tokens.
TEST_F(EvaluateTest, OneByteOverTheBudgetIsRefused) {
  const auto with = [](Index aux) {
    return [aux](const KvHead& head, const CachePlace& place) {
      HeadCache c = held(head, kSink, kSink + (place.prompt == "p0" ? 11 : 5));
      if (place.prompt == "p0" && place.layer == 2 && place.kv_head == 1) {
        c.aux_bytes = aux;
      }
      return c;
    };
  };
  write({{named("good", 0.25), with(0)}});
  EXPECT_EQ(run(again()).failed, 0);
  write({{named("good", 0.25), with(0)}, {named("over", 0.25), with(1)}});
  expect_refusal([&] { run(again("over.csv")); },
                 at("c.h5") +
                     ": /over/prompts/p0/layers/2/1: 309 bytes of keys, values and "
                     "aux_bytes, expected at most 308 by the budget 0.25");
  EXPECT_FALSE(fs::exists(at("over.csv")));
  EXPECT_FALSE(fs::exists(at("over.csv.json")));
  // Heads that are not evaluated may be what they like.
  ReplayOptions e = again("part.csv");
  e.layers = {0};
  EXPECT_GT(run(e).rows, 0);
}

TEST_F(EvaluateTest, HeadsThatShareABudgetMeetItTogether) {
  // Twice the share where `twice` says, else nothing; some heads are not in the group.
  const auto uneven = [](const std::function<bool(const CachePlace&)>& twice,
                         const std::function<bool(const CachePlace&)>& there) {
    return [=](const KvHead& head, const CachePlace& place) -> std::optional<HeadCache> {
      if (!there(place)) {
        return std::nullopt;
      }
      const Index share = place.prompt == "p0" ? 11 : 5;
      return held(head, kSink, kSink + (twice(place) ? 2 * share : 0));
    };
  };
  const auto everywhere = [](const CachePlace&) { return true; };
  const auto by_head = uneven([](const CachePlace& at) { return at.kv_head == 1; }, everywhere);
  const auto by_layer = uneven([](const CachePlace& at) { return at.layer == 2; }, everywhere);
  const auto one_layer = uneven(everywhere, [](const CachePlace& at) { return at.layer == 2; });
  const auto refused = [&](const std::string& scope, const Make& make, const std::string& part) {
    write({{named("all"), uneven(everywhere, everywhere)}, {named("mine", 0.25, scope), make}});
    ReplayOptions e = again();
    e.overwrite = true;
    expect_refusal([&] { run(e); }, part);
  };
  const auto accepted = [&](const std::string& scope, const Make& make,
                            const std::vector<Index>& layers = {}) {
    write({{named("mine", 0.25, scope), make}});
    ReplayOptions e = again();
    e.overwrite = true;
    e.layers = layers;
    EXPECT_EQ(run(e).failed, 0) << scope;
  };
  refused("head", by_head, "616 bytes of keys");
  accepted("layer", by_head);
  accepted("layers", by_head);
  refused("layer", by_layer,
          "1232 bytes of keys, values and aux_bytes with the other KV heads of the layer, expected "
          "at most 616 by the budget 0.25");
  accepted("layers", by_layer);
  // One layer of those that share, whose heads have twice the mean: the others have less.
  accepted("layers", by_layer, {2});
  // A group's share is of the layers that it holds, whatever other groups hold.
  refused("layers", one_layer,
          "1232 bytes of keys, values and aux_bytes with the other heads and layers, expected at "
          "most 616");
}

}  // namespace
}  // namespace kvbench::test_evaluate
