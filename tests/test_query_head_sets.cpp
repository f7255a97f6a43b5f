// `store=query-head` against a trace whose keys and values are repeated for every query head: there
// each query head has a KV head of its own, and an equal part of the bytes is a smaller budget.
#include <map>

#include "algorithms/grid.hpp"
#include "extra_traces.hpp"
#include "replay_run.hpp"
#include "trace/reader.hpp"

namespace kvbench::test_query_head_sets {
namespace {

using testing_replay::expect_refusal;
using testing_traces::alter;
using testing_traces::Id;

constexpr Index kTokens = 700;
constexpr Index kGroup = 2;
constexpr Index kHeads = 4;
constexpr Index kQueries = 32;
constexpr Index kDim = 64;
constexpr Index kExact = 16 + 128;  // sinks and recent tokens
constexpr Index kPairBytes = 2 * kDim * 2;

class QueryHeadSets : public testing_replay::ReplayTest {
 protected:
  void SetUp() override {
    ReplayTest::SetUp();
    grouped_ = write("grouped.h5", kHeads / kGroup);
    repeated_ = write("repeated.h5", kHeads);
  }

  // Layer 3 of small.h5, its last tokens, with `kv_heads` KV heads.
  std::string write(const std::string& name, Index kv_heads) const {
    const TraceReader reader(KVBENCH_TEST_DATA_DIR "/small.h5");
    TraceHeader header;
    header.model = "model";
    header.gzip_level = 0;
    header.scale = 0.125;
    const std::string path = (folder_ / name).string();
    TraceWriter writer(path, header);
    writer.begin_prompt("p", kTokens);
    LayerSpec spec;
    spec.layer = 3;
    spec.q_heads = kHeads;
    spec.kv_heads = kv_heads;
    spec.nq = kTokens;
    spec.d = spec.dv = kDim;
    writer.begin_layer(spec);
    std::vector<KvHead> heads;
    for (Index h = 0; h < kHeads / kGroup; ++h) {
      heads.push_back(reader.read_head(0, 3, h));
    }
    const Range last{heads[0].n() - kTokens, heads[0].n()};
    for (Index h = 0; h < kHeads; ++h) {
      writer.write_q(h, heads[h / kGroup].q[h % kGroup].view().slice(last));
    }
    for (Index h = 0; h < kv_heads; ++h) {
      const KvHead& head = heads[h * kHeads / kv_heads / kGroup];
      writer.write_k(h, head.k.view().slice(last));
      writer.write_v(h, head.v.view().slice(last));
    }
    writer.write_o_proj(testing_replay::made_projection(24, kHeads * kDim, 3));
    writer.write_rope(testing_replay::rope_tables(kTokens + 512, kDim));
    writer.close();
    alter(path, "/prompts/p/layers/3", [&](hid_t layer) { put_extra(layer, kv_heads); });
    return path;
  }

  // One set of extra queries, and scores; those of a KV head repeated as its keys are.
  static void put_extra(hid_t layer, Index kv_heads) {
    constexpr Index m = 9;
    std::mt19937_64 generator(5);
    const Matrix q = normal_matrix(kHeads * m, kDim, 1.0, generator);
    const Matrix k = normal_matrix(kHeads / kGroup * m, kDim, 1.0, generator);
    const Matrix s = normal_matrix(kHeads / kGroup, kTokens, 1.0, generator);
    std::vector<float> keys;
    std::vector<float> scores;
    for (Index h = 0; h < kv_heads; ++h) {
      const Index of = h * kHeads / kv_heads / kGroup;
      keys.insert(keys.end(), k.row(of * m), k.row(of * m) + m * kDim);
      scores.insert(scores.end(), s.row(of), s.row(of) + kTokens);
    }
    const Id at = testing_traces::make_group(layer, "extra/repeat/0");
    ASSERT_GE(at, 0);
    const Id half = testing_traces::make_type(DType::float16, false);
    testing_traces::put_values(at, "q", {kHeads, m, kDim}, half, H5T_NATIVE_FLOAT,
                               std::vector<float>(q.data(), q.data() + kHeads * m * kDim));
    testing_traces::put_values(at, "k", {static_cast<hsize_t>(kv_heads), m, kDim}, half,
                               H5T_NATIVE_FLOAT, keys);
    testing_traces::SegmentParts parts;
    parts.queries = m;
    parts.from = kTokens - kQueries;
    parts.prefix = kTokens - kQueries;
    parts.first = 0;
    parts.last = kTokens - kQueries;
    parts.residual_norm.assign(m, 1.0F);
    testing_traces::put_segment_parts(at, parts);
    testing_traces::put_scores(layer, "other", kv_heads, kTokens, scores, kTokens - kQueries);
  }

