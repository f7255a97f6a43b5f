// kvbench info: what traces hold; validates everything.
#pragma once

#include <CLI/CLI.hpp>

namespace kvbench {

void add_info(CLI::App& app);

}  // namespace kvbench
