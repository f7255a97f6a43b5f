// kvbench evaluate: caches that anything computed, judged as the replay judges methods.
#pragma once

#include <CLI/CLI.hpp>

namespace kvbench {

void add_evaluate(CLI::App& app);

}  // namespace kvbench
