// Options that had another name before, which is still taken.
#pragma once

#include <string>
#include <vector>

namespace kvbench {

/// The name of an option now (both without dashes), with a note on stderr where `name` is a former
/// one.
std::string current_name(const std::string& command, const std::string& name);

/// The words of a command line, former names replaced up to a `--`; the first word is the program.
std::vector<std::string> with_current_names(std::vector<std::string> words);

}  // namespace kvbench
