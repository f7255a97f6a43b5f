// kvbench cluster: how keys and values cluster.
#pragma once

#include <CLI/CLI.hpp>

namespace kvbench {

void add_cluster(CLI::App& app);

}  // namespace kvbench
