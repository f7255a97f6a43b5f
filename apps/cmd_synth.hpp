// kvbench synth: seeded traces with planted structure.
#pragma once

#include <CLI/CLI.hpp>

namespace kvbench {

void add_synth(CLI::App& app);

}  // namespace kvbench
