// Manual pages, for man(1).
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kvbench {

/// The page of one command, or of the program where `command` is null, as roff; made of the
/// commands' definitions.
std::string man_page(const CLI::App& app, const CLI::App* command);

}  // namespace kvbench
