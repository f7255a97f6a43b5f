#include <memory>

#include "commands.hpp"
#include "number_options.hpp"
#include "run_options.hpp"

namespace kvbench {

void add_evaluate(CLI::App& app) {
  const auto o = std::make_shared<RunOptions>();
  o->evaluates = true;
  CLI::App* sub = app.add_subcommand(
      "evaluate", "Evaluate caches written by another program under the replay protocol");
  sub->footer(
      "\nProtocol and windows are those of the caches. Every entry is checked before the first "
      "row: "
      "shapes, values, kept tokens against the trace, bytes against the budget.\n\n"
      "Example:\n"
      "  kvbench replay data/sample.h5 -o out.csv --algorithm snapkv --budget 0.125 \\\n"
      "      --export-caches caches.h5\n"
      "  kvbench evaluate data/sample.h5 --caches caches.h5 -o again.csv");
  add_files(*sub, *o);
  const char* what = "What to evaluate";
  list_option(*sub, "--caches", o->replay.caches,
              "Caches files (docs/trace_format.md), such as the shards of one run", "C.h5")
      ->group(what);
  selection_options(*sub, o->replay, "--heads", "Query heads", what);
  add_machine(*sub, *o, "Machine and files");
  sub->callback([sub, o] { run(*sub, *o); });
}

}  // namespace kvbench
