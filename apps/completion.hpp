// Completion scripts for bash and zsh: commands, options and named values.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kvbench {

/// Returns the script for `shell`, generated from `app`. Throws InputError on an unknown shell.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace kvbench
