#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "choice.hpp"
#include "commands.hpp"
#include "config.hpp"
#include "core/error.hpp"
#include "decimal.hpp"
#include "exit_code.hpp"
#include "long_run.hpp"
#include "replay/cluster_run.hpp"
#include "report/manifest.hpp"
#include "terminal.hpp"

namespace kvbench {
namespace {

struct ClusterCommand {
  ClusterOptions cluster;
  std::vector<std::string> what{"keys", "values"};
  std::string points{name(ClusterOptions{}.points)};
  std::string config;
  std::string memory_limit;
};

void run(CLI::App& command, ClusterCommand& o) {
  if (!o.config.empty()) {
    apply_config(command, o.config);
    o.cluster.config = o.config;
  }
  o.cluster.what.clear();
  for (const std::string& word : o.what) {
    o.cluster.what.push_back(choice("--what", word, {Rows::keys, Rows::values}));
  }
  o.cluster.points =
      choice("--points", o.points, {PointsFormat::csv, PointsFormat::hdf5, PointsFormat::none});
  if (!o.memory_limit.empty()) {
    o.cluster.memory_limit = set_memory_limit(o.memory_limit);
  }
  const std::atomic<bool>& stop = stop_on_signals(
      "interrupted while a KV head was studied; the tables stay unfinished, run it again");
  ClusterPlan plan = make_cluster_plan(o.cluster);
  plan.options.program_bytes = program_bytes();
  const ClusterResult r = run_cluster(plan, shell_line(command_arguments()), stop);
  tell("{}: {} KV heads, {} rows in {:.1f} s\n", o.cluster.out, r.heads, r.rows, r.wall_s);
  expect_unchanged(r.changed_traces, o.cluster.out);
  if (r.interrupted) {
    tell("interrupted; the rows of finished KV heads are kept\n");
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
      "\nWrites one table for each statistic (docs/schema.md), points.csv or points.h5, and the "
      "manifest cluster.json. Layers that hold keys alone will do; a trace that lacks queries or "
      "values gets no rows of them.\n"
      "\nExample:\n"
      "  kvbench replay data/sample.h5 -o out.csv --algorithm bumblebee --budget 0.5 --kept\n"
      "  kvbench cluster data/sample.h5 -o clusters --kept-by out.kept.csv");
  sub->add_option("traces", c.traces, "Trace files (docs/trace_format.md)")
      ->required()
      ->type_name("TRACE.h5");
  sub->add_option("-o,--output", c.out, "Folder to write the tables into; made where it is missing")
      ->type_name("DIR");
  sub->add_option("--config", o->config,
                  "TOML file with any of these options; the command line wins over it")
      ->type_name("FILE.toml");

  const char* what = "What to study";
  list(*sub, "--what", o->what, "Sets of rows; norms.csv has queries, keys and values in any case",
       "keys,values")
      ->capture_default_str()
      ->group(what);
  numbers(*sub, "--layers", c.layers, c.layer_ranges, "Layer indices of the model")->group(what);
  numbers(*sub, "--kv-heads", c.kv_heads, c.head_ranges, "KV heads")->group(what);
  list(*sub, "--prompts", c.prompts, "Prompt ids [default: all]", "ID,...")->group(what);

  const char* coverage = "Coverage (greedy k-center, first centre token 0)";
  number(*sub, "--k", c.study.centers, "Centres that points.csv marks; a row of coverage.csv", "N")
      ->group(coverage);
  number(*sub, "--max-k", c.study.max_k,
         "The curve has k = 1, 2, 4, ... up to half the tokens, and up to this; time grows "
         "with it",
         "N")
      ->group(coverage);

  const char* growth = "Growth (online clusters)";
  list(*sub, "--deltas", c.study.deltas,
       "Distances up to which a row joins a cluster, in the trace's units", "X,...")
      ->group(growth);
  list(*sub, "--delta-rel", c.study.deltas_rel,
       "The same, times the radius of one centre (token 0) of the head "
       "[default without --deltas: 0.1, 0.2, ..., 0.9]",
       "X,...")
      ->group(growth);
  number(*sub, "--max-clusters", c.study.max_clusters,
         "Prefixes of the stream that need more are left out; time grows with it", "N")
      ->group(growth);

  const char* points = "Points (input of t-SNE)";
  sub->add_option("--points", o->points, "points.csv, points.h5, or neither")
      ->capture_default_str()
      ->type_name("csv|hdf5|none")
      ->group(points);
  number(*sub, "--pca", c.study.components,
         "Columns: first principal components of all of a head's tokens; 0: the rows "
         "themselves",
         "N")
      ->group(points);
  number(*sub, "--max-points", c.study.max_points,
         "Evenly spaced tokens of a head, and the centres besides; 0: all", "N")
      ->group(points);
  sub->add_option("--kept-by", c.kept_by,
                  "Kept sets that a replay of these traces recorded (--kept); column "
                  "kept_by says which algorithms held a token at the end. May be "
                  "repeated")
      ->allow_extra_args(false)  // what follows may be a trace
      ->type_name("OUT.kept.csv")
      ->group(points);

  const char* machine = "Machine and files";
  sub->add_option("--device", c.device,
                  "Where rows are studied; auto is cuda where a device can be used. Points of a "
                  "device agree to rounding, all else is the same")
      ->capture_default_str()
      ->type_name("cpu|cuda[:i]|auto")
      ->group(machine);
  number(*sub, "--threads", c.threads, "CPU threads; 0 is all. Rows do not depend on it", "N")
      ->group(machine);
  sub->add_option("--memory-limit", o->memory_limit,
                  "Memory limit of the program, a KV head and its threads, on a device as well, as "
                  "bytes or as 8G (K, M, G, T: powers of 1024); fewer threads are used to keep it")
      ->type_name("BYTES")
      ->group(machine);
  sub->add_flag("--overwrite", c.overwrite, "Start anew where DIR holds such tables")
      ->group(machine);
  sub->callback([sub, o] { run(*sub, *o); });
}

}  // namespace kvbench
