// A TOML file can hold every option of a subcommand; the command line wins over it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kvbench {

/// Gives `command`'s options that were not on the command line the values that the TOML file at
/// `path` has for them. Keys are long option names without dashes, at the top level or in a section
/// named after the subcommand. Errors: InputError naming the file, the line and the key.
void apply_config(CLI::App& command, const std::string& path);

}  // namespace kvbench
