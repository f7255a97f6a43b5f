// kvbench cluster from a trace to its tables, and traces whose layers hold keys alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>

#include "cluster_runs.hpp"
#include "core/file_lock.hpp"
#include "refusal.hpp"
#include "report/csv.hpp"
#include "report/table_spec.hpp"
#include "trace/inspect.hpp"

namespace kvbench::test_cluster_run {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;
using namespace testing_traces;

constexpr const char* kLayer = "/prompts/a/layers/0";

ClusterOptions options(const std::string& trace, const std::string& folder = "out") {
  return testing_cluster::options(trace, folder);
}

ClusterResult run(const ClusterOptions& o) {
  return testing_cluster::go(make_cluster_plan(o));
}

Table table(const ClusterOptions& o, const std::string& name) {
  return read_table(fs::path(o.out) / name);
}

std::set<std::string> values(const Table& t, const char* column) {
  std::set<std::string> out;
  for (const Fields& row : t.rows) {
    out.insert(row[t.column(column)]);
  }
  return out;
}

void expect_refusal(const ClusterOptions& o, const std::string& words) {
  testing_replay::expect_refusal([&] { run(o); }, words);
}

TEST(ClusterRun, BadRotaryTablesAreFoundBeforeAnythingIsWritten) {
  const std::string trace =
      make_trace(temporary_path("t.h5"), {.tokens = {40}, .rope = rope_tables(552, 8)});
  alter(trace, "/rope", [](hid_t rope) {
    const Id cos = H5Dopen2(rope, "cos", H5P_DEFAULT);
    const std::vector<float> zeros(552 * 4, std::nanf(""));
    H5Dwrite(cos, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data());
    H5Adelete(cos, "sha256");
  });
  const ClusterOptions o = options(trace);
  expect_refusal(o, "/rope/cos");
  EXPECT_FALSE(fs::exists(o.out));
}

TEST(ClusterRun, RowsOfEveryTable) {
  ClusterOptions o =
      options(make_trace(temporary_path("t.h5"), {.tokens = {48, 20}, .layers = {0, 3}}));
  o.study.max_points = 10;
  const ClusterResult r = run(o);
  EXPECT_EQ(r.heads, 8);
  EXPECT_FALSE(r.interrupted);
  // Per head and set: k = 1, 2, 4, 8, 16 of 48 tokens and 1, 2, 4, 8 of 20, twice two layers
  // and heads, keys and values.
  EXPECT_EQ(table(o, "coverage.csv").rows.size(), 4U * 2 * (5 + 4));
  // Prefixes 16, 32, 48 and 16, 20 of four deltas.
  EXPECT_EQ(table(o, "delta.csv").rows.size(), 4U * 2 * 4 * (3 + 2));
  EXPECT_EQ(table(o, "growth.csv").rows.size(), 8U * 2 * 4);
  EXPECT_EQ(table(o, "norms.csv").rows.size(), 8U * 4);
  const Table norms = table(o, "norms.csv");
  EXPECT_EQ(values(norms, "head"), (std::set<std::string>{"0", "1", "2", "3"}));
  EXPECT_EQ(values(norms, "what"), (std::set<std::string>{"queries", "keys", "values"}));
  for (const Fields& row : norms.rows) {
    double before = 0.0;
    for (const char* q : {"min", "p25", "p50", "p75", "p95", "max"}) {
      const double x = std::stod(row[norms.column(q)]);
      EXPECT_LE(before, x);
      before = x;
    }
  }
  const Table points = table(o, "points.csv");
  EXPECT_EQ(values(points, "prompt"), (std::set<std::string>{"p0", "p1"}));
  EXPECT_EQ(points.header.size(), 8U + 3 + 2);
  const auto centers = std::count_if(points.rows.begin(), points.rows.end(), [&](const Fields& f) {
    return f[points.column("is_center")] == "1";
  });
  EXPECT_EQ(centers, 8 * 2 * 4);
  std::size_t rows = 0;
  for (const auto& [name, columns] : cluster_columns()) {
    rows += table(o, name).rows.size();
  }
  EXPECT_EQ(r.rows, static_cast<Index>(rows));
  const std::string manifest = read_bytes(fs::path(o.out) / "cluster.json");
  for (const char* words :
       {"\"kvbench-manifest\"", "\"model\": \"made up\"", "\"dtype\": \"float16\""}) {
    EXPECT_NE(manifest.find(words), std::string::npos) << words;
  }
}

TEST(ClusterRun, RawRowsOfTwoWidths) {
  ClusterOptions o = options(make_trace(temporary_path("t.h5")));  // d = 8, dv = 6
  o.study.components = 0;
  run(o);
  const Table points = table(o, "points.csv");
  EXPECT_EQ(points.header[points.column("run_id") - 1], "x7");
  const TraceReader reader(o.traces[0]);
  for (const Fields& row : points.rows) {
    const bool keys = row[points.column("what")] == "keys";
    const Matrix rows = reader.read_rows(0, 0, keys ? LayerTensor::keys : LayerTensor::values,
                                         std::stol(row[points.column("kv_head")]));
    const float* expected = rows.row(std::stol(row[points.column("token")]));
    for (Index c = 0; c < rows.cols(); ++c) {
      EXPECT_EQ(std::stof(row[points.column("x" + std::to_string(c))]), expected[c]);
    }
    EXPECT_EQ(row[points.column("x6")].empty(), !keys);
  }
}

TEST(ClusterRun, StoppedRunKeepsFinishedHeadsOnly) {
  const ClusterOptions o = options(make_trace(temporary_path("t.h5")));
  const std::atomic<bool> stop = true;
  const ClusterResult r = run_cluster(make_cluster_plan(o), "kvbench cluster", stop);
  EXPECT_TRUE(r.interrupted);
  EXPECT_EQ(r.heads, 0);
  EXPECT_FALSE(fs::exists(o.out));
}

TEST(ClusterRun, OverwriteKeepsTheEarlierTablesUntilThereAreNewOnes) {
  ClusterOptions o = options(make_trace(temporary_path("t.h5")));
  run(o);
  const std::string before = read_bytes(fs::path(o.out) / "coverage.csv");
  const std::string manifest = read_bytes(fs::path(o.out) / kClusterManifest);
  o.overwrite = true;
  o.study.deltas_rel = {0.5};
  {
    const FileLock lock(fs::path(o.out) / kClusterManifest);
    expect_refusal(o, "another run is writing");
  }
  EXPECT_EQ(read_bytes(fs::path(o.out) / "coverage.csv"), before);
  EXPECT_EQ(read_bytes(fs::path(o.out) / kClusterManifest), manifest);
  run(o);
  EXPECT_NE(read_bytes(fs::path(o.out) / kClusterManifest), manifest);
}

TEST(ClusterRun, UnfinishedTablesOfAKilledRunAreReplaced) {
  ClusterOptions o = options(make_trace(temporary_path("t.h5")));
  const fs::path folder = o.out;
  fs::create_directories(folder);
  write_bytes(folder / "points.csv.tmp", "trace,prompt,layer,kv_head,what,tok");
  write_bytes(folder / "coverage.csv.tmp", "");
  run(o);
  EXPECT_FALSE(fs::exists(folder / "points.csv.tmp"));
  EXPECT_FALSE(fs::exists(folder / "coverage.csv.tmp"));
  o.overwrite = true;
  write_bytes(folder / "points.csv.tmp", "precious");
  expect_refusal(o, "points.csv.tmp");
  EXPECT_EQ(read_bytes(folder / "points.csv.tmp"), "precious");
}

// Others: tests/cli/cluster.sh.
TEST(ClusterRun, BadOptions) {
  const ClusterOptions good = options(make_trace(temporary_path("t.h5")));
  const auto bad = [&](const char* words, auto change) {
    ClusterOptions o = good;
    change(o);
    expect_refusal(o, words);
    EXPECT_FALSE(fs::exists(o.out)) << words;
  };
  bad("--k", [](auto& o) { o.study.centers = 0; });
  bad("--max-k", [](auto& o) { o.study.max_k = 0; });
  bad("--max-clusters", [](auto& o) { o.study.max_clusters = 0; });
  bad("--pca", [](auto& o) { o.study.components = -1; });
  bad("--max-points", [](auto& o) { o.study.max_points = -1; });
  bad("--threads", [](auto& o) { o.threads = -1; });
  bad("duplicate trace name", [](auto& o) { o.traces.push_back(o.traces[0]); });
  bad("--kept-by", [](auto& o) {
    o.kept_by = {"x.csv"};
    o.points = PointsFormat::none;
  });
}

// ------------------------------------------------------------------------------------ kept sets

// A line of a kept table; `step` and `tokens` last, as its header says.
std::string kept_line(const std::string& algorithm, const std::string& params,
                      const std::string& seed, const std::string& budget, Index step,
                      const std::string& tokens, const std::string& n = "48",
                      const std::string& head = "0") {
  Fields out;
  for (const std::string& column : kept_table().header()) {
    out.push_back(column == "schema"             ? "1.0"
                  : column == "trace"            ? "t.h5"
                  : column == "prompt"           ? "p0"
                  : column == "layer"            ? "0"
                  : column == "kv_head"          ? head
                  : column == "algorithm"        ? algorithm
                  : column == "params"           ? params
                  : column == "seed"             ? seed
                  : column == "budget_requested" ? budget
                  : column == "n_tokens"         ? n
                  : column == "step"             ? std::to_string(step)
                  : column == "tokens"           ? tokens
                                                 : "x");
  }
  return csv_line(out);
}

TEST(ClusterRun, KeptByLabels) {
  ClusterOptions o = options(make_trace(temporary_path("t.h5")));
  const std::string kept = temporary_path("out.kept.csv");
  o.kept_by = {kept};
  const std::string head = csv_line(kept_table().header());
  write_bytes(kept, head + kept_line("local", "", "0", "0.5", 15, "0-15") +
                        kept_line("local", "", "0", "0.5", 47, "0-1 40-47") +
                        kept_line("uniform", "T=1", "0", "", 47, "1 3") +
                        kept_line("uniform", "T=1", "1", "", 47, "1") +
                        kept_line("uniform", "T=auto;block=64", "0", "0.5", 47, "46") +
                        kept_line("uniform", "T=1", "1", "", 31, "2"));
  run(o);
  const Table points = table(o, "points.csv");
  const auto labels = [&](const char* kv_head, const char* what, const char* token) {
    for (const Fields& row : points.rows) {
      if (row[points.column("kv_head")] == kv_head && row[points.column("what")] == what &&
          row[points.column("token")] == token) {
        return row[points.column("kept_by")];
      }
    }
    return std::string("no such row");
  };
  for (const char* what : {"keys", "values"}) {
    EXPECT_EQ(labels("0", what, "0"), "local");
    EXPECT_EQ(labels("0", what, "1"), "local;uniform T=1 seed=0;uniform T=1 seed=1");
    EXPECT_EQ(labels("0", what, "2"), "");  // an earlier step
    EXPECT_EQ(labels("0", what, "3"), "uniform T=1 seed=0");
    EXPECT_EQ(labels("0", what, "46"), "local;uniform budget_requested=0.5 T=auto seed=0");
    EXPECT_EQ(labels("0", what, "47"), "local");
    EXPECT_EQ(labels("1", what, "1"), "");  // the file says nothing about this head
  }

  o.overwrite = true;
  const auto bad = [&](const std::string& line, const std::string& words) {
    write_bytes(kept, head + line);
    expect_refusal(o, words);
  };
  bad("", "no kept set");
  bad(kept_line("local", "", "0", "", 47, "0", "48", "7"), "no kept set");
  bad(kept_line("local", "", "0", "", 47, "0", "49"), "row 1: got n_tokens 49, expected 48");
  bad(kept_line("local", "", "0", "", 47, "0-48"), "row 1: kept tokens `0-48`");
  bad(kept_line("local", "", "0", "", 48, "0"), "step `48`");
  bad(kept_line("local", "", "0", "", 47, "0") + kept_line("local", "", "0", "", 47, "1"),
      "row 2: duplicate step 47 of local");
  std::string other = kept_line("local", "", "0", "", 47, "0");
  other.replace(other.find(",x,"), 3, ",y,");  // another protocol, the same label
  bad(kept_line("local", "", "0", "", 47, "0") + other, "duplicate label 'local'");
  write_bytes(kept, "trace,prompt\n");
  expect_refusal(o, "column `schema` is missing");
}

// ---------------------------------------------------------------------------------- keys alone

std::string without(const std::string& name, const std::vector<const char*>& datasets) {
  const std::string path = planted_trace(name);
  alter(path, kLayer, [&](hid_t layer) {
    for (const char* d : datasets) {
      H5Ldelete(layer, d, H5P_DEFAULT);
    }
  });
  return path;
}

TEST(KeysAlone, AreReadWhereTheyAreEnough) {
  const std::string whole = planted_trace("whole.h5");
  const TraceReader all(whole);
  const KvHead full = all.read_head(0, 0, 1);
  for (const auto& [name, missing] : std::vector<std::pair<const char*, std::vector<const char*>>>{
           {"k.h5", {"q", "v"}}, {"kv.h5", {"q"}}, {"kq.h5", {"v"}}}) {
    const std::string path = without(name, missing);
    const bool q = std::find(missing.begin(), missing.end(), std::string("q")) == missing.end();
    const bool v = std::find(missing.begin(), missing.end(), std::string("v")) == missing.end();
    const TraceReader reader(path, Require::keys);
    const LayerMeta& layer = reader.meta().prompts[0].layers[0];
    EXPECT_EQ(layer.has(LayerTensor::queries), q);
    EXPECT_TRUE(layer.has(LayerTensor::keys));
    EXPECT_EQ(layer.has(LayerTensor::values), v);
    const KvHead head = reader.read_head(0, 0, 1);
    EXPECT_TRUE(std::equal(full.k.data(), full.k.data() + full.n() * full.d(), head.k.data()));
    EXPECT_EQ(head.group(), q ? full.group() : 0);
    EXPECT_EQ(head.dv(), v ? full.dv() : 0);
    EXPECT_EQ(head.n(), full.n());
    const auto norms = measure_norms(reader);
    EXPECT_EQ(norms[0][0].queries.has_value(), q);
    EXPECT_EQ(norms[0][0].values.has_value(), v);
    EXPECT_EQ(norms[0][0].keys.max, measure_norms(all)[0][0].keys.max);
    // A replay needs all three, and says so.
    testing_replay::expect_refusal([&] { const TraceReader strict(path); }, "expected q, k and v");

    const ClusterOptions o = options(path, std::string(name) + ".out");
    EXPECT_EQ(run(o).heads, 3);
    std::set<std::string> what{"keys"};
    if (v) {
      what.insert("values");
    }
    EXPECT_EQ(values(table(o, "coverage.csv"), "what"), what);
    EXPECT_EQ(values(table(o, "points.csv"), "what"), what);
    if (q) {
      what.insert("queries");
    }
    EXPECT_EQ(values(table(o, "norms.csv"), "what"), what);
  }
}

TEST(KeysAlone, KeysAreNeededAndTheRestIsChecked) {
  const auto refused = [](const std::string& path, const char* words) {
    testing_replay::expect_refusal([&] { const TraceReader reader(path, Require::keys); }, words);
  };
  refused(without("no_k.h5", {"k"}), "/layers/0/k");
  const std::string path = without("odd.h5", {"v"});
  replace_dataset(path, "q", {6, 37, 25});
  refused(path, "width is 25");
  ClusterOptions o = options(without("only_k.h5", {"q", "v"}));
  o.what = {LayerTensor::values};
  expect_refusal(o, "have no values");
}

}  // namespace
}  // namespace kvbench::test_cluster_run
