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
  std::vector<std::string> shards;
  std::string output;
  bool overwrite = false;
};

void run(const MergeCommand& options) {
  MergeOptions merge;
  merge.shards.assign(options.shards.begin(), options.shards.end());
  merge.output = options.output;
  merge.overwrite = options.overwrite;
  std::vector<std::string> command{"kvbench", "merge"};
  command.insert(command.end(), options.shards.begin(), options.shards.end());
  command.insert(command.end(), {"-o", options.output});
  if (options.overwrite) {
    command.emplace_back("--overwrite");
  }
  merge.command_line = shell_line(command);
  const MergeResult result = merge_shards(merge);
  log("{}: {} rows from {} shards, {} failed\n", options.output, result.rows, options.shards.size(),
      result.failures);
}

}  // namespace

void add_merge(CLI::App& app) {
  const auto o = std::make_shared<MergeCommand>();
  CLI::App* sub = app.add_subcommand("merge", "Join the shards of one plan");
  sub->add_option("shards", o->shards, "Result tables of --shard 1/N ... N/N, in any order")
      ->required()
      ->type_name("SHARD.csv");
  sub->add_option("-o,--output", o->output, "Merged result table to write")
      ->required()
      ->type_name("OUT.csv");
  sub->add_flag("--overwrite", o->overwrite, "Overwrite existing OUT.csv and its side tables");
  sub->callback([o] { run(*o); });
}

}  // namespace kvbench
