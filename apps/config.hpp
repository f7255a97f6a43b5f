// Options of a subcommand from a TOML file. The command line takes precedence.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kvbench {

/// --config.
inline CLI::Option* config_option(CLI::App& app, std::string& path) {
  return app
      .add_option("--config", path,
                  "TOML file with any of these options. The command line takes precedence")
      ->type_name("FILE.toml");
}

/// Sets the options of `command` that were not on the command line to the values of the TOML file
/// `path`. Keys are long option names without dashes, at the top level or in a section named after
/// the subcommand. Without a path does nothing. Throws InputError with file, line and key.
void apply_config(CLI::App& command, const std::string& path);

}  // namespace kvbench
