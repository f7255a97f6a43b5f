#include <memory>

#include "commands.hpp"
#include "decimal.hpp"
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
      "\nExample:\n"
      "  kvbench replay data/sample.h5 -o out.csv --seeds 10 \\\n"
      "      --algorithm 'balancekv:T=1,2,3,4' --algorithm 'uniform:T=1,2,3,4'");
  add_files(*sub, *o);

  const char* what = "What to run";
  sub->add_option("--algorithm", r.algorithms,
                  "Algorithm, and values for its parameters: lists (v1,v2) and ranges "
                  "(A:B or A:B:STEP, from A to below B) make a grid. Commas "
                  "before the first colon separate algorithms: a,b,c:KEY=VALUES. May be "
                  "repeated; 'kvbench list' names them. Sets are all, @eviction and the other "
                  "families, @agnostic (looks at no query) and patterns ('snap*'): every "
                  "algorithm of the set that finds in the traces what it needs. NAME:grid and "
                  "NAME:authors are settings that an algorithm declares, all:grid and "
                  "'@merging:authors' those of a set")
      ->allow_extra_args(false)  // what follows may be a trace
      ->type_name("NAME,...[:KEY=VALUES[;KEY=VALUES]...]")
      ->group(what);
  list(*sub, "--budget", r.budgets,
       "Fractions of the middle's full bytes (stream: of the stream's) "
       "that an algorithm may hold, everything counted; for algorithms whose "
       "own parameters fix no size",
       "RHO,...")
      ->group(what);
  sub->add_option("--seeds", r.seeds,
                  "N: seeds 0 to N-1; else a list of seeds and ranges A:B, from A to B-1. "
                  "Deterministic algorithms run once, as seed 0")
      ->capture_default_str()
      ->type_name("N|A:B[:STEP],...")
      ->group(what);
  add_selection(*sub, *o, what);

  const char* protocol = "Protocol";
  sub->add_option("--protocol", o->protocol,
                  "prefill: the tokens between sink and recent window (the middle) are compressed "
                  "once, then the last queries are evaluated. stream: tokens come one by one, the "
                  "first --sink and the last --recent stay uncompressed, and queries are "
                  "evaluated along the way; "
                  "OUT.steps.csv gets a row per evaluated query")
      ->capture_default_str()
      ->type_name("prefill|stream")
      ->group(protocol);
  number(*sub, "--sink", r.sink, "First tokens, which stay uncompressed", "TOKENS")
      ->group(protocol);
  number(*sub, "--recent", r.recent,
         "Last tokens, which stay uncompressed; under prefill at least --queries", "TOKENS")
      ->group(protocol);
  number(*sub, "--queries", r.queries, "Last queries, which are evaluated", "N")->group(protocol);
  number(*sub, "--eval-every", r.eval_every,
         "stream: evaluate every so many tokens besides the last queries; 0 is n/64, at "
         "least 1",
         "TOKENS")
      ->group(protocol);
  sub->add_option("--scores", o->scores,
                  "Queries that algorithms may score tokens with: those before the evaluated ones "
                  "(past), or all; rows of algorithms that look at no query say none")
      ->capture_default_str()
      ->type_name("past|all")
      ->group(protocol);

  const char* machine = "Machine and files";
  add_machine(*sub, *o, machine);
  sub->add_option("--export-caches", r.export_caches,
                  "Write what each algorithm holds, as attention sees it, to this file "
                  "(docs/trace_format.md), for kvbench evaluate and kvbench-py score")
      ->type_name("C.h5")
      ->group(machine);
  sub->callback([sub, o] { run(*sub, *o); });
}

}  // namespace kvbench
