#include <memory>

#include "commands.hpp"
#include "number_options.hpp"
#include "parse_enum.hpp"
#include "run_options.hpp"

namespace kvbench {

std::vector<std::string>& command_arguments() {
  static std::vector<std::string> arguments;
  return arguments;
}

void add_replay(CLI::App& app) {
  const auto o = std::make_shared<RunOptions>();
  ReplayOptions& r = o->replay;
  CLI::App* sub = app.add_subcommand("replay", "Replay traces through compression algorithms");
  sub->footer(
      "\nAlgorithms:\n"
      "  h2o,snapkv               two algorithms with default parameters\n"
      "  uniform:T=1,2,4          a list of values: three variants\n"
      "  'balancekv:T=1:4;step=greedy,fixed'\n"
      "                           a range (T = 1, 2, 3) and a list: six variants\n"
      "  all, @eviction, 'snap*'  sets: every algorithm, a family, a name pattern\n"
      "  @agnostic                the set of algorithms that use no queries\n"
      "  NAME:grid, NAME:authors  settings of tuning, setting of the source; sets have them too\n"
      "A set leaves out algorithms whose inputs the traces lack.\n"
      "\nExample:\n"
      "  kvbench replay data/sample.h5 -o out.csv --seeds 10 \\\n"
      "      --algorithm 'balancekv:T=1,2,3,4' --algorithm 'uniform:T=1,2,3,4'");
  add_files(*sub, *o);

  const char* what = "What to run";
  sub->add_option(
         "--algorithm", r.algorithms,
         "Algorithms or sets to run; lists (v1,v2) and ranges (A:B or A:B:STEP, without B) of "
         "parameter values form a grid. May be repeated; kvbench list shows names and parameters")
      ->allow_extra_args(false)  // the next word may be a trace
      ->type_name("NAME,...[:KEY=VALUES[;KEY=VALUES]...]")
      ->group(what);
  list_option(*sub, "--policy", r.policies,
              "Policy files: algorithm and budget of each layer or KV head, run like one algorithm "
              "(docs/policies.md)",
              "P.json,...")
      ->group(what);
  list_option(*sub, "--budget", r.budgets,
              "Byte budgets as fractions of the uncompressed middle (stream: of the whole stream; "
              "retrieval: that a query reads), "
              "overhead included: 0.25, 25% or 1/4. Not used where a parameter sets the size",
              "RHO,...")
      ->transform(fraction())
      ->group(what);
  list_option(*sub, "--total-budget", r.budgets,
              "prefill: budgets as fractions of the whole cache, with sinks and recent tokens; the "
              "middle gets what is left, and rows are infeasible where these alone exceed it",
              "RHO,...")
      ->transform(fraction())
      ->group(what);
  sub->add_option("--seeds", r.seeds,
                  "Number of seeds (N: 0 to N-1), or a list of seeds and ranges (A:B: A to B-1). "
                  "Deterministic algorithms run once, with seed 0")
      ->capture_default_str()
      ->type_name("N|A:B[:STEP],...")
      ->group(what);
  selection_options(*sub, r, "--heads", "Query heads", what);

  const char* protocol = "Protocol";
  enum_option(
      *sub, "--protocol", r.protocol, {Protocol::prefill, Protocol::stream, Protocol::retrieval},
      "prefill compresses the tokens between sink and recent window (the middle) once. stream "
      "adds tokens one at a time and also writes a row per evaluated query to OUT.steps.csv. "
      "retrieval keeps all tokens, and each evaluated query reads a part of the middle")
      ->group(protocol);
  integer_option(*sub, "--sink", r.sink, "Number of first tokens kept uncompressed", "TOKENS")
      ->group(protocol);
  integer_option(*sub, "--recent", r.recent,
                 "Number of last tokens kept uncompressed; prefill: at least --queries", "TOKENS")
      ->group(protocol);
  integer_option(*sub, "--queries", r.queries, "Number of last queries to evaluate", "N")
      ->group(protocol);
  integer_option(
      *sub, "--eval-every", r.eval_every,
      "stream: tokens between evaluations, besides the last queries; 0 is n/64, at least 1",
      "TOKENS")
      ->group(protocol);
  enum_option(*sub, "--scores", r.scores, {Scores::past, Scores::all},
              "Queries visible to algorithms: those before the evaluated ones (past), or all")
      ->group(protocol);

  const char* machine = "Machine and files";
  add_machine(*sub, *o, machine);
  sub->add_option("--export-caches", r.export_caches,
                  "Write the compressed caches to this file (docs/trace_format.md), for kvbench "
                  "evaluate and kvbench-py score")
      ->type_name("C.h5")
      ->group(machine);
  sub->callback([sub, o] { run(*sub, *o); });
}

}  // namespace kvbench
