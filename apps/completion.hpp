// Completion for bash and zsh: commands, their options, and the values of options that have names.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kvbench {

/// The script for `shell`, made of the commands' definitions. Throws InputError on another shell.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace kvbench
