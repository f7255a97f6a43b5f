// The subcommands. Each function adds one; what its callback throws is InputError, IoError or Exit.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kvbench {

void add_info(CLI::App& app);       ///< what traces hold; validates everything
void add_list(CLI::App& app);       ///< the algorithms and their parameters
void add_synth(CLI::App& app);      ///< seeded traces with planted structure
void add_replay(CLI::App& app);     ///< the main job
void add_evaluate(CLI::App& app);   ///< caches of any program, as the replay evaluates methods
void add_cluster(CLI::App& app);    ///< how keys and values cluster
void add_summarize(CLI::App& app);  ///< means, standard deviations and counts of result rows
void add_verify(CLI::App& app);     ///< checksums of a result table, and a sample of it again
void add_merge(CLI::App& app);      ///< the undivided result file from its shards
void add_help(CLI::App& app);       ///< help by name, completion for shells, manual pages; the last

/// What is wrong with a name of a subcommand that there is not.
std::string unknown_command(const CLI::App& app, const std::string& name);

/// What the process was started with, for the manifest. Set by main before parsing.
std::vector<std::string>& command_arguments();

}  // namespace kvbench
