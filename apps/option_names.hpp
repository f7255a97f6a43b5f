// Names of a command's options and subcommands.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kvbench {

/// In the order of definition, each with the prefix `dashes` ("--" or "").
inline std::vector<std::string> option_names(const CLI::App& app, const std::string& dashes) {
  std::vector<std::string> out;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      out.push_back(dashes + name);
    }
  }
  return out;
}

/// In the order of definition.
inline std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    out.push_back(sub->get_name());
  }
  return out;
}

/// With blanks between.
inline std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace kvbench
