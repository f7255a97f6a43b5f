// kvbench summarize OUT.csv...: means, standard deviations and counts of result rows.
#pragma once

#include <CLI/CLI.hpp>

namespace kvbench {

/// Adds the subcommand; its callback prints to stdout and throws InputError or IoError.
void add_summarize(CLI::App& app);

}  // namespace kvbench
