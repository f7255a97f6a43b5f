// The subcommands, one function each. Callbacks throw InputError, IoError or Exit.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kvbench {

void add_info(CLI::App& app);       ///< contents of traces, validated
void add_list(CLI::App& app);       ///< algorithms and their parameters
void add_synth(CLI::App& app);      ///< seeded traces with planted structure
void add_replay(CLI::App& app);     ///< replay of traces through algorithms
void add_evaluate(CLI::App& app);   ///< evaluation of caches written by another program
void add_cluster(CLI::App& app);    ///< clusterability of keys and values
void add_summarize(CLI::App& app);  ///< means, standard deviations and counts of result rows
void add_verify(CLI::App& app);     ///< checksums of a result table, and recomputed rows
void add_merge(CLI::App& app);      ///< one result table from shards
void add_help(CLI::App& app);       ///< help and completion; must be added last

/// Error message for an unknown subcommand.
std::string unknown_command(const CLI::App& app, const std::string& name);

/// The command line, for the manifest. Set by main before parsing.
std::vector<std::string>& command_arguments();

}  // namespace kvbench