  ReplayOptions options(const std::string& trace, const std::vector<std::string>& algorithms,
                        double budget, const std::string& out) const {
    ReplayOptions o = basic(out);
    o.traces = {trace};
    o.algorithms = algorithms;
    o.budgets = {budget};
    o.sink = 16;
    o.recent = 128;
    o.queries = kQueries;
    o.threads = 2;
    o.overwrite = true;
    return o;
  }

  static std::string cell(const Fields& row, const char* column) {
    return row[column_index(column)];
  }
  static Index whole(const Fields& row, const char* column) {
    Index x = -1;
    EXPECT_TRUE(parse_number(cell(row, column), x)) << column << ": " << cell(row, column);
    return x;
  }

  // Rows by algorithm, parameters without the option, query head and seed.
  static std::map<std::string, Fields> by_place(const ReplayOptions& o) {
    std::map<std::string, Fields> out;
    run(o);
    for (const Fields& row : read_table(o.out).rows) {
      std::string params = cell(row, "params");
      const std::size_t at = params.find("store=query-head");
      if (at != std::string::npos) {
        params.erase(at, std::string("store=query-head;").size());
      }
      if (params.ends_with(';')) {
        params.pop_back();
      }
      out[cell(row, "algorithm") + " " + params + " " + cell(row, "q_head") + " " +
          cell(row, "seed")] = row;
    }
    return out;
  }

