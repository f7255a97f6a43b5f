// kvbench replay: the main job.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kvbench {

/// What the process was started with, for the manifest. Set by main before parsing.
std::vector<std::string>& command_arguments();

void add_replay(CLI::App& app);

}  // namespace kvbench
