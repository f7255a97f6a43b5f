#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "commands.hpp"
#include "config.hpp"
#include "core/error.hpp"
#include "exit_code.hpp"
#include "long_run.hpp"
#include "number_options.hpp"
#include "parse_enum.hpp"
#include "replay/cluster_run.hpp"
#include "report/manifest.hpp"
#include "terminal.hpp"

namespace kvbench {
namespace {

struct ClusterCommand {
  ClusterOptions cluster;
  std::vector<std::string> what{"keys", "values"};
};

void run(CLI::App& command, ClusterCommand& o) {
  apply_config(command, o.cluster.config);
  o.cluster.what.clear();
  for (const std::string& word : o.what) {
    o.cluster.what.push_back(
        parse_enum<LayerTensor>("--what", word, {LayerTensor::keys, LayerTensor::values}));
  }
  const std::atomic<bool>& stop =
      stop_on_signals("interrupted within a KV head; the rows of finished KV heads are kept");
  ClusterPlan plan = make_cluster_plan(o.cluster);
  plan.options.program_bytes = program_bytes();
  const ClusterResult r = run_cluster(plan, shell_line(command_arguments()), stop, call_before_end);
  log("{}: {} KV heads, {} rows in {:.1f} s\n", o.cluster.out, r.heads, r.rows, r.wall_s);
  expect_unchanged(r.changed_traces, o.cluster.out);
  if (r.interrupted) {
    log("interrupted; the rows of finished KV heads are kept\n");
    throw Exit{kExitInterrupted};
  }
}

}  // namespace

void add_cluster(CLI::App& app) {
  const auto o = std::make_shared<ClusterCommand>();
  ClusterOptions& c = o->cluster;
  CLI::App* sub = app.add_subcommand(
      "cluster", "Measure how keys and values cluster: coverage, growth, norms, points for t-SNE");
  sub->footer(
      "\nWrites one table per statistic (docs/schema.md), points.csv, and the "
      "manifest cluster.json. Key-only layers are accepted; missing queries or values give no "
      "rows.\n"
      "\nExample:\n"
      "  kvbench replay data/sample.h5 -o out.csv --algorithm bumblebee --budget 0.5 --kept\n"
      "  kvbench cluster data/sample.h5 -o clusters --kept-by out.kept.csv");
  sub->add_option("traces", c.traces, "Trace files (docs/trace_format.md)")
      ->required()
      ->type_name("TRACE.h5");
  sub->add_option("-o,--output", c.out, "Folder for the tables, created if missing")
      ->type_name("DIR");
  config_option(*sub, c.config);

  const char* what = "What to study";
  list_option(
      *sub, "--what", o->what,
      "Rows to cluster: keys, values or both. norms.csv always has queries, keys and values",
      "keys,values")
      ->capture_default_str()
      ->group(what);
  selection_options(*sub, c, "--kv-heads", "KV heads", what);

  const char* coverage = "Coverage (greedy k-center, first centre token 0)";
  integer_option(*sub, "--k", c.study.centers,
                 "Number of centres marked in points.csv, and a row of coverage.csv", "N")
      ->group(coverage);
  integer_option(
      *sub, "--max-k", c.study.max_k,
      "Largest k of the curve k = 1, 2, 4, ..., which ends at half the tokens. Time grows with it",
      "N")
      ->group(coverage);

  const char* growth = "Growth (online clusters)";
  list_option(*sub, "--deltas", c.study.deltas,
              "Largest distances at which a row joins a cluster, in the trace's units", "X,...")
      ->group(growth);
  list_option(*sub, "--delta-rel", c.study.deltas_rel,
              "Like --deltas, relative to the radius of one centre (token 0) of the head [default "
              "without --deltas: 0.1, 0.2, ..., 0.9]",
              "X,...")
      ->group(growth);
  integer_option(
      *sub, "--max-clusters", c.study.max_clusters,
      "Largest number of clusters; prefixes that need more are skipped. Time grows with it", "N")
      ->group(growth);

  const char* points = "Points (input of t-SNE)";
  enum_option(*sub, "--points", c.points, {PointsFormat::csv, PointsFormat::none},
              "Whether to write points.csv")
      ->group(points);
  integer_option(
      *sub, "--pca", c.study.components,
      "Number of principal components of a head's tokens to write; 0 writes the rows themselves",
      "N")
      ->group(points);
  integer_option(*sub, "--max-points", c.study.max_points,
                 "Number of evenly spaced tokens per head, besides the centres; 0 writes all", "N")
      ->group(points);
  sub->add_option("--kept-by", c.kept_by,
                  "Kept sets of a replay of these traces (--kept), for column kept_by: the "
                  "algorithms that hold a token at the end. May be repeated")
      ->allow_extra_args(false)  // the next word may be a trace
      ->type_name("OUT.kept.csv")
      ->group(points);

  const char* machine = "Machine and files";
  sub->add_option("--device", c.device,
                  "Device of the measurements; auto is cuda if a device is usable. Points of cpu "
                  "and cuda agree to rounding, all other tables exactly")
      ->capture_default_str()
      ->type_name("cpu|cuda[:i]|auto")
      ->group(machine);
  integer_option(*sub, "--threads", c.threads, "CPU threads; 0 uses all. Rows do not depend on it",
                 "N")
      ->group(machine);
  memory_option(*sub, c.memory_limit, "")->group(machine);
  sub->add_flag("--overwrite", c.overwrite, "Overwrite existing tables in DIR")->group(machine);
  sub->callback([sub, o] { run(*sub, *o); });
}

}  // namespace kvbench
