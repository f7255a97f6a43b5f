// kvbench list: the algorithms and their parameters.
#pragma once

#include <CLI/CLI.hpp>

namespace kvbench {

void add_list(CLI::App& app);

}  // namespace kvbench
