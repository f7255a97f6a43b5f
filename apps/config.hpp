// Options of a subcommand from a TOML file. The command line takes precedence.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kvbench {

/// Sets the options of `command` that were not on the command line to the values of the TOML file
/// `path`. Keys are long option names without dashes, at the top level or in a section named after
/// the subcommand. Throws InputError with file, line and key.
void apply_config(CLI::App& command, const std::string& path);

}  // namespace kvbench
