// kvbench merge SHARD.csv... -o OUT.csv: the undivided result file from its shards.
#pragma once

#include <CLI/CLI.hpp>

namespace kvbench {

/// Adds the subcommand; its callback throws InputError or IoError.
void add_merge(CLI::App& app);

}  // namespace kvbench
