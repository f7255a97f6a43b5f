// help and completion, generated from the definitions of the commands.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "completion.hpp"
#include "core/did_you_mean.hpp"
#include "core/error.hpp"
#include "option_names.hpp"

namespace kvbench {
namespace {

// Null for an empty name: the program itself.
const CLI::App* command_of(const CLI::App& app, const std::string& name) {
  if (name.empty()) {
    return nullptr;
  }
  const auto found =
      app.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == name; });
  if (found.empty()) {
    throw InputError(unknown_command(app, name));
  }
  return found.front();
}

}  // namespace

std::string unknown_command(const CLI::App& app, const std::string& name) {
  const std::vector<std::string> names = subcommand_names(app);
  const std::string got = name.empty() ? "no subcommand"
                          : name.starts_with('-')
                              ? fmt::format("'{}' in place of a subcommand", name)
                              : fmt::format("the subcommand '{}'", name);
  return fmt::format("got {}{}, expected one of {}{}", got, did_you_mean(name, names),
                     fmt::join(names, ", "), name.empty() ? " (see kvbench help)" : "");
}

void add_help(CLI::App& app) {
  const auto word = std::make_shared<std::string>();
  const auto add = [&](const char* name, const char* what, const char* type, bool required) {
    CLI::App* sub = app.add_subcommand(name, what);
    sub->add_option(required ? "shell" : "name", *word,
                    required ? "Shell" : "Command [default: the program itself]")
        ->required(required)
        ->type_name(type);
    return sub;
  };
  add("help", "Print the help of a command", "SUBCOMMAND", false)->callback([&app, word] {
    const CLI::App* sub = command_of(app, *word);
    const auto normal = CLI::AppFormatMode::Normal;
    fmt::print("{}", sub == nullptr ? app.get_formatter()->make_help(&app, app.get_name(), normal)
                                    : sub->help(app.get_name(), normal));
  });
  CLI::App* completion =
      add("completion", "Print a completion script for a shell", "bash|zsh", true);
  completion->footer(
      "\nExample, for the current shell:\n"
      "  source <(kvbench completion bash)");
  completion->callback([&app, word] { fmt::print("{}", completion_script(app, *word)); });
}

}  // namespace kvbench
