#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "report/manifest.hpp"
#include "report/merge.hpp"
#include "terminal.hpp"

namespace kvbench {
namespace {

struct MergeCommand {
  std::vector<std::string> inputs;
  std::string output;
  bool overwrite = false;
  bool salvage = false;
};

void run(const MergeCommand& options) {
  MergeOptions merge;
  merge.inputs.assign(options.inputs.begin(), options.inputs.end());
  merge.output = options.output;
  merge.overwrite = options.overwrite;
  merge.salvage = options.salvage;
  std::vector<std::string> command{"kvbench", "merge"};
  command.insert(command.end(), options.inputs.begin(), options.inputs.end());
  command.insert(command.end(), {"-o", options.output});
  for (const auto& [given, flag] :
       {std::pair{options.overwrite, "--overwrite"}, std::pair{options.salvage, "--salvage"}}) {
    if (given) {
      command.emplace_back(flag);
    }
  }
  merge.command_line = shell_line(command);
  const MergeResult result = merge_runs(merge);
  log("{}: {} rows from {} files, {} failed{}\n", options.output, result.rows,
      options.inputs.size(), result.failures,
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
  sub->add_flag("--overwrite", o->overwrite, "Overwrite existing OUT.csv and its side tables");
  sub->add_flag("--salvage", o->salvage, "Skip damaged records of logs; takes all whole ones");
  sub->callback([o] { run(*o); });
}

}  // namespace kvbench
