#include <memory>

#include "commands.hpp"
#include "decimal.hpp"
#include "run_options.hpp"

namespace kvbench {

void add_evaluate(CLI::App& app) {
  const auto o = std::make_shared<RunOptions>();
  o->evaluates = true;
  CLI::App* sub = app.add_subcommand(
      "evaluate", "Evaluate caches that another program made, under the protocol of the replay");
  sub->footer(
      "\nThe caches say the protocol and its windows. Every entry is checked before the first "
      "row:\n"
      "shapes, values, tokens that must be the trace's, bytes within the budget.\n\n"
      "Example:\n"
      "  kvbench replay data/sample.h5 -o out.csv --algorithm snapkv --budget 0.125 \\\n"
      "      --export-caches caches.h5\n"
      "  kvbench evaluate data/sample.h5 --caches caches.h5 -o again.csv");
  add_files(*sub, *o);
  const char* what = "What to evaluate";
  list(*sub, "--caches", o->replay.caches,
       "Caches files (docs/trace_format.md); several are the shards of one run", "C.h5")
      ->group(what);
  add_selection(*sub, *o, what);
  add_machine(*sub, *o, "Machine and files");
  sub->callback([sub, o] { run(*sub, *o); });
}

}  // namespace kvbench
