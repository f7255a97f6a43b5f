#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "report/manifest.hpp"
#include "report/merge.hpp"
#include "terminal.hpp"

namespace kvbench {
namespace {

struct MergeCommand {
  MergeOptions merge;
  std::vector<std::string> inputs;
  std::string output;
};

void run(MergeCommand& o) {
  o.merge.inputs.assign(o.inputs.begin(), o.inputs.end());
  o.merge.output = o.output;
  o.merge.command_line = shell_line(command_arguments());
  const MergeResult result = merge_runs(o.merge);
  log("{}: {} rows from {} files, {} failed{}\n", o.output, result.rows, o.inputs.size(),
      result.failures,
      result.rows < result.plan_rows ? fmt::format("; {} of the plan's {} rows are missing",
                                                   result.plan_rows - result.rows, result.plan_rows)
                                     : "");
}

}  // namespace

void add_merge(CLI::App& app) {
  const auto o = std::make_shared<MergeCommand>();
  CLI::App* sub = app.add_subcommand("merge",
                                     "Join the shards of one plan, or write the tables of a "
                                     "run that has not ended");
  sub->add_option(
         "inputs", o->inputs,
         "Tables of --shard 1/N ... N/N, in any order, or OUT.csv.log of runs that have not "
         "ended")
      ->required()
      ->type_name("OUT.csv|OUT.csv.log");
  sub->add_option("-o,--output", o->output, "Merged result table to write")
      ->required()
      ->type_name("OUT.csv");
  sub->add_flag("--overwrite", o->merge.overwrite,
                "Overwrite existing OUT.csv and its side tables");
  sub->add_flag("--salvage", o->merge.salvage,
                "Skip damaged records of logs; takes all whole ones");
  sub->callback([o] { run(*o); });
}

}  // namespace kvbench
