// Manual pages, for man(1).
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kvbench {

/// Returns the page of `command`, or of the program if null, as roff, generated from `app`.
std::string man_page(const CLI::App& app, const CLI::App* command);

}  // namespace kvbench
