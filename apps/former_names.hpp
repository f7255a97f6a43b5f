// Former option names, which are still accepted.
#pragma once

#include <string>
#include <vector>

namespace kvbench {

/// Returns the current name of an option, without dashes. Logs a note if `name` is a former name.
std::string current_name(const std::string& command, const std::string& name);

/// Replaces former names in a command line, up to a `--`. The first word is the program.
std::vector<std::string> with_current_names(std::vector<std::string> words);

}  // namespace kvbench