  std::string grouped_;
  std::string repeated_;
};

constexpr std::array kFigures{"rel_error",     "rel_error_mean", "rel_error_max",  "eps_fro",
                              "eps_op",        "log_z_error",    "cosine",         "mass_kept",
                              "amnesia_count", "amnesia_mass",   "tokens_kept",    "diag",
                              "scores",        "full_bytes",     "scoring_queries"};

struct Specs {
  std::vector<std::string> plain;
  std::vector<std::string> by_head;  // with the option
};

// All methods whose scope is a head.
Specs specs(bool random) {
  std::vector<std::string> all = {"h2o@quant-kivi", "snapkv+balancekv", "h2o+kmeans",
                                  "snapkv:ref=repeat"};
  for (const Variant& v : expand_algorithms({"all"})) {
    if (v.scope() == Scope::head && v.name() != "duoattention") {
      all.push_back(v.name());
    }
  }
  Specs out;
  for (const std::string& spec : all) {
    if (expand_algorithms({spec}).front().random() == random) {
      out.plain.push_back(spec);
      out.by_head.push_back(spec + (spec.find(':') == std::string::npos ? ":" : ";") +
                            "store=query-head");
    }
  }
  return out;
}

TEST_F(QueryHeadSets, EqualATraceWithKeysAndValuesRepeatedToTheBit) {
  const auto [plain, by_head] = specs(/*random=*/false);
  ASSERT_GT(plain.size(), 25U);
  for (const double budget : {0.5, 0.25}) {
    const auto expected = by_place(options(repeated_, plain, budget / kGroup, "repeated.csv"));
    const auto got = by_place(options(grouped_, by_head, budget, "grouped.csv"));
    ASSERT_EQ(got.size(), expected.size());
    std::map<std::string, Index> sums;  // bytes of the middle, by method and KV head
    int measured = 0;
    for (const auto& [place, row] : got) {
      ASSERT_TRUE(expected.contains(place)) << place;
      const Fields& other = expected.at(place);
      ASSERT_EQ(status_kind(cell(row, "status")), status_kind(cell(other, "status"))) << place;
      if (status_kind(cell(row, "status")) == "infeasible") {
        EXPECT_TRUE(cell(row, "status").starts_with("infeasible: one of 2 query heads: ")) << place;
        continue;
      }
      ++measured;
      for (const char* column : kFigures) {
        ASSERT_EQ(cell(row, column), cell(other, column)) << place << " " << column;
      }
      const std::string set = cell(row, "algorithm") + cell(row, "kv_head");
      sums[set] += whole(other, "bytes") - kExact * kPairBytes;
      if (whole(row, "q_head") % kGroup == kGroup - 1) {
        EXPECT_EQ(whole(row, "bytes"), kExact * kPairBytes + sums[set]) << place;
        sums[set] = 0;
      }
    }
    EXPECT_GT(measured, 80);
  }
}

TEST_F(QueryHeadSets, EqualOneSetWhereTheGroupHasOneHead) {
  for (const bool random : {false, true}) {
    const auto [plain, by_head] = specs(random);
    ReplayOptions o = options(repeated_, plain, 0.25, "plain.csv");
    o.seeds = "2";
    ReplayOptions each = options(repeated_, by_head, 0.25, "each.csv");
    each.seeds = "2";
    const auto expected = by_place(o);
    const auto got = by_place(each);
    ASSERT_EQ(got.size(), expected.size());
    for (const auto& [place, row] : got) {
      for (const char* column : kFigures) {
        ASSERT_EQ(cell(row, column), cell(expected.at(place), column)) << place << " " << column;
      }
      ASSERT_EQ(cell(row, "bytes"), cell(expected.at(place), "bytes")) << place;
    }
  }
}

TEST_F(QueryHeadSets, RandomNumbersDifferBetweenQueryHeads) {
  std::set<std::string> kept;
  for (const auto& [place, row] :
       by_place(options(grouped_, {"uniform:store=query-head"}, 0.25, "out.csv"))) {
    EXPECT_EQ(whole(row, "tokens_kept"), kExact + (kTokens - kExact) / 4 / kGroup) << place;
    kept.insert(cell(row, "mass_kept"));
  }
  EXPECT_EQ(kept.size(), static_cast<std::size_t>(kHeads));
}

TEST_F(QueryHeadSets, TheDefaultIsNoParameter) {
  const auto v = expand_algorithms({"h2o:store=kv-head", "h2o", "h2o:store=query-head,kv-head"});
  ASSERT_EQ(v.size(), 2U);
  ASSERT_NE(v[0].by_query_head(), v[1].by_query_head());
  EXPECT_EQ(v[v[0].by_query_head() ? 1 : 0].params.canonical(),
            expand_algorithms({"h2o"}).front().params.canonical());
}

TEST_F(QueryHeadSets, IsRejectedWhereThereIsOneSet) {
  expect_refusal([] { expand_algorithms({"adakv:store=query-head"}); },
                 "adakv: parameter store: got query-head, expected kv-head");
  expect_refusal([] { expand_algorithms({"h2o:store=each"}); }, "expected kv-head|query-head");
  expect_refusal([] { expand_algorithms({"balancekv-stream:store=query-head"}, Protocol::stream); },
                 "balancekv-stream: does not run under --protocol stream");
  ReplayOptions o = options(grouped_, {"h2o:store=query-head"}, 0.25, "out.csv");
  o.kept = true;
  expect_refusal([&] { make_plan(o); }, "--kept, --export-caches: got h2o with store=query-head");
  o.kept = false;
  o.export_caches = (folder_ / "caches.h5").string();
  expect_refusal([&] { make_plan(o); }, "expected store=kv-head");
}

}  // namespace
}  // namespace kvbench::test_query_head_sets
